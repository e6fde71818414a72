"""Carry out a round's changes, verify each by reading back, and undo what did not take.

Order: ask the jobs to be stopped for a checkpoint and wait for their word; then one batch with the requeues, the
starts and the leases; when the stopped jobs have left their nodes, a second batch that places or leases them; then
read back. Killed at any point, what is left is a queue that goes on by itself: nothing is ever held.
"""

from __future__ import annotations

import time
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from slurm_hadar.controller.act import batches
from slurm_hadar.controller.act.checkpoints import Checkpoints
from slurm_hadar.controller.act.context import ActContext
from slurm_hadar.controller.act.limits import LimitSaves
from slurm_hadar.controller.act.seats import seated
from slurm_hadar.controller.act.verifier import Verifier
from slurm_hadar.controller.act.writer import PlannedWrite, Writer
from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.controller.agents.spools import SpoolReader
from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.journal import Purpose, WriteOutcome, WriteRecord
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.safety.guard import Change, ChangeKind, fit
from slurm_hadar.controller.steering import writes
from slurm_hadar.controller.steering.bounds import QuotaBook
from slurm_hadar.controller.steering.read_back import Pace
from slurm_hadar.errors import SlurmError, StoreError
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import SlurmJob

__all__ = ["Actor"]

_UP_TO_DATE_S = 3.0
_FAILED_AT_ONCE = "it failed in the moment of a restart"


