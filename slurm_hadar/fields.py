"""Tables, and fields of a line of text, read with errors that name file, line and field."""

from __future__ import annotations

import csv
import math
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from slurm_hadar.errors import TraceError

__all__ = [
    "LATEST_S", "LONGEST_S", "MOST_GPUS", "MOST_PAUSE_S", "MOST_STEPS_PER_S", "number", "options", "positive",
    "reading", "rows", "sizes", "unsigned", "whole", "within",
]  # fmt: skip

# Nobody means more than this, and with this nothing overflows, takes for ever, or is lost in a sum.
#: An arrival. Epoch seconds are arrivals too, until the year 2286.
LATEST_S = 1e10
#: A length of time: 32 years.
LONGEST_S = 1e9
#: What a start, a restart or a save takes: eleven days.
MOST_PAUSE_S = 1e6
#: GPUs of a job.
MOST_GPUS = 1_000_000
#: Of a job.
MOST_STEPS_PER_S = 1e9
_LEAST, _MOST = 1e-9, 10**15  # of what is above 0, and of whole numbers such as steps and bytes


@contextmanager
def reading(path: Path, what: str = "trace") -> Iterator[None]:
    """Around the reading of a file: raises TraceError, which calls it ``what``, if it is not there or is no text."""
    try:
        yield
    except FileNotFoundError:
        raise TraceError(f"{what} {path} does not exist") from None
    except (OSError, ValueError) as error:  # not text in UTF-8, or no name that a file can have
        raise TraceError(f"{what} {path} cannot be read: {error}") from None


def rows(
    lines: Iterable[str], name: str, required: Sequence[str], optional: Sequence[str], free: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, str]]]:
    """The lines of a CSV table with a header, each with its place; blank ones and those that begin with ``#`` count
    as none. ``free`` are columns such as ``steps_per_s:TYPE``, in which what stands behind the colon may
    be anything. Raises TraceError naming what is wrong."""
    numbered = [(i, line) for i, line in enumerate(lines, 1) if line.strip() and not line.startswith("#")]
    if not numbered:
        raise TraceError(f"{name}: is empty; the first line must name columns: {', '.join(required)} ...")
    header = [c.strip() for c in _split(numbered[0][1], f"{name}:{numbered[0][0]}")]
    _check_header(header, f"{name}:{numbered[0][0]}", required, optional, free)
    for line_number, line in numbered[1:]:
        where = f"{name}:{line_number}"
        values = _split(line, where)
        if len(values) != len(header):
            raise TraceError(f"{where}: {len(values)} fields where the header has {len(header)}")
        yield where, dict(zip(header, (v.strip() for v in values), strict=True))


def _split(line: str, where: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:
        raise TraceError(f"{where}: is no line of a CSV table: {error}") from None


def _check_header(
    header: list[str], where: str, required: Sequence[str], optional: Sequence[str], free: Sequence[str]
) -> None:
    missing = [c for c in required if c not in header]
    if missing:
        raise TraceError(f"{where}: column {missing[0]} is missing")
    prefixes = tuple(column.partition(":")[0] + ":" for column in free)
    for column in header:
        if column not in (*required, *optional) and not (prefixes and column.startswith(prefixes)):
            known = ", ".join((*required, *optional, *free))
            raise TraceError(f"{where}: unknown column {column!r}; valid: {known}")
    if len(set(header)) < len(header):
        raise TraceError(f"{where}: a column stands there twice")


def number(text: str, where: str, field: str) -> float:
    """A finite number, as tables have them: ``1_000`` and digits of other scripts are slips. Raises TraceError."""
    try:
        value = float(text) if text.isascii() and "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise TraceError(f"{where}: {field} must be a number, not {text!r}")
    return value


def within(text: str, where: str, field: str, least: float, most: float) -> float:
    """A number from ``least`` to ``most``. Raises TraceError."""
    value = number(text, where, field)
    if not least <= value <= most:
        raise TraceError(f"{where}: {field} must be from {least:g} to {most:g}, not {text!r}")
    return value


def unsigned(text: str, where: str, field: str, most: float) -> float:
    """A number of at least 0, and at most ``most``. Raises TraceError."""
    if number(text, where, field) < 0:
        raise TraceError(f"{where}: {field} must not be negative, not {text!r}")
    return within(text, where, field, 0, most)


def positive(text: str, where: str, field: str, most: float = _MOST) -> float:
    """A number above 0, of at most ``most``. Raises TraceError."""
    if number(text, where, field) <= 0:
        raise TraceError(f"{where}: {field} must be above 0, not {text!r}")
    return within(text, where, field, _LEAST, most)


def whole(text: str, where: str, field: str, least: int = 1, most: int = _MOST) -> int:
    """A whole number from ``least`` to ``most``. Raises TraceError."""
    value = number(text, where, field)
    if value != int(value) or value < least:
        raise TraceError(f"{where}: {field} must be a whole number of at least {least}, not {text!r}")
    if value > most:
        raise TraceError(f"{where}: {field} must be at most {most:g}, not {text!r}")
    return int(value)


def sizes(text: str, where: str, field: str) -> tuple[int, ...]:
    """Gang sizes: ``4``, or ``2-8`` for 2 doubled as often as it fits, and 8; or ``2+3+8`` for just these."""
    unclear = TraceError(f"{where}: {field} must be N, N-M with N <= M or N+M+..., not {text!r}")
    listed = "+" in text
    parts = text.split("+") if listed else text.split("-", 1)
    if not all(parts):
        raise unclear
    counts = [whole(part, where, field, most=MOST_GPUS) for part in parts]
    if listed or len(counts) == 1:
        return tuple(sorted({*counts}))
    least, most = counts
    if most < least:
        raise unclear
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
