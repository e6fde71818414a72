"""Lengths of time as users write them: ``100ms``, ``1.5s``, ``2m``, or a bare number of seconds."""

from __future__ import annotations

import re

from slurm_hadar.errors import ConfigError

__all__ = ["LONGEST_S", "seconds"]

LONGEST_S = 86400.0
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_SPAN = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]*)")


def seconds(text: str, what: str) -> float:
    """Above 0 and at most a day. Raises ConfigError naming ``what``."""
    found = _SPAN.fullmatch(text.strip().lower())
    value = float(found[1]) * _UNITS[found[2]] if found and found[2] in _UNITS else 0.0
    if not 0.0 < value <= LONGEST_S:
        raise ConfigError(f"{what} {text!r} must be a length of time above 0 and up to a day, such as 100ms or 1.5s")
    return value