class Actor:
    """Everything that writes to Slurm. Its methods raise SlurmUnavailable if slurmctld goes away; what was done until
    then stands, and is in ``outcome``.

    Parameters
    ----------
    context: what its parts share. channel, spool: how jobs are asked to save, and answer.
    announce: told of each write before it is sent.
    """

    def __init__(
        self,
        context: ActContext,
        channel: Channel | None,
        spool: SpoolReader,
        announce: Callable[[Iterable[WriteRecord]], object] = list,
    ) -> None:
        self.context = context
        self._checkpoints = Checkpoints(context, channel, spool)
        self._writer = Writer(context.backend, announce)
        self._limits = LimitSaves(context, self._checkpoints, self._writer)
        self._verifier = Verifier(context, self._writer)
        self._heard: set[str] = set()

    def carry_out(self, seen: Observation, changes: Sequence[Change], outcome: Outcome) -> None:
        """Do it all, noting it in ``outcome``."""
        began = time.monotonic()
        changes = seated(seen, changes, QuotaBook(seen.state).may_have_shards)
        saves = self._checkpoints.save(seen, [c for c in changes if c.kind.stops])
        outcome.marks["saved"] = time.time()
        outcome.changes = fit(seen.snapshot, changes, saves.vetoed)
        stopped = {c.job_id for c in outcome.changes if c.kind.stops}
        self._checkpoints.let_go(saves.ready - stopped)
        try:
            self._write(seen, outcome)
        except (SlurmError, StoreError):
            # who was not stopped after all must not wait for the end of its pause
            self._checkpoints.let_go(saves.ready & stopped)
            raise
        self._checkpoints.forget(stopped)
        outcome.act_s = time.monotonic() - began
        self._verifier.verify(seen, outcome)
        outcome.verify_s = time.monotonic() - began - outcome.act_s

    def answered(self) -> bool:
        """Whether a job that was asked has saved since, so that it can be moved now; said once of each save."""
        asked = [*self._checkpoints.asked.items(), *self._limits.asked.items()]
        saved = {job_id for job_id, one in asked if self._checkpoints.has_saved(job_id, one)}
        news, self._heard = saved - self._heard, saved
        return bool(news)

    @property
    def waits(self) -> bool:
        """Whether any job was asked for a checkpoint that is not there yet."""
        return bool(self._checkpoints.asked or self._limits.asked)

    def let_go(self) -> None:
        """Who was asked to save, and stands still for it, goes on: nobody is stopped for now."""
        self._checkpoints.let_go(set(self._checkpoints.asked))
        self._limits.let_go()

    def restart(self, seen: Observation, outcome: Outcome) -> None:
        """Put the jobs that failed in the moment of a restart back into the queue. Tried once, whatever Slurm says."""
        for job_id in seen.retries:
            seen.records[job_id].relaunched += 1
        batch = [PlannedWrite(w, Purpose.RESTART, why=_FAILED_AT_ONCE) for w in writes.restart(seen.retries)]
        self._writer.write(batch, seen.records, outcome)

    def cancel(self, jobs: Mapping[str, str], outcome: Outcome) -> None:
        """End jobs; ``jobs`` says why."""
        self._writer.cancel(jobs, outcome)

    def give_back(self, seen: Observation, outcome: Outcome) -> None:
        """Undo the steering of jobs that are not to be steered any more."""
        self._writer.write(batches.given_back(self.context, seen), seen.records, outcome)

    def before_limits(self, seen: Observation, outcome: Outcome) -> None:
        """Jobs that come to their time limit save, and go back into the queue where their owners let them."""
        self._limits.carry_out(seen, outcome)

    def _write(self, seen: Observation, outcome: Outcome) -> None:
        context, changes = self.context, outcome.changes
        jobs = self._as_they_are(seen, changes)
        started = self._writer.write(batches.safe_from_start(context, jobs, changes), seen.records, outcome)
        changes = [c for c in changes if c.job_id not in started]
        stops = [c for c in changes if c.kind.stops]
        leases = batches.leases(context, seen, [c.job_id for c in changes if c.kind is ChangeKind.WAIT])
        batch = batches.requeues(c.job_id for c in stops)
        batch += batches.releases(seen, changes)
        batch += batches.starts(context, jobs, seen.records, changes)
        outcome.leases = sum(len(planned.write.job_ids) for planned in leases)
        refused = self._writer.write([*batch, *leases], seen.records, outcome)
        outcome.marks["written"] = time.time()
        for change in stops:
            if change.job_id in refused:
                self._checkpoints.tell_to_go_on(change.job_id)
        self._after_stop(seen, [c for c in stops if c.job_id not in refused], outcome)

    def _as_they_are(self, seen: Observation, changes: Iterable[Change]) -> Mapping[str, SlurmJob]:
        """The jobs by id; those that are to start are looked at again if others took their time to save, as an owner
        may have changed one since: what is written goes by its comment and shape."""
        starts = {c.job_id for c in changes if c.kind is ChangeKind.START}
        if not starts or time.time() - seen.state.time < _UP_TO_DATE_S:
            return seen.raw
        return ChainMap({j.job_id: j for j in self.context.backend.each_job() if j.job_id in starts}, dict(seen.raw))

    def _after_stop(self, seen: Observation, stops: Sequence[Change], outcome: Outcome) -> None:
        """When the stopped jobs are back in the queue, say where or when each starts again."""
        if not stops:
            return
        left = self._await_end([c.job_id for c in stops])
        outcome.marks["left"] = time.time()
        back = []
        for change in stops:
            job = left.get(change.job_id)
            if job is not None and job.state is JobState.PENDING:
                record = seen.records[change.job_id]
                record.moves += 1
                record.ran_on = ()  # nothing of that run is left there
                back.append(change)
            elif job is None:
                outcome.ended.add(change.job_id)
                outcome.log.append(_requeued(change, WriteOutcome.OK, "ended"))
            else:
                still = f"still {job.state_text.lower()} when time was up"
                outcome.log.append(_requeued(change, WriteOutcome.INEFFECTIVE, still))
        self._writer.write(batches.back_in_queue(self.context, seen, back, left), seen.records, outcome)

    def _await_end(self, job_ids: Collection[str]) -> dict[str, SlurmJob]:
        """The stopped jobs once none of them runs or ends any more, or time is up; ended jobs are left out."""
        deadline = time.monotonic() + self.context.config.jobs.end_timeout_s
        pace, wanted = Pace(), set(job_ids)
        while True:
            self.context.alive()
            jobs = {j.job_id: j for j in self.context.backend.each_job() if j.job_id in wanted and j.state.active}
            busy = [j for j in jobs.values() if j.state is not JobState.PENDING]
            if not busy or time.monotonic() > deadline:
                return jobs
            pace.sleep()


def _requeued(change: Change, outcome: WriteOutcome, detail: str) -> WriteRecord:
    """What came of a requeue, as seen and not as told by Slurm."""
    return WriteRecord(change.job_id, f"requeue {change.job_id}", outcome, detail, Purpose.REQUEUE)
