"""What Slurm shows of a round's jobs after it was told what to do with them, and what to make of it."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from slurm_hadar.controller.safety.guard import Change
from slurm_hadar.controller.steering.forms import gpus_asked
from slurm_hadar.controller.steering.lessons import keeps_back
from slurm_hadar.controller.steering.rules import TRANSIENT_HOLDS
from slurm_hadar.controller.steering.writes import RESTART_GAP_S
from slurm_hadar.model import JobState
from slurm_hadar.slurm.node_lists import fold
from slurm_hadar.slurm.state import SlurmJob

__all__ = ["Pace", "ReadBack", "Verdict", "overdue", "verdict"]

FIRST_LOOK_S, LONGEST_LOOK_S = 0.1, 2.0


@dataclass(frozen=True)
class ReadBack:
    """``jobs``: those that were looked for, and whatever else does not wait any more. ``begins``: of the jobs that were
    only put off, the epoch second from which each may start; None = any time. A queue is long, and nearly all of it is
    only put off."""

    jobs: dict[str, SlurmJob] = field(default_factory=dict)
    begins: dict[str, float | None] = field(default_factory=dict)

    @classmethod
    def of(cls, shown: Iterable[SlurmJob], wanted: Collection[str], put_off: Collection[str]) -> ReadBack:
        """Of all that Slurm shows what was ``wanted``, or was only ``put_off``."""
        found = cls()
        for job in shown:
            if job.job_id in wanted or (job.job_id in put_off and job.state is not JobState.PENDING):
                found.jobs[job.job_id] = job
            elif job.job_id in put_off:
                found.begins[job.job_id] = job.eligible
        return found

    def begin(self, job_id: str) -> float | None:
        """From when the job may start; None also where it was not seen."""
        job = self.jobs.get(job_id)
        return self.begins.get(job_id) if job is None else job.eligible

    def waits(self, job_id: str) -> bool:
        """Whether the job waits to be started; one that was not seen does if it was put off."""
        job = self.jobs.get(job_id)
        return job_id in self.begins if job is None else job.state is JobState.PENDING


class Pace:
    """Waits that grow, so that waiting long asks little of slurmctld."""

    def __init__(self) -> None:
        self._next_s = FIRST_LOOK_S

    def sleep(self, until: float = 0.0) -> None:
        """Sleep the next wait, or until the epoch second ``until`` if that comes soon."""
        coming = until - time.time()
        if 0 < coming <= RESTART_GAP_S:
            time.sleep(coming)
            return
        time.sleep(self._next_s)
        self._next_s = min(LONGEST_LOOK_S, 1.3 * self._next_s)


def overdue(job: SlurmJob) -> bool:
    """Whether it still waits for a start time that has come: Slurm has not noticed yet."""
    return job.reason == "BeginTime" and job.eligible is not None and job.eligible <= time.time()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a placement; ``fault`` says why it is not good."""

    good: bool
    fault: str = ""


def verdict(job: SlurmJob | None, change: Change, before: str, tasks: int | None = None) -> Verdict | None:
    """Whether the job runs where it should; None for "wait a little". ``before``: Slurm's reason when the round
    began, which stands until Slurm has looked at the job again. ``tasks``: how many it was told, if it was."""
    if job is None or not job.state.active:
        return Verdict(True)  # started and ended between two looks, or its owner cancelled it
    if job.state in (JobState.RUNNING, JobState.COMPLETING):
        if set(job.nodes) != set(change.new.nodes):
            return Verdict(False, f"runs on {fold(job.nodes)} instead")
        held = gpus_asked(job)
        if held not in (None, change.new.workers):
            return Verdict(False, f"runs with {held} GPUs instead")
        even = -1 if tasks is None else len(job.nodes) * math.ceil(tasks / len(job.nodes))
        good = tasks is None or job.num_tasks in (tasks, even)  # of 5 tasks, 2 on each node, Slurm counts 6
        return Verdict(good, "" if good else f"runs with {job.num_tasks} tasks instead of {tasks}")
    if job.held or (keeps_back(job.reason) and (job.reason != before or job.reason in TRANSIENT_HOLDS)):
        return Verdict(False, job.reason or "held")
    return None
