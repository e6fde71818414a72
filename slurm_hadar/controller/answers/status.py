"""One job at a glance, for its owner: what Slurm says now, what the journal knows, what is expected."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_hadar import messages
from slurm_hadar.config import Config
from slurm_hadar.controller.answers.expectation import Answer, answer
from slurm_hadar.controller.answers.lines import Line
from slurm_hadar.controller.answers.peek import peek
from slurm_hadar.controller.answers.told import as_given
from slurm_hadar.controller.answers.view import by_journal, shown_lines, silence
from slurm_hadar.controller.journal import JobRecord, Reader, Run, Stage
from slurm_hadar.errors import HadarError, SlurmError, SlurmUnavailable
from slurm_hadar.model import Basis, Job, Speed
from slurm_hadar.names import by_number
from slurm_hadar.slurm.accounting import AccountedJob
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.shown import Shown, accounted, shown

__all__ = ["Saved", "Status", "Task", "first_task", "status_of", "tail"]

_SAVED = re.compile(r"gen-\d{1,9}-step-(\d{1,18})")
_TAIL_BYTES = 16 * 1024
_MOST_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class Saved:
    """The newest complete checkpoint: its step, and when it was written (epoch seconds; None = not known)."""

    step: int
    time: float | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """A task of a job array that is over, by Slurm's word or the journal's."""

    job_id: str
    word: str


@dataclass(frozen=True)
class Status:
    """``line`` is that of ``hadar queue``, None for a job that is over; ``word`` then says how it ended. ``tasks`` and
    ``over`` are those of a job array, for which there is nothing else. ``faults``: what could not be asked, and why.
    ``away``: Slurm could not."""

    job_id: str
    line: Line | None = None
    shown: Shown | None = None
    record: JobRecord | None = None
    accounted: AccountedJob | None = None
    runs: tuple[Run, ...] = ()
    speeds: Mapping[str, Speed] = field(default_factory=dict)
    expected: Answer | None = None
    saved: Saved | None = None
    tasks: tuple[Line, ...] = ()
    over: tuple[Task, ...] = ()
    fork: Mapping[str, Any] | None = None
    faults: tuple[str, ...] = ()
    away: bool = False

    @property
    def state(self) -> str:
        """As Slurm names it, in small letters; ``gone`` for a job of which nobody knows how it ended. While Slurm is
        away, what the last round has seen."""
        if self.line is not None:
            return self.line.state
        if self.shown is not None:
            return self.shown.word.lower()
        if self.accounted is not None:
            return self.accounted.state.lower()
        if self.away and self.record is not None and self.record.stage is not Stage.OVER:
            return "running" if self.record.stage is Stage.RUNNING else "pending"
        return self.record.final.lower() if self.record is not None and self.record.final else "gone"

    @property
    def measured(self) -> dict[str, float]:
        """Steps per second by GPU type, where the job, or one like it, was measured."""
        return {t: s.steps_per_s for t, s in sorted(self.speeds.items()) if s.basis is Basis.MEASURED}


@dataclass(frozen=True, slots=True)
class _Known:
    """What the queue and the journal say of a job, or of an array by its tasks. ``hidden``: why there is little of the
    queue, ``away``: why there is none; these and more are ``faults``."""

    line: Line | None
    tasks: tuple[Line, ...]
    past: tuple[Task, ...]
    record: JobRecord | None
    runs: tuple[Run, ...]
    fork: Mapping[str, Any] | None
    hidden: str
    away: str
    faults: tuple[str, ...]


def status_of(backend: CliBackend, config: Config, job_id: str) -> Status:
    """All that is known of one job, an array or a task of one. Raises HadarError if nobody knows it, or nobody can be
    asked."""
    known = _known(backend, config, job_id)
    seen = None if known.away else shown(backend.ask, job_id)
    if seen is not None and not known.tasks and seen.job_id != job_id:
        if not job_id.isdecimal():  # Slurm takes the number of a task, which has no tasks, for that of its array
            raise HadarError(f"job {job_id} is not known; Slurm knows {seen.job_id}")
        return status_of(backend, config, seen.job_id)
    told, fault = _accounted(backend, known, seen, job_id)
    faults = [*known.faults, *([fault] if fault else [])]
    line = known.line
    if line is None and (known.tasks or known.past or any("_" in job.job_id and job.job_id != job_id for job in told)):
        over = known.past or tuple(Task(job.job_id, job.state.lower()) for job in told)
        return Status(job_id, tasks=known.tasks, over=over, fork=known.fork, faults=tuple(faults))
    if line is None and seen is None and known.record is None and not told:
        raise HadarError(
            known.away or f"job {job_id} is known neither to Slurm (squeue, sacct) nor to the controller's journal"
        )
    foreseen = line is not None and not known.away and not known.hidden
    expected, speeds, fault = _expected(backend, config, job_id) if foreseen else (None, {}, "")
    faults += [fault] if fault else []
    return Status(
        job_id,
        line,
        seen,
        known.record,
        next(iter(told), None),
        known.runs,
        speeds,
        expected,
        _saved(known.record, seen, job_id, backend),
        fork=known.fork,
        faults=tuple(faults),
        away=bool(known.away),
    )


def _known(backend: CliBackend, config: Config, job_id: str) -> _Known:
    def tell(journal: Reader, unread: str) -> _Known:
        lines, hidden, away = _lines(backend, config, journal)
        line = next((line for line in lines if line.job_id == job_id), None)
        tasks = tuple(sorted(_of(job_id, lines), key=lambda line: by_number(line.job_id)))
        silent = silence(journal, config, time.time()) if line is not None or tasks else ""
        faults = (f"decisions and progress are not known: {unread}" if unread else "", silent, hidden, away)
        return _Known(
            line,
            tasks,
            _past_tasks(job_id, journal, {task.job_id for task in tasks}),
            journal.job(job_id),
            tuple(journal.runs_of(job_id)),
            _fork(journal.forks().get(job_id.partition("_")[0])),
            hidden,
            away,
            tuple(fault for fault in faults if fault),
        )

    return by_journal(config, tell)


def _accounted(
    backend: CliBackend, known: _Known, seen: Shown | None, job_id: str
) -> tuple[tuple[AccountedJob, ...], str]:
    """What Slurm's accounts have of a job that is not in its memory, and why they cannot be asked."""
    if known.line is not None or known.tasks or known.away or (seen is not None and not known.past):
        return (), ""
    try:
        return accounted(backend.ask, job_id), ""
    except SlurmUnavailable as error:  # the accounts' daemon: the journal may know more
        if known.record is None and not known.past:
            raise
        return (), str(error)


