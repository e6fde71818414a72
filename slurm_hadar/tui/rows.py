"""What a table of jobs shows: which jobs, in which order, and the texts of their cells."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from slurm_hadar.controller.view import Line
from slurm_hadar.controller.words import about, place, plain, span
from slurm_hadar.model import Placement

__all__ = ["COLUMNS", "SORTS", "Column", "cells", "chosen"]

#: (title, width; 0 = what is left, least width of the terminal at which it is shown)
Column = tuple[str, int, int]
COLUMNS: tuple[Column, ...] = (
    ("JOB", 9, 0), ("USER", 8, 0), ("NAME", 16, 112), ("STATE", 9, 0), ("GPUS", 4, 0), ("STEPS/S", 7, 0),
    ("DONE", 5, 0), ("PRICE", 6, 0), ("AGE", 8, 112), ("STARTS ABOUT", 36, 150), ("WHERE OR WHY", 0, 0),
)  # fmt: skip

_LAST = (1, 0.0)


def _known(value: float | None) -> tuple[int, float]:
    """What is not known comes last."""
    return _LAST if value is None else (0, value)


SORTS: dict[str, Callable[[Line], Any]] = {
    "state": lambda line: (line.state == "pending", line.state != "running", line.arrival),
    "job": lambda line: [
        (0, int(p), "") if p.isdigit() else (1, 0, p) for p in line.job_id.replace("+", "_").split("_")
    ],
    "user": lambda line: line.user,
    "GPUs": lambda line: -line.gpus,
    "speed": lambda line: _known(None if line.steps_per_s is None else -line.steps_per_s),
    "done": lambda line: _known(None if line.done_share is None else -line.done_share),
    "price": lambda line: _known(None if line.price is None else -line.price),
    "age": lambda line: line.arrival,
}


def chosen(lines: Sequence[Line], words: str, sort: str) -> list[Line]:
    """The jobs that have every word somewhere in their id, user, name, partition, state, place, types or reason."""
    wanted = words.lower().split()
    found = [line for line in lines if all(word in _text(line) for word in wanted)]
    return sorted(found, key=SORTS[sort])


def _text(line: Line) -> str:
    return " ".join(
        (line.job_id, line.user, line.name, line.partition, line.state, line.where, *line.types, line.why)
    ).lower()  # fmt: skip


def cells(line: Line, now: float) -> dict[str, str]:
    """The texts of a job by title of column."""
    where = place(Placement.of(line.held)) if line.held else line.where if line.where != "-" else ""
    starts = about(line.starts) if line.starts else "-"
    return {
        "JOB": plain(line.job_id), "USER": plain(line.user), "NAME": plain(line.name), "STATE": line.state,
        "GPUS": str(line.gpus), "STEPS/S": _figure(line.steps_per_s),
        "DONE": "-" if line.done_share is None else f"{100 * line.done_share:.0f}%", "PRICE": _figure(line.price),
        "AGE": span(now - line.arrival), "STARTS ABOUT": starts,
        "WHERE OR WHY": plain("; ".join(part for part in (where, line.why) if part)),
    }  # fmt: skip


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
