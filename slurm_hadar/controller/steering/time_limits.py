"""Time limits: on which GPU types a job is done within its own, and when it must save before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slurm_hadar.comment import JobComment
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.model import Job, Snapshot
from slurm_hadar.slurm.state import SlurmJob

__all__ = [
    "Overtime", "done_in_s", "goes_on", "grace_in_s", "left_s", "overtime", "types_within", "until_save_s",
]  # fmt: skip

_LEAST_SHARE = 0.25  # of a limit, for the training and for its save


@dataclass(frozen=True, slots=True)
class Overtime:
    """That a job does not get done within its time limit: ``limit_s`` from its start, or from now if it runs.

    ``needs_s``: seconds that it needs on each of the GPU types on which it does not; ``fits``: those on which it does;
    ``goes_on``: it saves at its limit, and goes on in another run.
    """

    limit_s: float
    needs_s: Mapping[str, float]
    fits: tuple[str, ...]
    goes_on: bool


def overtime(job: Job, comment: JobComment, record: JobRecord, now: float) -> Overtime | None:
    """Where what is left of a steered job does not fit into its time limit, of all GPU types that its owner accepts;
    None if it fits everywhere, or nobody knows."""
    if job.time_limit_s is None or not job.steerable or job.fork is not None:
        return None
    if job.running:
        remaining, rate = job.expected_remaining_steps, job.rate(job.placement)
        limit_s = max(0.0, (job.started or now) + job.time_limit_s - now)
        needs = {} if remaining is None or rate <= 0 else {"+".join(sorted(job.placement.by_type)): remaining / rate}
    else:
        limit_s = job.time_limit_s
        types = sorted(
            t for t in job.speeds if (comment.types is None or t in comment.types) and not job.form.shortage([t])
        )
        needs = {t: done for t in types if (done := done_in_s(job, t)) is not None}
    over = {t: s for t, s in needs.items() if s > limit_s}
    return Overtime(limit_s, over, tuple(t for t in needs if t not in over), goes_on(comment, record)) if over else None


def types_within(job: Job, limit_s: float) -> frozenset[str] | None:
    """The GPU types on which what is left of a waiting job, and its start, fit into ``limit_s``; None where that shuts
    none out, or all: a job that fits nowhere is not kept from running."""
    accepted = frozenset(t for t in job.speeds if job.form.admits_type(t))
    fits = frozenset(t for t in accepted if (done := done_in_s(job, t)) is not None and done <= limit_s)
    return None if not fits or fits == accepted else fits


def done_in_s(job: Job, gpu_type: str) -> float | None:
    """Seconds from now to its end if it starts on GPUs of this type with the gang that suits it best; None where
    nothing is known."""
    remaining = job.expected_remaining_steps
    rates = [s.steps_per_s for n in job.form.gang_sizes if (s := job.speeds_at(n).get(gpu_type)) is not None]
    best = max(rates, default=0.0)
    return None if remaining is None or best <= 0 else remaining / best + job.restart_cost_s


def goes_on(comment: JobComment, record: JobRecord) -> bool:
    """Whether the job goes back into the queue at its time limit: its owner said so, it resumes, and it has not yet run
    for as long as its owner lets it run in all. A copy of a forked job goes on from the newest consolidation."""
    resumes = record.resumable or comment.ckpt or comment.fork is not None
    if not comment.requeue_on_timeout or not resumes:
        return False
    return comment.max_time_s is None or record.ran_in_all_s < comment.max_time_s


def grace_in_s(limit_s: float, start_s: float | None, most_s: float) -> float:
    """So long before its limit a run is to save: ``most_s``, but not before it has trained.

    It would else save, and be put back, as soon as it begins, for ever, where its limit is short. A quarter of that
    is for the training, or more where its start takes longer than that, and a quarter for the save.
    """
    trains_s = max(_LEAST_SHARE * limit_s, 2 * (start_s or 0.0))
    return min(most_s, max(_LEAST_SHARE * limit_s, limit_s - trains_s))


def until_save_s(rest_s: float, job: SlurmJob, record: JobRecord, grace_s: float) -> float:
    """Seconds until a job with ``rest_s`` left (:func:`left_s`) is to save, at most ``grace_s`` before its limit."""
    return rest_s - grace_in_s(job.time_limit_s or 0.0, record.start_s, grace_s)


def left_s(snapshot: Snapshot, raw: Mapping[str, SlurmJob], now: float) -> dict[str, float]:
    """Seconds that each steered job that runs has until its time limit ends it; without jobs that have none."""
    found = {}
    for job in snapshot.steerable_jobs:
        shown = raw.get(job.job_id)
        if job.running and shown is not None and shown.time_limit_s is not None and shown.end:
            found[job.job_id] = shown.end - now
    return found