def _lines(backend: CliBackend, config: Config, journal: Reader) -> tuple[list[Line], str, str]:
    """The queue, why there is little of it, and why there is none."""
    try:
        return *shown_lines(backend, config, journal), ""
    except SlurmError as error:
        return [], "", str(error)


def _of(array_id: str, lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.job_id.startswith(f"{array_id}_")]


def _past_tasks(array_id: str, journal: Reader, active: set[str]) -> tuple[Task, ...]:
    """The tasks of an array that are over, as far as the journal knows."""
    known = [journal.job(job_id) for job_id in journal.tasks(array_id)]
    over = [r for r in known if r is not None and r.stage is Stage.OVER and r.job_id not in active]
    return tuple(Task(r.job_id, r.final.lower()) for r in over)


def first_task(journal: Reader, job_id: str) -> str:
    """Of an array that the controller has seen, the first task that is not over; any other job is itself. Raises
    HadarError where all are over."""
    tasks = [record for task in journal.tasks(job_id) if (record := journal.job(task))]
    going_on = [record.job_id for record in tasks if record.stage is not Stage.OVER]
    if tasks and not going_on:
        raise HadarError(f"all tasks of job array {job_id} are over: hadar status {job_id} says how they ended")
    return min(going_on, key=by_number, default=job_id)


def _expected(backend: CliBackend, config: Config, job_id: str) -> tuple[Answer | None, Mapping[str, Speed], str]:
    """What the next rounds would do, and what is known of its speed; a job that nobody can foresee is no failure."""
    config = as_given(config)
    try:
        now = peek(backend, config)
        job: Job | None = now.snapshot.job.get(job_id)
        return answer(now, job_id, config), {} if job is None else job.speeds, ""
    except HadarError as error:
        return None, {}, f"nothing can be foreseen: {error}"


def _fork(known: tuple[int, int, float | None, int | None] | None) -> Mapping[str, Any] | None:
    if known is None:
        return None
    return dict(zip(("consolidation", "steps", "total_steps", "closer"), known, strict=True))


def _saved(record: JobRecord | None, seen: Shown | None, job_id: str, backend: CliBackend) -> Saved | None:
    """From what the job reported, or from its own directory, which only its owner looks into."""
    reported = record.saved_step if record is not None else None
    work_dir = seen.work_dir if seen is not None else Path(record.work_dir) if record and record.work_dir else None
    found = _newest(work_dir, job_id, backend) if work_dir is not None else None
    if found is not None and (reported is None or found.step >= reported):
        return found
    return None if reported is None else Saved(int(reported))


def _newest(work_dir: Path, job_id: str, backend: CliBackend) -> Saved | None:
    best: Saved | None = None
    for home in messages.job_homes(os.getuid()):
        directory = work_dir / home / job_id / messages.CHECKPOINTS_DIR
        try:
            if directory.lstat().st_uid != os.getuid() or not _of_this_cluster(directory.parent, backend):
                continue
            with os.scandir(directory) as entries:
                for entry, _ in zip(entries, range(_MOST_ENTRIES), strict=False):
                    name = _SAVED.fullmatch(entry.name)
                    if name and (best is None or int(name[1]) > best.step):
                        best = Saved(int(name[1]), entry.stat(follow_symlinks=False).st_mtime)
        except OSError:  # not there, or not to be seen from here
            continue
    return best


def _of_this_cluster(directory: Path, backend: CliBackend) -> bool:
    """Job ids begin anew on another cluster with the same home directories. Where nobody knows it is this one's."""
    owner = messages.owner_of(directory)
    if owner is None or not owner.cluster:
        return True
    try:
        return owner.cluster == (backend.cluster_name() or owner.cluster)
    except SlurmError:
        return True


def tail(path: Path, most: int = 5) -> list[str]:
    """The last lines of a job's output, [] where it cannot be read or is no plain file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return []
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        return []
    with os.fdopen(descriptor, "rb") as file:
        file.seek(max(0, found.st_size - _TAIL_BYTES))
        text = file.read(_TAIL_BYTES).decode(errors="replace")
    lines = [line.rpartition("\r")[2] for line in text.rstrip().split("\n")]  # of a progress bar what stands there last
    return [line[:200] for line in lines[-most:] if line]
