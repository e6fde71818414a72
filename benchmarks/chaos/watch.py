"""What must hold, looked at while the faults go on, and at the end."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.campaigns.watch import Lookout
from benchmarks.chaos.inject import SET_ASIDE, Injector
from benchmarks.chaos.jobs import ForkedJob, PlainJob
from benchmarks.chaos.stage import Stage
from slurm_hadar.model import JobState
from slurm_hadar.runtime.forks.meeting import MeetingDirectory

__all__ = ["End", "Watch", "check_end", "check_result", "steps_counted_twice"]

REQUEUE_DELAY_S = 121.0  # Slurm's own, after each requeue
LEASE_S = 20.0
SLACK_S = 6.0
HELD_FOR_S = 30.0
SLURM_FORGETS_S = 20.0  # what slurmctld had not saved yet when it was killed, it does again
_UNSURE = re.compile(r"kill-slurmctld|kill-slurmd|lose-node")


class Watch(Lookout):
    """Notes jobs that are held or deferred for too long."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage.daemon, stage.backend)
        self.held_since: dict[str, float] = {}

    def look(self) -> None:
        if (state := self.read()) is None:
            return
        held = set()
        for job in state.jobs:
            if job.state is not JobState.PENDING:
                continue
            if job.held:
                held.add(job.job_id)
                since = self.held_since.setdefault(job.job_id, state.time)
                if state.time - since > HELD_FOR_S:
                    self.complain(f"job {job.job_id} is held ({job.reason})")
            longest = max(LEASE_S, REQUEUE_DELAY_S if job.restarts else 0.0) + SLACK_S
            if job.eligible is not None and job.eligible - state.time > longest:
                ahead = job.eligible - state.time
                self.complain(f"job {job.job_id} is deferred for {_rough(ahead)} s, longer than any lease")
        for job_id in set(self.held_since) - held:
            del self.held_since[job_id]


def _rough(seconds: float) -> int:
    """So that the same finding is told once, not once a second."""
    return round(seconds / 100) * 100


@dataclass
class End:
    """What the end of an episode shows. ``again`` are programs that Slurm had run again after it had lost their end."""

    problems: list[str] = field(default_factory=list)
    again: int = 0
    completed: int = 0
    restarts: int = 0


def check_end(stage: Stage, injector: Injector, plain: list[PlainJob], forked: list[ForkedJob]) -> End:
    """All jobs are over and as they should be; nothing is left."""
    end = End()
    jobs = {j.job_id: j for j in stage.backend.read_jobs()}
    for job in plain:
        found = jobs.get(job.job_id)
        if found is None:
            end.problems.append(f"job {job.job_id} ({job.name}) is lost: Slurm does not know it any more")
        elif found.state is not JobState.DONE:
            what = found.reason if found.state is JobState.PENDING else _last_words(job.said)
            end.problems.append(f"job {job.job_id} ({job.name}) is {found.state_text.lower()}: {what}")
        else:
            end.completed += 1
            end.restarts += found.restarts
        check_result(job, injector, end)
    for fork in forked:
        _check_forked(fork, end)
    end.problems += [
        f"the checkpoints of a job were taken for another's: {folder.name}"
        for folder in stage.work.glob(f".hadar/*{SET_ASIDE}*")
    ]
    left = [j for j in jobs.values() if j.state.active]
    ours = {j.job_id for j in plain}
    end.problems += [
        f"job {j.job_id} is left in the queue ({j.state_text} {j.reason})" for j in left if j.job_id not in ours
    ]
    return end


def check_result(job: PlainJob, injector: Injector, end: End) -> None:
    ends = job.ends()
    if not ends:
        end.problems.append(f"job {job.job_id} ({job.name}) gave no result: {_last_words(job.said)}")
        return
    for one in ends:
        if (one["steps"], one["weights"]) != (job.steps, job.expected):
            end.problems.append(
                f"job {job.job_id} ({job.name}) ended with other weights than the undisturbed run: "
                f"{one['weights'][:12]} after {one['steps']} steps, not {job.expected[:12]} after {job.steps}"
            )
    for before, one in itertools.pairwise(ends):
        if _slurm_lost_the_end(before["time"], one["time"], injector):
            end.again += 1
        else:
            end.problems.append(
                f"job {job.job_id} ({job.name}) came to its end twice, {one['time'] - before['time']:.0f} s apart "
                f"(runs {before['run']} and {one['run']}), and no daemon of Slurm was away"
            )


def _slurm_lost_the_end(first: float, second: float, injector: Injector) -> bool:
    """Whether a daemon was away, or had lost its memory, when the program ended for the first time: Slurm then starts
    the job anew, and its program has nothing to do but to end once more."""
    return any(
        _UNSURE.fullmatch(kind) and since < second and first < until + SLURM_FORGETS_S
        for kind, since, until in injector.spans
    )


def _check_forked(job: ForkedJob, end: End) -> None:
    rooms = list(job.room.glob("fork-*"))
    newest = MeetingDirectory(rooms[0], 99).newest() if rooms else None
    if newest is None or (newest.step, tuple(newest.to_do)) != (job.steps, ()):
        end.problems.append(
            f"forked job {job.job_id}: its consolidations end at step {newest.step if newest else None}, "
            f"not at {job.steps}: {_last_words(*job.said)}"
        )
    ends = job.ends()
    if not ends:
        end.problems.append(f"forked job {job.job_id}: no copy came to the end of the script: {_last_words(*job.said)}")
        return
    end.completed += 1
    if any(one["steps"] != job.steps for one in ends) or len({one["weights"] for one in ends}) > 1:
        end.problems.append(f"forked job {job.job_id}: its ends differ: {ends}")


def _last_words(*files: Path) -> str:
    lines = [line for f in files if f.exists() for line in f.read_text(errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-3:]) or "no output"


def steps_counted_twice(stage: Stage, plain: list[PlainJob]) -> list[str]:
    """The journal's steps of a job that ended are the job's steps, never more."""
    problems = []
    with (
        contextlib.suppress(sqlite3.Error, ValueError),
        contextlib.closing(sqlite3.connect(f"file:{stage.state / 'journal.db'}?mode=ro", uri=True)) as db,
    ):
        records = {job: json.loads(text) for job, text in db.execute("SELECT job_id, record FROM jobs")}
        for job in plain:
            steps = records.get(job.job_id, {}).get("steps", 0.0)
            if steps > job.steps:
                problems.append(f"the journal has {steps:.0f} steps of job {job.job_id}, which has only {job.steps}")
    return problems
