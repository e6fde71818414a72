"""Reading back: whether every placed job runs where it should, and every lease holds."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

from slurm_hadar.controller.act.context import ActContext
from slurm_hadar.controller.act.undo import Undo
from slurm_hadar.controller.act.writer import PlannedWrite, Writer
from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.journal import JobRecord, Purpose, WriteOutcome, WriteRecord
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.safety.guard import Change, ChangeKind
from slurm_hadar.controller.steering import writes
from slurm_hadar.controller.steering.lessons import keeps_back
from slurm_hadar.controller.steering.read_back import Pace, ReadBack, Verdict, overdue, verdict
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import SlurmJob

__all__ = ["Verifier"]

_MOST_SLOW = 2  # rounds in which a placement may not start, as where a job waits its turn


class Verifier:
    """Waits until every placed job runs where it should, and undoes what Slurm will not do."""

    def __init__(self, context: ActContext, writer: Writer) -> None:
        self._context = context
        self._writer = writer
        self._undo = Undo(context, writer)

    def verify(self, seen: Observation, outcome: Outcome) -> None:
        """What was read last is ``outcome.shown``."""
        refused = {w.job_id for w in outcome.log if w.outcome in (WriteOutcome.REFUSED, WriteOutcome.OVERTAKEN)}
        placed = {c.job_id: c for c in outcome.changes if c.kind.occupies}
        for change in self._await_starts(seen, outcome, placed, refused):
            self._late(seen.records[change.job_id], change, outcome)
        for job_id in sorted(refused & placed.keys() - outcome.denied.keys()):
            job = outcome.shown.jobs.get(job_id)
            if _waits(job):
                self._undo.undo(seen.records[job_id], placed[job_id], job, outcome, refused=True)
        if any(w.outcome in (WriteOutcome.UNDONE, WriteOutcome.OVERTAKEN) for w in outcome.log):
            self._read_back(outcome, refused)
        outcome.log[:] = [_as_seen(w, outcome.shown) for w in outcome.log]
        _check_leases(seen.records, outcome)

    def _await_starts(
        self, seen: Observation, outcome: Outcome, placed: Mapping[str, Change], refused: Collection[str]
    ) -> Collection[Change]:
        """Until all that were not refused are decided, or time is up; returns those that are not. Time runs from when
        the last of them may start."""
        open_ = {job_id: change for job_id, change in placed.items() if job_id not in refused}
        gap_s = max((w.defer_s for w in outcome.log if w.job_id in open_ and w.purpose is Purpose.PLACE), default=0.0)
        deadline = time.monotonic() + gap_s + self._context.config.jobs.start_timeout_s
        pace, nudged = Pace(), set[str]()
        while outcome.log or open_:
            self._context.alive()
            jobs = self._read_back(outcome, refused)
            for job_id, change in list(open_.items()):
                tasks = writes.tasks_told(seen.raw[job_id], seen.records[job_id], change.new)
                found = verdict(jobs.get(job_id), change, seen.raw[job_id].reason, tasks)
                if found is not None:
                    del open_[job_id]
                    self._conclude(seen.records[job_id], change, found, outcome)
            if not open_ or time.monotonic() > deadline or self._context.stopping():
                break
            late = [i for i in open_ if i not in nudged and overdue(jobs[i])]
            nudged.update(late)
            self._nudge([jobs[i] for i in late], outcome)
            pace.sleep(until=min((jobs[i].eligible or 0.0 for i in open_), default=0.0))
        return open_.values()

    def _read_back(self, outcome: Outcome, refused: Collection[str]) -> Mapping[str, SlurmJob]:
        wanted = {c.job_id for c in outcome.changes if c.kind is not ChangeKind.WAIT}.union(refused)
        outcome.shown = ReadBack.of(self._context.backend.each_job(), wanted, {w.job_id for w in outcome.log})
        return outcome.shown.jobs

    def _nudge(self, jobs: Sequence[SlurmJob], outcome: Outcome) -> None:
        """A start time that passes is no event to Slurm: with little else going on it starts the job half a minute
        late. An update is one. A refusal only says that the job has started meanwhile: it is told, and no failure."""
        if not jobs:
            return
        batch = [PlannedWrite(w, Purpose.NUDGE) for w in writes.lease(jobs, 0)]
        for planned, result in self._writer.send(batch, outcome):
            why = f"needless: {result.error}" if result.error else ""
            outcome.log.append(planned.entry(result.job_id, WriteOutcome.OK, why))

    def _conclude(self, record: JobRecord, change: Change, found: Verdict, outcome: Outcome) -> None:
        job = outcome.shown.jobs.get(change.job_id)
        if found.good:
            record.slow = 0
            if job is not None and job.configuring:
                record.readied = dict.fromkeys(job.nodes, job.start or time.time())
            return
        outcome.log.append(_placed(change, WriteOutcome.INEFFECTIVE, found.fault))
        if _waits(job):
            self._undo.undo(record, change, job, outcome)

    def _late(self, record: JobRecord, change: Change, outcome: Outcome) -> None:
        """A job that only waits its turn gets one more round; after that the placement counts as not working."""
        job = outcome.shown.jobs.get(change.job_id)
        reason = "gone" if job is None else job.reason
        outcome.log.append(_placed(change, WriteOutcome.SLOW, f"not started yet: {reason}"))
        record.slow += 1
        if _waits(job) and (record.slow > _MOST_SLOW or keeps_back(job.reason)):
            self._undo.undo(record, change, job, outcome)


def _waits(job: SlurmJob | None) -> TypeGuard[SlurmJob]:
    return job is not None and job.state is JobState.PENDING


def _placed(change: Change, outcome: WriteOutcome, detail: str) -> WriteRecord:
    """What came of a placement, as seen and not as told by Slurm."""
    return WriteRecord(change.job_id, f"place {change.new}", outcome, detail, Purpose.PLACE)


def _as_seen(write: WriteRecord, shown: ReadBack) -> WriteRecord:
    """A placement that was refused while Slurm started the job came too late, whatever words it was refused in."""
    job = shown.jobs.get(write.job_id)
    late = write.purpose is Purpose.PLACE and write.outcome is WriteOutcome.REFUSED
    return (
        replace(write, outcome=WriteOutcome.OVERTAKEN)
        if late and job is not None and job.state is JobState.RUNNING
        else write
    )


def _check_leases(records: Mapping[str, JobRecord], outcome: Outcome) -> None:
    """A leased job must be pending and not yet eligible, unless it was placed after that; one that started all the same
    is only worth a note. One that was put off until the node is ready for it again is to start, and late if it does
    not."""
    for write in [w for w in outcome.log if w.defer_s > 0 and w.purpose is not Purpose.PLACE]:
        record, begin = records.get(write.job_id), outcome.shown.begin(write.job_id)
        if record is None or record.lease is None or record.placed or not outcome.shown.waits(write.job_id):
            continue
        if begin is None or begin < time.time():
            record.lease = None
            outcome.log.append(replace(write, outcome=WriteOutcome.INEFFECTIVE, detail=f"eligible: {begin}"))
