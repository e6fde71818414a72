"""What the kernel tells of a process in one line, ``/proc/PID/stat`` (proc_pid_stat(5))."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

__all__ = ["Stat", "stat_of"]


class Stat(NamedTuple):
    """``state`` is the kernel's letter (``T`` and ``t``: stopped, ``Z`` and ``X``: ended); ``began`` is in ticks since
    the machine started, and with the number names a process for good; ``cpu_ticks`` are those it has used."""

    name: str
    state: str
    parent: int
    began: int
    cpu_ticks: int


def stat_of(pid: int) -> Stat:
    """Raises OSError where there is no such process."""
    # a process names itself: by any bytes, those of no text and parentheses too, or by what is left of a longer name
    text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 1 :].split()
    return Stat(name, rest[0], int(rest[1]), int(rest[19]), int(rest[11]) + int(rest[12]))
