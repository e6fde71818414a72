"""Undoing a placement that did not take: the job gets back what its owner asked for."""

from __future__ import annotations

import time

from slurm_hadar.controller.act import batches
from slurm_hadar.controller.act.context import ActContext
from slurm_hadar.controller.act.writer import PlannedWrite, Writer, outcome_of
from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.journal import JobRecord, Purpose, WriteOutcome
from slurm_hadar.controller.safety.guard import Change
from slurm_hadar.controller.steering import writes
from slurm_hadar.controller.steering.lessons import keeps_back, note_unfit, of_one_partition
from slurm_hadar.controller.steering.rules import LAUNCH_FAILED, TRANSIENT_HOLDS
from slurm_hadar.slurm.state import SlurmJob, Write

__all__ = ["Undo"]

_AVOID_ROUNDS = 10  # for a node that Slurm refuses to a job, or where its script could not be launched
_HELD_BY_OTHERS = ("JobHeldAdmin", "JobHeldUser")


class Undo:
    """Takes placements back, and remembers where or when the job is not to be tried again for a while."""

    def __init__(self, context: ActContext, writer: Writer) -> None:
        self._context = context
        self._writer = writer

    def undo(self, record: JobRecord, change: Change, job: SlurmJob, outcome: Outcome, refused: bool = False) -> None:
        """``job`` waits, as Slurm shows it now; ``refused``: Slurm has refused to place it."""
        self._learn(record, change, job, refused)
        record.slow = 0
        planned = self._planned(record, job)
        batch = [planned]
        if job.held and job.reason in TRANSIENT_HOLDS:  # what we asked of Slurm made it hold the job
            batch.append(PlannedWrite(Write("release", (job.job_id,)), Purpose.RELEASE))
        sent = time.time()
        for taken, result in self._writer.send(batch, outcome):
            came = outcome_of(result) if result.error else WriteOutcome.UNDONE
            outcome.log.append(taken.entry(result.job_id, came, result.error or ""))
            if result.error is None and taken is planned:
                planned.remember(record, sent, time.time())

    def _planned(self, record: JobRecord, job: SlurmJob) -> PlannedWrite:
        theirs = job.eligible is not None and job.eligible > time.time() and not record.deferred(job.eligible)
        if theirs or (job.held and job.reason in _HELD_BY_OTHERS):  # the hold, and when it starts, are others' now
            return PlannedWrite(writes.give_back(job, record), Purpose.GIVE_BACK)
        return batches.put_off(self._context, job, record)

    def _learn(self, record: JobRecord, change: Change, job: SlurmJob, refused: bool) -> None:
        """What keeps the job back is no matter of these nodes, and its like are not tried for a while; anything else
        is, and the nodes are not. That a node which is up is not available passes, as when others leave it."""
        now, round_s = time.time(), self._context.config.controller.round_s
        lessons = self._context.lessons
        if job.held and job.reason in TRANSIENT_HOLDS:
            note_unfit(record, change.new.nodes, job.reason, now, round_s)
        elif keeps_back(job.reason) and not _about_nodes(job) and not job.held:
            lessons.learn(job, job.reason, now, round_s, tried=True)
        elif refused or job.held or (keeps_back(job.reason) and not job.reason.startswith("ReqNodeNotAvail")):
            record.keep_off(change.new.nodes, now + _AVOID_ROUNDS * round_s)
            lessons.vain.note(job, record, change.new.nodes, now, round_s)
        else:
            lessons.tried_in_vain(job, record, change.new.nodes, now, round_s)


def _about_nodes(job: SlurmJob) -> bool:
    """Whether Slurm keeps the job back for the nodes that it was given, not for what it is."""
    if of_one_partition(job):
        return True
    if job.reason.startswith("Reservation"):  # others', unless it is the job that names one
        return not job.reservation
    return job.reason.startswith(("ReqNodeNotAvail", "BadConstraints", "NodeDown", LAUNCH_FAILED))
