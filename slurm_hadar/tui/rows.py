"""What a table of jobs shows: which jobs, in which order, and the texts of their cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_hadar.controller.answers.lines import Line, folded
from slurm_hadar.controller.observe.company import part_of_gpu
from slurm_hadar.controller.words import about, done, place, plain, sharing, sharing_in_short
from slurm_hadar.model import Placement
from slurm_hadar.names import by_number
from slurm_hadar.units import span

__all__ = ["COLUMNS", "SORTS", "Column", "UserRow", "by_user", "cells", "chosen", "first_task"]

#: (title, width; 0 = what is left, least width of the terminal at which it is shown)
Column = tuple[str, int, int]
COLUMNS: tuple[Column, ...] = (
    ("JOB", 12, 0), ("USER", 8, 0), ("NAME", 16, 112), ("STATE", 11, 0), ("GPUS", 4, 0), ("STEPS/S", 7, 90),
    ("DONE", 5, 0), ("PRICE", 6, 100), ("AGE", 8, 112), ("STARTS ABOUT", 36, 150), ("WHERE OR WHY", 0, 0),
)  # fmt: skip

_LAST = (1, 0.0)


def _known(value: float | None) -> tuple[int, float]:
    """What is not known comes last."""
    return _LAST if value is None else (0, value)


SORTS: dict[str, Callable[[Line], Any]] = {
    "state": lambda line: (line.state == "pending", line.state != "running", line.arrival),
    "job": lambda line: by_number(line.job_id),
    "user": lambda line: line.user,
    "GPUs": lambda line: -line.gpus,
    "speed": lambda line: _known(None if line.steps_per_s is None else -line.steps_per_s),
    "done": lambda line: _known(None if line.done_share is None else -line.done_share),
    "price": lambda line: _known(None if line.price is None else -line.price),
    "age": lambda line: line.arrival,
}


def chosen(lines: Sequence[Line], words: str, sort: str) -> list[Line]:
    """The jobs that have every word somewhere in their id, user, name, partition, state, place, types or reason;
    waiting tasks of a job array that are alike as one."""
    wanted = words.lower().split()
    found = folded(line for line in lines if all(word in _text(line) for word in wanted))
    return sorted(found, key=SORTS[sort])


def first_task(job_id: str) -> str:
    """The first of the tasks that a folded line stands for; a job's own id is left as it is."""
    return re.sub(r"_\[(\d+).*", r"_\1", job_id)


@dataclass
class UserRow:
    """What a user has: GPUs held by type, of one that several share each job's part, jobs that run, and jobs that
    wait."""

    user: str
    held: dict[str, float]
    running: int = 0
    waiting: int = 0


def by_user(lines: Iterable[Line]) -> list[UserRow]:
    """Those who hold most GPUs first, then those with most waiting jobs."""
    rows: dict[str, UserRow] = {}
    for line in lines:
        row = rows.setdefault(line.user, UserRow(line.user, {}))
        row.waiting += line.state == "pending"
        row.running += line.state != "pending"
        for gpu_type, count in _by_type(line.held or {}).items():
            row.held[gpu_type] = row.held.get(gpu_type, 0) + count * part_of_gpu(line.shares)
    return sorted(rows.values(), key=lambda r: (-sum(r.held.values()), -r.waiting, r.user))


def _by_type(held: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return Placement.of(held).by_type


def _text(line: Line) -> str:
    return " ".join(
        (line.job_id, line.user, line.name, line.partition, line.state, line.where, *line.types, line.why)
    ).lower()


def cells(line: Line, now: float, width: int) -> dict[str, str]:
    """The texts of a job by title of column; that of the last one in ``width`` characters if it can be said in so
    many."""
    starts = about(line.starts) if line.starts else "-"
    tasks = _tasks(line.job_id)
    return {
        "JOB": plain(line.job_id), "USER": plain(line.user), "NAME": plain(line.name),
        "STATE": f"{tasks} {line.state}" if tasks > 1 else line.state,
        "GPUS": str(line.gpus), "STEPS/S": _figure(line.steps_per_s),
        "DONE": done(line.done_share, line.size).replace(" ", ""), "PRICE": _figure(line.price),
        "AGE": span(now - line.arrival), "STARTS ABOUT": starts, "WHERE OR WHY": plain(_where_or_why(line, width)),
    }  # fmt: skip


def _tasks(job_id: str) -> int:
    """How many tasks a folded line stands for."""
    spans = re.search(r"_\[([\d,-]+)\]$", job_id)
    if spans is None:
        return 1
    ends = ([int(n) for n in part.split("-")] for part in spans[1].split(","))
    return sum(end[-1] - end[0] + 1 for end in ends)


def _where_or_why(line: Line, width: int) -> str:
    """In full where there is room; else what matters most: how many GPUs where, or what it waits for."""
    where = place(Placement.of(line.held)) if line.held else line.where if line.where != "-" else ""
    full = "; ".join(part for part in (where, sharing(line.shares), line.why) if part)
    if len(full) <= width:
        return full
    if line.held:
        beside, few = sharing_in_short(line.shares), _in_short(line.held)
        texts = [f"{where}; {beside}", f"{few}; {beside}", where] if beside else [where]
        return next((text for text in texts if len(text) <= width), few)
    short = _SHORT[line.tier](line) if line.tier in _SHORT else full
    begins = f"{short}, about {about(line.starts[:1])}" if line.starts else short
    return begins if len(begins) <= width else short


def _in_short(held: Mapping[str, Mapping[str, int]]) -> str:
    gpus = "+".join(f"{count}x{t}" for t, count in sorted(_by_type(held).items()))
    return f"{gpus} on {len(held)} nodes" if len(held) > 1 else f"{gpus} on {next(iter(held))}"


def _wanted(line: Line) -> str:
    types = _by_type(line.wanted or {})
    return "+".join(f"{n} {t}" for t, n in sorted(types.items())) or f"{line.gpus} GPUs"


#: What a wait of each tier comes to, in few words; its reason in full is among the details.
_SHORT: Mapping[str, Callable[[Line], str]] = {
    "cannot-run": lambda line: f"cannot run: {line.why}",
    "waits-for-capacity": lambda line: f"no {_wanted(line)} free",
    "waits-by-policy": lambda line: f"others first on {_wanted(line)}",
    "pinned": lambda line: f"Slurm's: {line.why}",
}


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
