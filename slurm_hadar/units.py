"""Lengths of time in the unit that suits their size, for pages, tables and the axes of pictures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Unit", "lasting", "number", "unit_of"]


class Unit(NamedTuple):
    """``name`` stands behind numbers, ``words`` on axes; ``least_s`` is from where on it is used."""

    name: str
    words: str
    seconds: float
    least_s: float


_UNITS = (
    Unit("d", "days", 86400.0, 4 * 86400.0),
    Unit("h", "hours", 3600.0, 3600.0),
    Unit("min", "minutes", 60.0, 120.0),
    Unit("s", "seconds", 1.0, 0.0),
)
_LEAST = 0.1


def unit_of(seconds: float) -> Unit:
    """The unit in which so many seconds read best; of several lengths together, ask for the longest."""
    return next((unit for unit in _UNITS if abs(seconds) >= unit.least_s), _UNITS[-1])


def lasting(seconds: float | None, among: Iterable[float | None] = ()) -> str:
    """``45.0 s``, ``3.25 h``; ``-`` for what is not known. ``among`` others, as in a column of a table, in the unit of
    the longest, unless it is next to nothing in that."""
    if seconds is None:
        return "-"
    unit = unit_of(max((abs(other) for other in among if other is not None), default=seconds))
    if abs(seconds) < _LEAST * unit.seconds:
        unit = unit_of(seconds)
    return f"{number(seconds / unit.seconds)} {unit.name}"


def number(value: float) -> str:
    """With three digits, and no decimals where there are more before the point."""
    size = abs(value)
    return "0" if size == 0 else f"{value:.2f}" if size < 9.995 else f"{value:.1f}" if size < 99.95 else f"{value:.0f}"
