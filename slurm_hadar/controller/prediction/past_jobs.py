"""Slurm's jobs as a predictor sees them: those of the accounting as history, those of the queue as questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from slurm_hadar.comment import read
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.steering.forms import gpus_asked
from slurm_hadar.errors import SlurmError
from slurm_hadar.model import JobState, Speed
from slurm_hadar.predict.history import HistoryJob, Submission
from slurm_hadar.slurm.accounting import AccountedJob
from slurm_hadar.slurm.state import SlurmJob
from slurm_hadar.throughput.estimator import Estimator

__all__ = ["history_of_accounting", "history_of_journal", "submission_of"]

_OVER = {"COMPLETED": JobState.DONE}
_GOES_ON = ("REQUEUED", "RESIZING")  # in one of these a record is of a run that is over, not of a job that is


def history_of_accounting(
    records: Iterable[AccountedJob],
    estimator: Estimator,
    gpu_types: Sequence[str],
    types_of: Mapping[str, str] | None = None,
) -> tuple[tuple[HistoryJob, ...], tuple[str, ...]]:
    """Jobs with GPUs that are over, and what had to be assumed, a line each.

    Accounting knows times, not steps: a job's steps are the time it ran, times its estimated speed on the GPU type it
    ran on (as recorded, else that of its first node in ``types_of``; of an unknown type it counts as the fastest one).
    ``gpu_types`` are the site's types, among which the fastest is looked for; it must be the same set whenever one
    history is put together. The group is the job's name. Only jobs that Slurm calls COMPLETED teach a predictor.
    """
    found, left_out, untyped = [], Counter[str](), 0
    for record in records:
        why = _unusable(record)
        if why:
            left_out[why] += 1
            continue
        comment, _ = read(record.comment)
        gpus = sum(record.gpus.values())
        speeds = estimator.speeds(comment.model or "", comment.batch, gpus, gpu_types)
        best = _best(speeds)
        ran_on = record.gpu_type(types_of or {})
        untyped += ran_on not in speeds
        rate = speeds[ran_on].steps_per_s if ran_on in speeds else best
        end = record.end if record.end is not None else record.submit + record.elapsed_s
        found.append(
            HistoryJob(
                record.job_id,
                record.submit,
                record.user,
                record.name,
                gpus,
                "",
                comment.model or "",
                comment.batch,
                steps_per_s=best,
                start=record.start,
                end=end,
                steps=record.elapsed_s * rate,
                state=_OVER.get(record.state, JobState.FAILED),
            )
        )
    return tuple(found), _assumptions(found, untyped, left_out)


def history_of_journal(
    records: Iterable[JobRecord], estimator: Estimator, gpu_types: Sequence[str]
) -> tuple[tuple[HistoryJob, ...], tuple[str, ...]]:
    """Jobs that the controller saw end, and what had to be assumed, a line each; as :func:`history_of_accounting`, on
    the same clock. What a job ran on each GPU type is counted for itself. A job that no round saw running is left out.
    """
    found, left_out = [], Counter[str]()
    for record in records:
        if record.ended is None or not record.ran_s or record.workers < 1:
            left_out["had not ended" if record.ended is None else "were never seen running on GPUs"] += 1
            continue
        speeds = estimator.speeds(record.model, record.batch, record.workers, gpu_types)
        best = _best(speeds)
        steps = sum(s * (speeds[t].steps_per_s if t in speeds else best) for t, s in record.ran_s.items())
        found.append(
            HistoryJob(
                record.job_id,
                record.arrival,
                record.user,
                record.name,
                record.workers,
                "",
                record.model,
                record.batch,
                steps_per_s=best,
                end=max(record.arrival, record.ended),
                steps=steps,
                state=_OVER.get(record.final, JobState.FAILED),
            )
        )
    return tuple(found), _assumptions(found, 0, left_out)


def submission_of(job: SlurmJob, estimator: Estimator, gpu_types: Sequence[str], submit: float) -> Submission:
    """A job of the queue, submitted at ``submit`` (epoch seconds). Raises SlurmError for one without GPUs."""
    comment, _ = read(job.comment)
    gpus = gpus_asked(job) or sum(request.count for request in job.gpus)
    if gpus < 1:
        raise SlurmError(f"job {job.job_id} asks for no GPUs: nothing is predicted for it", job_id=job.job_id)
    best = _best(estimator.speeds(comment.model or "", comment.batch, gpus, gpu_types))
    return Submission(
        job.job_id, submit, job.user, job.name, gpus, "", comment.model or "", comment.batch, steps_per_s=best
    )


def _unusable(record: AccountedJob) -> str:
    if record.gpus and record.state in _GOES_ON:
        return "had not ended"
    early = record.end is not None and record.end < record.submit
    return record.unusable or ("ended before they were submitted" if early else "")


def _best(speeds: Mapping[str, Speed]) -> float:
    return max((s.steps_per_s for s in speeds.values()), default=1.0)


def _assumptions(jobs: Sequence[HistoryJob], untyped: int, left_out: Counter[str]) -> tuple[str, ...]:
    lines = ["a job's work is the time it ran, times its estimated speed on the GPU type it ran on"]
    cut = sum(not job.teaches for job in jobs)
    if cut:
        lines.append(f"{cut} of {len(jobs)} jobs failed or were cancelled: nothing is learned from them")
    if untyped:
        lines.append(f"{untyped} of {len(jobs)} jobs ran on GPUs of an unknown type: counted as the fastest")
    return (*lines, *(f"{count} jobs are left out: they {why}" for why, count in sorted(left_out.items())))
