"""What the batches of a round consist of: pure functions of what was seen and decided."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

from slurm_hadar.config import Mode
from slurm_hadar.controller.act.context import ActContext
from slurm_hadar.controller.act.refusals import TOLD
from slurm_hadar.controller.act.writer import PlannedWrite
from slurm_hadar.controller.journal import JobRecord, Purpose
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.safety.guard import Change, ChangeKind
from slurm_hadar.controller.steering import writes
from slurm_hadar.controller.steering.rules import may_relaunch, put_off_by_us
from slurm_hadar.controller.steering.writes import RESTART_GAP_S
from slurm_hadar.model import Job, JobState
from slurm_hadar.slurm.state import SlurmJob, Write

__all__ = ["back_in_queue", "given_back", "leases", "put_off", "releases", "requeues", "safe_from_start", "starts"]


def requeues(job_ids: Iterable[str], why: str = "") -> list[PlannedWrite]:
    """Running jobs go back into the queue."""
    return [PlannedWrite(w, Purpose.REQUEUE, why=why) for w in writes.requeue(job_ids)]


def safe_from_start(context: ActContext, jobs: Mapping[str, SlurmJob], changes: Iterable[Change]) -> list[PlannedWrite]:
    """Leases for waiting jobs that are to start on fewer nodes than they ask for, and that Slurm may start meanwhile:
    it would take the nodes for those to which a running job is to shrink, and end its tasks on the others, before it
    refuses the rest (seen on 22.05)."""
    soon = time.time() + RESTART_GAP_S
    exposed = [
        jobs[change.job_id]
        for change in changes
        if change.kind is ChangeKind.START
        and jobs[change.job_id].max_nodes > len(change.new.nodes)
        and (jobs[change.job_id].eligible or 0.0) <= soon
    ]
    return _leases(context, exposed)


def releases(seen: Observation, changes: Iterable[Change]) -> list[PlannedWrite]:
    """Jobs whose launch Slurm has failed, and holds for that, are tried once more."""
    return [
        PlannedWrite(Write("release", (c.job_id,)), Purpose.RELEASE)
        for c in changes
        if c.kind in (ChangeKind.START, ChangeKind.WAIT) and may_relaunch(seen.raw[c.job_id], seen.records[c.job_id])
    ]


def starts(
    context: ActContext, jobs: Mapping[str, SlurmJob], records: Mapping[str, JobRecord], changes: Iterable[Change]
) -> list[PlannedWrite]:
    """Waiting jobs that are to start; nothing for one that waits for exactly this placement already."""
    batch: list[PlannedWrite] = []
    for change in changes:
        if change.kind is ChangeKind.START:
            with context.quarantine.over(change.job_id, "starting it"):
                batch += _start(context, jobs[change.job_id], records[change.job_id], change)
    return batch


def _start(context: ActContext, job: SlurmJob, record: JobRecord, change: Change) -> list[PlannedWrite]:
    planned = _place(context, job, record, change, _fresh_s(job))
    shaped = any(name in ("NumNodes", "TresPerNode") for name, _ in planned.write.fields)
    deferred = job.eligible is None or job.eligible > time.time()
    if not shaped and not deferred and record.steered and set(job.req_nodes) == set(change.new.nodes):
        return []
    return [planned]


def _place(context: ActContext, job: SlurmJob, record: JobRecord, change: Change, gap_s: float) -> PlannedWrite:
    write = writes.place(job, record, change.new, context.seal, gap_s, change.shards)
    return PlannedWrite(write, Purpose.PLACE, defer_s=gap_s)


def put_off(context: ActContext, job: SlurmJob, record: JobRecord) -> PlannedWrite:
    """A lease, with the shape that the owner asked for."""
    return PlannedWrite(writes.defer(job, record, context.lease_s), Purpose.DEFER, defer_s=context.lease_s)


def leases(context: ActContext, seen: Observation, job_ids: Iterable[str]) -> list[PlannedWrite]:
    """Renew leases that would not last until the round after next, or last longer than they should (the clock was set
    back, or rounds follow each other faster now); free steered jobs of their node lists. None for jobs of inactive
    partitions only: Slurm refuses to change those, and starts none."""
    lease_s, now, inactive = context.lease_s, time.time(), _inactive(seen)
    plain: list[SlurmJob] = []
    steered: list[PlannedWrite] = []
    for job_id in job_ids:
        job, record = seen.raw[job_id], seen.records[job_id]
        if inactive.issuperset(job.partition.split(",")):
            continue
        if record.steered:
            with context.quarantine.over(job_id, "putting it off"):
                steered.append(put_off(context, job, record))
            continue
        ours = job.eligible is not None and job.eligible > now and record.deferred(job.eligible)
        if not ours or record.lease is None or abs(record.lease - now - lease_s) > lease_s / 4:
            plain.append(job)
    return [*steered, *_leases(context, plain)]


def _leases(context: ActContext, jobs: Iterable[SlurmJob]) -> list[PlannedWrite]:
    return [PlannedWrite(w, Purpose.LEASE, defer_s=context.lease_s) for w in writes.lease(jobs, context.lease_s)]


def back_in_queue(
    context: ActContext, seen: Observation, stops: Sequence[Change], left: Mapping[str, SlurmJob]
) -> list[PlannedWrite]:
    """Where or when the stopped jobs start again; ``left`` has those that Slurm shows now."""
    batch = []
    for change in stops:
        job, record = left[change.job_id], seen.records[change.job_id]
        with context.quarantine.over(change.job_id, "moving it"):
            if change.kind is ChangeKind.MOVE:
                batch.append(_place(context, job, record, change, _gap_s(change, seen.snapshot.job[change.job_id])))
            else:
                batch.append(put_off(context, job, record))
    return batch


def given_back(context: ActContext, seen: Observation) -> list[PlannedWrite]:
    """Jobs that wait, and are not to be steered any more, get their owners' shape and every node back: their node list
    is this controller's doing. Those that Slurm may start at any moment are not put off any more, either. None for jobs
    of inactive partitions only, and for those that are left alone since Slurm refuses what it is told of them."""
    batch, inactive = [], _inactive(seen)
    for job in seen.snapshot.jobs:
        record, raw = seen.records.get(job.job_id), seen.raw.get(job.job_id)
        if job.pinned is None or record is None or raw is None or raw.fault is not None:
            continue
        if raw.state is not JobState.PENDING or context.config.mode(raw.partition) is not Mode.ACT:
            continue
        if inactive.issuperset(raw.partition.split(",")) or context.quarantine.step(job.job_id) == TOLD:
            continue
        with context.quarantine.over(job.job_id, "giving it back"):
            if job.job_id in seen.at_once and put_off_by_us(raw, record, seen.comments[job.job_id]):
                gap_s = _fresh_s(raw)
                write = writes.defer(raw, record, gap_s) if record.steered else writes.lease([raw], gap_s)[0]
                batch.append(PlannedWrite(write, Purpose.GIVE_BACK, defer_s=gap_s, why=job.pinned))
            elif record.steered and raw.req_nodes:
                batch.append(PlannedWrite(writes.give_back(raw, record), Purpose.GIVE_BACK, why=job.pinned))
    return batch


def _inactive(seen: Observation) -> set[str]:
    return {p.name for p in seen.state.partitions if p.inactive}


def _fresh_s(job: SlurmJob) -> float:
    """How long a job that was stopped just now is not to start again."""
    just_stopped = job.restarts > 0 and job.submit is not None and time.time() - job.submit < RESTART_GAP_S
    return RESTART_GAP_S if just_stopped else 0.0


def _gap_s(change: Change, job: Job) -> float:
    """None is needed on nodes where the job was not killed just now: neither in this run, nor in one before that ended
    this very second."""
    elsewhere = set(change.old.nodes).isdisjoint(change.new.nodes)
    fresh = job.restarts > 0 and (job.started is None or time.time() - job.started < RESTART_GAP_S)
    return 0.0 if elsewhere and not fresh else RESTART_GAP_S
