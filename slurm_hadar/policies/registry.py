"""Policies by name: those of the package and those of third parties.

A third party offers a policy as an entry point of the group ``slurm_hadar.policies``::

    [options.entry_points]
    slurm_hadar.policies =
        mine = my_package.policy:MyPolicy

A plug-in that cannot be loaded costs nobody else anything: :func:`problems` names it in one line, and only asking for
that very policy fails.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from importlib import metadata
from typing import Any

from slurm_hadar.errors import ConfigError, whereabouts
from slurm_hadar.policies.base import Policy

__all__ = ["GROUP", "get", "names", "parameters", "problems"]

GROUP = "slurm_hadar.policies"

# Named rather than imported, so that a policy's imports are paid for only where it is used.
_BUILTIN = {
    "allox": "slurm_hadar.policies.baselines.allox:AlloX",
    "asrpt": "slurm_hadar.policies.asrpt.policy:Asrpt",
    "fifo": "slurm_hadar.policies.baselines.fifo:Fifo",
    "gavel_cost": "slurm_hadar.policies.gavel.policy:GavelCost",
    "gavel_ftf": "slurm_hadar.policies.gavel.policy:GavelFtf",
    "gavel_las": "slurm_hadar.policies.gavel.policy:GavelLas",
    "gavel_throughput": "slurm_hadar.policies.gavel.policy:GavelThroughput",
    "gavel_ttd": "slurm_hadar.policies.gavel.policy:GavelTtd",
    "hadar": "slurm_hadar.policies.hadar.policy:Hadar",
    "hadare": "slurm_hadar.policies.hadare.policy:HadarE",
    "none": "slurm_hadar.policies.baselines.none:NoPolicy",
    "slurm": "slurm_hadar.policies.baselines.slurm:Slurm",
    "spjf": "slurm_hadar.policies.asrpt.policy:Spjf",
    "spwf": "slurm_hadar.policies.asrpt.policy:Spwf",
    "srtf": "slurm_hadar.policies.baselines.srtf:Srtf",
    "tiresias": "slurm_hadar.policies.baselines.tiresias:Tiresias",
    "wcs_duration": "slurm_hadar.policies.asrpt.policy:WcsDuration",
    "wcs_subtime": "slurm_hadar.policies.asrpt.policy:WcsSubTime",
    "wcs_workload": "slurm_hadar.policies.asrpt.policy:WcsWorkload",
}

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def names() -> tuple[str, ...]:
    """Every policy that can be asked for, plug-ins included (whether or not they can be loaded)."""
    return tuple(sorted({*_BUILTIN, *_plugins()}))


def parameters(name: str) -> dict[str, Any]:
    """The parameters of a policy and their defaults. Raises ConfigError for an unknown policy."""
    return {p.name: p.default for p in _signature(name, _load(name)).parameters.values()}


def get(name: str, **params: Any) -> Policy:
    """The policy ``name`` with ``params``; text values are read as the parameter's type.

    Raises ConfigError naming the valid policies or parameters if one is unknown, or what is wrong with a value.
    """
    policy_class = _load(name)
    valid = _signature(name, policy_class).parameters
    given = {}
    for key, value in params.items():
        if key not in valid:
            known = ", ".join(f"{p.name}={p.default}" for p in valid.values()) or "none"
            raise ConfigError(f"policy {name} has no parameter {key!r}; valid parameters: {known}")
        given[key] = _read(name, key, value, valid[key].annotation)
    try:
        policy = policy_class(**given)
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        raise ConfigError(f"policy {name} cannot be made: {error!r} at {whereabouts(error)}") from error
    if not isinstance(policy, Policy):
        raise ConfigError(f"policy {name}: {policy_class!r} does not make a slurm_hadar.policies.Policy")
    if not isinstance(getattr(policy, "name", None), str):
        raise ConfigError(f"policy {name}: {policy_class!r} has no name")
    return policy


def problems() -> tuple[str, ...]:
    """One line for each plug-in that cannot be used, and why; for ``hadar doctor``."""
    lines = []
    for name in sorted(_plugins()):
        if name in _BUILTIN:
            lines.append(f"policy plug-in {name}: the name is taken by the package; the plug-in is not used")
            continue
        try:
            _load(name)
        except ConfigError as error:
            lines.append(str(error))
    return tuple(lines)


def _plugins() -> dict[str, metadata.EntryPoint]:
    return {point.name: point for point in metadata.entry_points(group=GROUP)}


def _load(name: str) -> Callable[..., Any]:
    if name in _BUILTIN:
        module, _, attribute = _BUILTIN[name].partition(":")
        own: Callable[..., Any] = getattr(importlib.import_module(module), attribute)
        return own
    plugin = _plugins().get(name)
    if plugin is None:
        raise ConfigError(f"no policy is called {name!r}; valid policies: {', '.join(names())}")
    try:
        loaded: object = plugin.load()
    except (Exception, SystemExit) as error:  # a plug-in may fail in any way; it must stay its own failure
        first_line = (str(error).splitlines() or [""])[0]
        raise ConfigError(
            f"policy plug-in {name} ({plugin.value}) cannot be loaded: {type(error).__name__}: {first_line}"
        ) from error
    if not callable(loaded):
        raise ConfigError(f"policy plug-in {name} ({plugin.value}) is not a class or function that makes a policy")
    return loaded


def _signature(name: str, policy_class: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(policy_class, eval_str=True)
    except Exception as error:  # annotations of a plug-in are evaluated, and may fail in any way
        raise ConfigError(f"policy {name}: the parameters of {policy_class!r} cannot be read: {error}") from error


def _read(policy: str, key: str, value: Any, kind: Any) -> Any:
    """``value`` as ``kind``. Text comes from the command line; a number may stand for another kind of number."""
    try:
        if kind is bool and isinstance(value, str):
            return _boolean(value)
        if kind in (int, float) and isinstance(value, (str, int, float)) and not isinstance(value, bool):
            number = float(value)
            if kind is int and number != int(number):
                raise ValueError("not a whole number")
            return kind(number)
    except (ValueError, OverflowError):
        raise ConfigError(f"policy {policy}: {key}={value!r} must be {_KINDS.get(kind, kind)}") from None
    if kind in _KINDS and (not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)):
        raise ConfigError(f"policy {policy}: {key}={value!r} must be {_KINDS[kind]}")
    return value


_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)
