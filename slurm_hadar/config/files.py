"""The configuration as it is read: files, then settings of the command line, each value with where it came from."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from slurm_hadar.config.faults import COMMAND_LINE, lines_of
from slurm_hadar.config.schema import Config
from slurm_hadar.errors import ConfigError

__all__ = ["SYSTEM_DIR", "changed", "given", "keeping", "load", "with_given"]

SYSTEM_DIR = Path("/etc/slurm-hadar")
_DEEPEST = 32


def load(path: Path | None = None, overrides: Iterable[str] = ()) -> Config:
    """Read the configuration.

    ``path`` (or ``$HADAR_CONFIG``) replaces the system files; ``overrides`` are ``section.key=value`` texts with
    TOML values. Raises ConfigError naming file, key and fix.
    """
    merged: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for file in _files(path):
        _merge(merged, _read(file), str(file), origins)
    for text in overrides:
        _merge(merged, _override(text), COMMAND_LINE, origins)
    return _validated(merged, origins)


def changed(config: Config, settings: Mapping[str, Any]) -> Config:
    """``config`` with ``section.key`` settings replaced, as by options of a command. Raises ConfigError."""
    content, origins = config.model_dump(), dict(config.origins)
    for key, value in settings.items():
        section, _, name = key.partition(".")
        content[section][name] = value
        origins[key] = COMMAND_LINE
    return _validated(content, origins)


def given(config: Config) -> dict[str, Any]:
    """What was set on the command line or in a file that was named there (or by ``$HADAR_CONFIG``), which other
    commands do not read by themselves; by ``section.key``, with values as JSON has them."""
    own = {key for key, origin in config.origins.items() if SYSTEM_DIR not in Path(origin).parents}
    return {key: value for key, value in config.flat().items() if key in own}


def with_given(config: Config, settings: Mapping[str, Any]) -> Config:
    """``config`` with what another command was :func:`given`, but for what was set on this one's own command line.
    Raises ConfigError."""
    content, origins = config.model_dump(), dict(config.origins)
    for key, value in settings.items():
        if config.origin(key) == COMMAND_LINE:
            continue
        nested: Any = value
        for part in reversed(key.split(".")):
            nested = {part: nested}
        _merge(content, nested, COMMAND_LINE, origins)
    return _validated(content, origins)


def keeping(config: Config, old: Config, keys: Iterable[str]) -> Config:
    """``config`` with ``keys`` (sections, or ``section.key``) as they are in ``old``."""
    content, before = config.model_dump(), old.model_dump()
    for key in keys:
        section, _, name = key.partition(".")
        if name:
            content[section][name] = before[section][name]
        else:
            content[section] = before[section]
    return _validated(content, config.origins)


def _validated(content: Mapping[str, Any], origins: Mapping[str, str]) -> Config:
    try:
        return Config.model_validate({**content, "origins": origins})
    except ValidationError as error:
        first, *more = lines_of(error, origins)
        raise ConfigError(first, more) from None


def _files(path: Path | None) -> list[Path]:
    try:
        return _found(path or (Path(os.environ["HADAR_CONFIG"]) if os.environ.get("HADAR_CONFIG") else None))
    except OSError as error:
        raise ConfigError(f"cannot read {error.filename}: {error.strerror}") from None


def _found(named: Path | None) -> list[Path]:
    if named is not None:
        if not named.is_file():
            raise ConfigError(f"configuration file {named} {'is no file' if named.exists() else 'does not exist'}")
        return [named]
    main = [SYSTEM_DIR / "config.toml"] if (SYSTEM_DIR / "config.toml").is_file() else []
    try:  # glob() would take a folder that cannot be read for an empty one, and what it sets for unset
        return main + sorted(p for p in (SYSTEM_DIR / "config.d").iterdir() if p.name.endswith(".toml"))
    except FileNotFoundError:
        return main


def _read(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_bytes().decode("utf-8-sig"))  # some editors begin with a mark
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{file} is not valid TOML: {error}") from None
    except (OSError, ValueError, RecursionError) as error:  # not UTF-8, thousands of digits or of brackets
        raise ConfigError(f"cannot read {file}: {error}") from None


def _override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    parts = key.strip().split(".")
    if not equals or len(parts) < 2 or not all(parts):
        raise ConfigError(f"setting {text!r} must read section.key=value")
    try:
        parsed = tomllib.loads(f"x = {value}")["x"]
    except (ValueError, RecursionError):
        parsed = value  # a bare word is a string, so that users need not quote twice in a shell
    nested: Any = parsed
    for part in reversed(parts):
        nested = {part: nested}
    return dict(nested)


def _merge(
    into: dict[str, Any], new: Mapping[str, Any], origin: str, origins: dict[str, str], prefix: str = ""
) -> None:
    if prefix.count(".") > _DEEPEST:
        raise ConfigError(f"{origin}: {prefix[:60]}... is deeper than any setting")
    for key, value in new.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            child = into.setdefault(key, {})
            if not isinstance(child, dict):
                raise ConfigError(f"{origin}: {name} is a section here and a value elsewhere")
            if not value:
                origins[name] = origin
            _merge(child, value, origin, origins, name + ".")
        else:
            into[key] = value
            origins[name] = origin
