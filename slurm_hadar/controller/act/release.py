"""Undo all steering at once: what an administrator wants at 3 a.m."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple

from slurm_hadar.comment import is_ours, read
from slurm_hadar.controller.agents.notes import Seal
from slurm_hadar.controller.journal import JobRecord, Journal, drop_earlier
from slurm_hadar.controller.steering import writes
from slurm_hadar.controller.steering.rules import put_off_by_us
from slurm_hadar.errors import StoreError
from slurm_hadar.model import JobState
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.state import SlurmJob, Write, WriteResult

__all__ = ["Released", "release_all"]


class Released(NamedTuple):
    """What Slurm said of each waiting job, and the ids of those that run on nodes that they were sent to: Slurm changes
    no node list of a running job, and one that is requeued waits for these nodes. ``others``: ids of those that are
    left, as another controller steers them. ``unwritten``: why the journal does not have it, "" if it has."""

    results: list[WriteResult]
    bound: list[str]
    others: list[str]
    unwritten: str = ""


def release_all(
    backend: Backend,
    journal: Journal,
    job_ids: tuple[str, ...] = (),
    seal: Seal | None = None,
    is_others: Callable[[SlurmJob], bool] = lambda _job: False,
    longest_s: float = math.inf,
) -> Released:
    """Make every steered or leased pending job eligible at once, on all nodes, in the shape its owner asked for.

    ``job_ids`` limits it to these; without them, jobs that ``is_others`` are left unless the journal says that they are
    steered from here. Works without the journal too: any pending job with a ``hadar:`` comment that is
    not eligible, and is to be so within ``longest_s``, the longest that a controller puts a job off, counts as leased;
    its owner's shape is then what ``seal`` vouches for, else what it has. Running jobs are left as they are.
    """
    seal = seal or Seal()
    records, until = journal.load_jobs(), time.time() + longest_s
    batch, bound, others = list[Write](), list[str](), list[str]()
    jobs = backend.read_jobs()
    drop_earlier(records, jobs)
    for job in jobs:
        if job_ids and job.job_id not in job_ids:
            continue
        record = records.get(job.job_id)
        write = _undo(job, record, seal, until)
        if write is None:
            continue
        if not job_ids and is_others(job) and not (record is not None and record.steered):
            others.append(job.job_id)
        elif job.state is JobState.PENDING:
            batch.append(write)
        elif job.req_nodes and job.state.active and job.requeue:
            bound.append(job.job_id)
    results = backend.write(batch)
    released = [records[r.job_id] for r in results if r.error is None and r.job_id in records]
    for record in released:
        record.steered, record.given, record.lease, record.defer_until = False, (), None, None
    try:
        journal.save_jobs(released)  # a controller that runs may know more of the others by now
    except StoreError as error:  # the jobs are released all the same, and that is to be told
        return Released(results, bound, others, str(error))
    return Released(results, bound, others)


def _undo(job: SlurmJob, record: JobRecord | None, seal: Seal, until: float) -> Write | None:
    if record is not None and record.steered:
        return writes.free(job, record)
    note = read(job.comment)[0]
    if job.req_nodes and note.asked is not None:
        if not seal.fits(job.job_id, job.user, note.asked, note.asked_mac):  # another host's controller placed it
            return writes.let_go(job)
        if record is None:  # of a job with shards the note counts these
            return writes.free(job, JobRecord(job.job_id, 0.0, 0, 0.0, *note.asked, shards=note.asked[0]))
    if job.eligible is None or job.eligible <= time.time():
        return None
    if record is not None:
        ours = record.deferred(job.eligible)
    else:  # what is later than any lease is its owner's wish
        ours = is_ours(job.comment) and (job.eligible <= until or put_off_by_us(job, None, note))
    return writes.lease([job], 0)[0] if ours else None
