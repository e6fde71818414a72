"""Lengths of time in the unit that suits their size, and counts, for sentences, pages, tables and the axes of
pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

__all__ = ["Unit", "between", "counted", "lasting", "number", "span", "unit_of"]


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


def span(seconds: float | None) -> str:
    """A length of time in at most two units: ``45 s``, ``12 min``, ``3 h 05``, ``2 d 4 h``; ``-`` for what is not
    known."""
    if seconds is None:
        return "-"
    if not math.isfinite(seconds):
        return "an unknown time"
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d}"
    return f"{hours // 24} d {hours % 24} h"


def between(low_s: float, high_s: float) -> str:
    """An interval of lengths of time: ``45 s to 90 s``, ``2 min to 7 min``; seconds that stand beside minutes are
    minutes too, ``0 to 7 min``. One length where both read alike."""
    low, high = span(low_s), span(high_s)
    if low_s < 120 <= high_s:
        minutes = round(low_s / 60)
        low = f"{minutes} min" if minutes else "0"
    return high if low == high else f"{low} to {high}"


def counted(number: float, thing: str) -> str:
    """``1 job``, ``2 jobs``."""
    return f"{number:.0f} {thing}{'' if round(number) == 1 else 's'}"
