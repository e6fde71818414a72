"""What the controller said of itself, and its journal against what it really sent."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections import Counter
from pathlib import Path

__all__ = ["changes_of", "check_log", "unexplained"]


def check_log(text: str) -> list[str]:
    """No defect reached the log: each end of the controller by itself has one clear line."""
    problems = []
    for trace in re.findall(r"Traceback \(most recent call last\):\n(?:.*\n)*?(\S.*)\n", text):
        if not trace.startswith(" "):
            problems.append(f"the controller's log has a traceback: {trace[:200]}")
    if "Fatal Python error" in text or "Segmentation fault" in text:
        problems.append("the controller crashed in C code")
    return list(dict.fromkeys(problems))


_VERBS = {"update JobId=": "update", "requeue incomplete ": "requeue", "requeue ": "restart", "release ": "release"}
_LEASE = re.compile(r"update \S+ (NumTasks=\d+ )?StartTime=now\+\d+")
_LINE = re.compile(rf"({'|'.join(_VERBS)})(\S+)(.*)")


def unexplained(folder: Path, state: Path, since: float = 0.0) -> tuple[int, list[str]]:
    """(changes sent to Slurm, those of which no journal in ``state`` tells). ``folder`` has what was sent; what was
    sent before ``since``, when a journal was cut, is left out. Of a job's leases the journal keeps the last: it tells
    of all of them."""
    sent: Counter[tuple[str, str]] = Counter()
    for file in folder.glob("*.sent"):
        if file.stat().st_mtime > since:
            sent.update(changes_of(file))
    told: Counter[tuple[str, str]] = Counter()
    for journal in state.glob("journal.db*"):
        if not journal.name.endswith(("-wal", "-shm")):
            told.update(_told(journal))
    leased = {job for job, what in told if _LEASE.fullmatch(what)}
    missing = {
        (job, what): n for (job, what), n in (sent - told).items() if not (_LEASE.fullmatch(what) and job in leased)
    }
    problems = [f"the journal does not tell of: {what} (job {job}, {n} times)" for (job, what), n in missing.items()]
    return sum(sent.values()), problems


def changes_of(file: Path) -> list[tuple[str, str]]:
    """(job, command) of one call of scontrol or scancel."""
    if file.name.startswith("scancel"):
        words = file.read_text().split()
        return [] if words[:1] and words[0].startswith("--signal") else [(job, "cancel") for job in words]
    found = []
    for line in file.read_text().splitlines():
        match = _LINE.fullmatch(line)
        if match:
            verb = _VERBS[match[1]]
            fields = re.sub(r'="([^"]*)"', r"=\1", match[3]) if verb == "update" else ""
            found += [(job, f"{verb} {job}{fields}") for job in match[2].split(",")]
    return found


def _told(journal: Path) -> list[tuple[str, str]]:
    with (
        contextlib.suppress(sqlite3.Error),
        contextlib.closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db,
    ):
        return [(job, command) for job, command in db.execute("SELECT job_id, command FROM writes")]
    return []
