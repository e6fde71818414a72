"""The job tracker of HadarE: how far each forked job is, who works on it, and how its next periods are shared out.

It knows what the copies report and which of them Slurm runs. It needs no PyTorch and holds no truth: that is in the
consolidations in the job's directory, which the copies make also without it. So a tracker that is restarted, or whose
database is lost, learns all again from the next reports. What it adds is what copies cannot know by themselves: at once
that a copy is gone, the expected speed of one that was never measured, and that the job's other tasks need not run.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from slurm_hadar import forks
from slurm_hadar.comment import JobComment
from slurm_hadar.controller.agents.complaints import Complaints
from slurm_hadar.forks import PeriodPlan
from slurm_hadar.messages import Report
from slurm_hadar.model import Job

__all__ = ["Copy", "JobTracker", "ForkedJob"]

ENOUGH = 0.1  # shares that differ by less are not worth a new plan
_LONGEST_S = 100 * forks.LONGEST_PERIOD_S  # of a period, whatever its owner wants; no agent takes a longer one
LEAVES_WITHIN_S = 30.0  # copies end by themselves when all steps are done; later they are cancelled


@dataclass(slots=True)
class Copy:
    """One copy as last heard of. ``running``: it trains, or may; ``ended``: its program has, and its script goes on.
    ``rate`` is in steps/s: measured, or expected where it was not yet."""

    job_id: str
    running: bool = False
    ended: bool = False
    rate: float = 0.0
    measured: bool = False
    stall_s: float | None = None


@dataclass(slots=True)
class ForkedJob:
    """One forked job. ``steps`` of ``total`` are in consolidation ``number``, as far as was heard; a copy's steps count
    only there. ``closer`` is the copy that ends the script; ``done_at`` when it was heard that all steps are done, in
    monotonic seconds."""

    job_id: str
    total: float | None = None
    number: int = -1
    steps: int = 0
    closer: int | None = None
    done_at: float | None = None
    period_steps: int | None = None
    period_s: float | None = None
    copies: dict[int, Copy] = field(default_factory=dict)
    sent: PeriodPlan | None = None

    @property
    def working(self) -> list[int]:
        """Numbers of the copies that run."""
        return sorted(number for number, copy in self.copies.items() if copy.running)


class JobTracker:
    """All forked jobs. Thread-safe: reports come on the channel's thread, looks from the loop.

    Parameters
    ----------
    send: ``send(job_id, plan)`` passes a plan on to a copy's agent; False if that cannot be reached.
    known: (number, steps, total, closer) by parent, from before a restart of the controller.
    """

    def __init__(
        self,
        send: Callable[[str, PeriodPlan], bool],
        known: Mapping[str, tuple[int, int, float | None, int | None]] | None = None,
    ) -> None:
        self._send = send
        self._lock = threading.RLock()
        self._parents: dict[str, ForkedJob] = {}
        self._known = dict(known or {})
        self._complaints = Complaints("forked job")

    def get(self, parent: str) -> ForkedJob | None:
        """What is known of a forked job by its id, or None; the tracker's own, which goes on changing."""
        with self._lock:
            return self._parents.get(parent)

    def state(self) -> dict[str, tuple[int, int, float | None, int | None]]:
        """What must outlive a restart, by parent, as given to the constructor."""
        with self._lock:
            return {p.job_id: (p.number, p.steps, p.total, p.closer) for p in self._parents.values()}

    def forget(self, parents: Iterable[str]) -> None:
        """What is known from before a restart of jobs with these ids is other jobs', whose ids were used again."""
        with self._lock:
            for parent in parents:
                self._known.pop(parent, None)

    # What comes in

    def hear(self, report: Report) -> None:
        """Take in a report, if it is from a copy of a job that is known to be forked."""
        parent_id, _, index = report.job.partition("_")
        with self._lock:
            parent = self._parents.get(parent_id)
            if parent is None or not index.isdecimal():
                return
            copy = parent.copies.setdefault(int(index), Copy(report.job))
            before = copy.running
            copy.ended = report.kind == "bye"
            copy.running = not copy.ended
            if report.steps_per_s:
                copy.rate, copy.measured = report.steps_per_s, True
            copy.stall_s = report.consolidate_s if report.consolidate_s is not None else copy.stall_s
            self._hear_progress(parent, int(index), report)
            if copy.running != before or copy.measured:
                self._plan(parent)

    def _hear_progress(self, parent: ForkedJob, index: int, report: Report) -> None:
        if report.consolidation is None or report.consolidated_steps is None:
            return
        if report.closes:
            parent.closer = index
            parent.done_at = parent.done_at or time.monotonic()
        if report.consolidation < parent.number:
            return  # a copy that has not heard yet of the newest
        if report.consolidated_steps < parent.steps:
            self._complaints.say(
                f"job {parent.job_id}: consolidation {report.consolidation} has {report.consolidated_steps} steps "
                f"where {parent.steps} were heard of before; was a file damaged?",
                parent.job_id,
            )
        parent.number, parent.steps = report.consolidation, report.consolidated_steps
        parent.total = report.total_steps or parent.total

    def take_in(self, copies: Iterable[tuple[Job, JobComment]]) -> None:
        """What Slurm shows of all copies, once a round."""
        with self._lock:
            shown: dict[str, dict[int, Job]] = {}
            for job, comment in copies:
                index = job.job_id.rpartition("_")[2]
                if index.isdecimal():
                    shown.setdefault(job.parent, {})[int(index)] = job
                    parent = self._parents.get(job.parent) or self._begin(job)
                    parent.period_steps, parent.period_s = comment.period_steps, comment.period_s
            for parent_id in [p for p in self._parents if p not in shown]:
                del self._parents[parent_id]
            for parent_id, jobs in shown.items():
                self._take_in_job(self._parents[parent_id], jobs)

    def _begin(self, job: Job) -> ForkedJob:
        parent = ForkedJob(job.parent, job.total_steps)
        if job.parent in self._known:
            parent.number, parent.steps, parent.total, parent.closer = self._known.pop(job.parent)
            if parent.closer is not None:  # it said so before the restart, and need not live to say it again
                parent.done_at = time.monotonic()
        self._parents[job.parent] = parent
        return parent

    def _take_in_job(self, parent: ForkedJob, jobs: Mapping[int, Job]) -> None:
        changed = False
        for index in [i for i in parent.copies if i not in jobs]:
            changed = parent.copies.pop(index).running or changed
        for index, job in jobs.items():
            copy = parent.copies.setdefault(index, Copy(job.job_id))
            copy.ended = copy.ended and job.running
            running = job.running and not copy.ended
            changed = changed or copy.running != running
            copy.running = running
            if not job.running:
                copy.measured = False  # the next node is another
            if not copy.measured:
                copy.rate = job.rate(job.placement)
            parent.total = parent.total or job.total_steps
        if changed:
            self._plan(parent)

    # What goes out

    def _plan(self, parent: ForkedJob) -> None:
        """Tell all copies the quotas, if these are news: any copy may be the one that deals the next shares."""
        if parent.closer is not None or not parent.working:
            return
        try:
            quotas, seconds = self._quotas(parent)
        except (ArithmeticError, ValueError) as error:  # its copies go on by what they know themselves
            self._complaints.say(f"job {parent.job_id}: the next periods cannot be shared out: {error}", parent.job_id)
            return
        last = parent.sent
        if not quotas or (last is not None and not _differs(last.quotas, quotas)):
            return
        serial = max(int(time.time() * 1000), last.serial + 1 if last else 0)
        plan = PeriodPlan(serial, max(0, parent.number), quotas, seconds)
        reached = [self._send(parent.copies[index].job_id, plan) for index in parent.working]
        if any(reached):
            parent.sent = plan

    def _quotas(self, parent: ForkedJob) -> tuple[dict[int, int], float | None]:
        """Steps per copy, and the seconds that they are for; none are known before any copy has a speed."""
        rates = {index: parent.copies[index].rate for index in parent.working}
        if parent.period_steps is not None:
            return forks.quotas(rates, parent.period_steps), None
        stalls = [s for i in parent.working if (s := parent.copies[i].stall_s) is not None]
        seconds = (
            min(parent.period_s, _LONGEST_S)
            if parent.period_s
            else forks.period_s(statistics.median(stalls) if stalls else None)
        )
        steps = forks.period_steps(list(rates.values()), seconds)
        return (forks.quotas(rates, steps) if steps else {}), seconds

    def with_progress(self, job: Job) -> Job:
        """The copy with the steps of the whole job; pinned once these are all done, since then it only ends."""
        with self._lock:
            parent = self._parents.get(job.parent)
            if parent is None:
                return job
            total = parent.total if parent.total is not None else job.total_steps
            done = replace(job, total_steps=total, done_steps=float(parent.steps))
            if parent.closer is None or job.pinned is not None:
                return done
            return replace(done, pinned=f"all {parent.steps} steps of job {parent.job_id} are done; its copies end")

    def to_cancel(self, now: float) -> dict[str, str]:
        """Copies that need not run any more, and why: those that wait, and those that should have ended by themselves.

        The copy that ends the script is left alone, wherever it is, and so is what the others' scripts do after their
        program: that is their owner's. ``now`` is in monotonic seconds.
        """
        found = {}
        with self._lock:
            for parent in self._parents.values():
                if parent.closer is None or parent.done_at is None:
                    continue
                why = f"all steps of job {parent.job_id} are done; copy {parent.closer} ends it"
                for index, copy in parent.copies.items():
                    overdue = now - parent.done_at > LEAVES_WITHIN_S
                    if index != parent.closer and not copy.ended and (not copy.running or overdue):
                        found[copy.job_id] = why
        return found


def _differs(old: Mapping[int, int], new: Mapping[int, int]) -> bool:
    if old.keys() != new.keys():
        return True
    return any(abs(new[i] - old[i]) > ENOUGH * max(1, old[i]) for i in new)
