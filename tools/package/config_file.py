"""The configuration that a package installs: mode observe, the state of the service, every default as a comment."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

from pydantic_core import PydanticUndefined

from tools.config_reference import sections

HEAD = """\
# Configuration of slurm_hadar: man slurm-hadar.toml. It may also stand in pieces in config.d/*.toml.
#   hadar config check    is it valid?
#   systemctl reload slurm-hadar    take it, between two rounds
# Lines with a value that are commented out are the defaults.

"""
#: what an administrator finds set, and why
SET = {
    "controller.mode": ('"observe"', "look only. Then advise, then act, partition by partition: docs/admin.md"),
    "controller.state_dir": (
        '"/var/lib/slurm-hadar"',
        "where the service keeps its journal, so that hadar queue and hadar release find it",
    ),
}


def text() -> str:
    """The whole file."""
    parts = [HEAD]
    for prefix, section in sections():
        comment = "" if section.__doc__ is None else _comment(section.__doc__.splitlines()[0])
        if "NAME" in prefix:  # a table for each of many names has no defaults
            example = "\n".join(f'#{name} = "observe"' for name in section.model_fields)
            parts.append(f"{comment}#[{prefix}]\n{example}\n\n")
            continue
        lines = [f"{comment}[{prefix}]"]
        for name, field in section.model_fields.items():
            lines += _setting(f"{prefix}.{name}", name, field)
        parts.append("\n".join(lines) + "\n\n")
    return "".join(parts).rstrip() + "\n"


def _setting(key: str, name: str, field: Any) -> list[str]:
    if key in SET:
        value, why = SET[key]
        return [f"# {why}", f"{name} = {value}"]
    default = field.get_default(call_default_factory=True)
    lines = _comment(field.description or "").splitlines()
    if isinstance(default, dict):  # its own tables come after all settings
        return [*lines, f"#{name} = {{}}"]
    empty = default is PydanticUndefined or default is None
    return [*lines, f"#{name} =" if empty else f"#{name} = {_toml(default)}"]


def _toml(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(str(value) if isinstance(value, str | Path) else value)


def _comment(words: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(" ".join(words.split()), 110))
