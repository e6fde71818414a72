"""Fields of a line of text, read with errors that name file, line and field."""

from __future__ import annotations

import math
from collections.abc import Container

from slurm_hadar.errors import TraceError

__all__ = ["number", "options", "positive", "sizes", "whole"]


def number(text: str, where: str, field: str) -> float:
    """A finite number. Raises TraceError."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TraceError(f"{where}: {field} must be a number, not {text!r}")
    return value


def positive(text: str, where: str, field: str) -> float:
    """A number above 0. Raises TraceError."""
    value = number(text, where, field)
    if value <= 0:
        raise TraceError(f"{where}: {field} must be above 0, not {text!r}")
    return value


def whole(text: str, where: str, field: str, least: int = 1) -> int:
    """A whole number of at least ``least``. Raises TraceError."""
    value = number(text, where, field)
    if value != int(value) or value < least:
        raise TraceError(f"{where}: {field} must be a whole number of at least {least}, not {text!r}")
    return int(value)


def sizes(text: str, where: str, field: str) -> tuple[int, ...]:
    """Gang sizes: ``4``, or ``2-8`` for 2 doubled as often as it fits, and 8; or ``2+3+8`` for just these."""
    if "+" in text:
        return tuple(sorted({whole(part, where, field) for part in text.split("+")}))
    low, dash, high = text.partition("-")
    least = whole(low, where, field)
    if not dash:
        return (least,)
    most = whole(high, where, field)
    if most < least:
        raise TraceError(f"{where}: {field} must be N, N-M with N <= M or N+M+..., not {text!r}")
    doubled = [least]
    while doubled[-1] * 2 < most:
        doubled.append(doubled[-1] * 2)
    return tuple(sorted({*doubled, most}))


def options(text: str, prefix: str, known: Container[str], usage: str) -> dict[str, str]:
    """``PREFIXkey=value,key=value`` as a dict. Raises TraceError for a part that is none, or whose key is not known."""
    found = {}
    for part in filter(None, text.removeprefix(prefix).split(",")):
        key, equals, value = part.partition("=")
        if not equals or key not in known:
            raise TraceError(f"{text}: {part!r} is not one of {usage}")
        found[key] = value
    return found
