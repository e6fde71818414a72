"""What is known of a job when it is submitted, and what it turned out to be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from slurm_hadar.errors import PredictionError
from slurm_hadar.model import JobState

__all__ = ["HistoryJob", "Submission", "from_rows", "over", "to_rows"]


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as it is known at its submission, and no more: all that a predictor may look at.

    Parameters
    ----------
    job_id: tells jobs apart; nothing else is read out of it.
    submit: epoch seconds, or seconds on a trace's clock.
    user, group: whose it is, and which of the user's series of like jobs it belongs to: the trace's group where it has
        one, else the job's name. An empty group belongs to no series.
    gpus: workers of the gang. gpu_type: the type that was asked for, or "".
    model, batch: the workload, where it is named.
    cpus, memory_gb: asked for in all; 0 = not known.
    steps_per_s: speed of the whole gang on the fastest GPU type, as estimated at the submission. Work is compared in
        ``steps / steps_per_s``, the seconds that a job takes alone, so that models with short and with long steps can
        be learned from together. 1 where a source knows run times only; a step is then a second.
    """

    job_id: str
    submit: float
    user: str = ""
    group: str = ""
    gpus: int = 1
    gpu_type: str = ""
    model: str = ""
    batch: int | None = None
    cpus: float = 0.0
    memory_gb: float = 0.0
    steps_per_s: float = 1.0

    def __post_init__(self) -> None:
        if not math.isfinite(self.submit) or not 0 < self.steps_per_s < math.inf or self.gpus < 1:
            raise PredictionError(
                f"job {self.job_id}: submit must be a finite time, gpus at least 1 and steps_per_s above 0, "
                f"not {self.submit!r}, {self.gpus!r} and {self.steps_per_s!r}"
            )

    @property
    def series(self) -> tuple[str, str] | None:
        """What recurs: a group of one user. None for a job of no group."""
        return (self.user, self.group) if self.group else None


@dataclass(frozen=True, slots=True)
class HistoryJob(Submission):
    """A job that is over. ``steps`` are what it did in all; ``start`` is None where only its end is known."""

    start: float | None = None
    end: float = math.inf
    steps: float = 0.0
    state: JobState = JobState.DONE

    def __post_init__(self) -> None:
        Submission.__post_init__(self)
        if not self.end >= self.submit:
            raise PredictionError(f"job {self.job_id}: end {self.end!r} lies before its submission {self.submit!r}")

    @property
    def teaches(self) -> bool:
        """Whether its length says how long its like will be: those that failed or were cancelled were cut short."""
        return self.state is JobState.DONE and 0 < self.alone_s < math.inf and math.isfinite(self.end)

    @property
    def alone_s(self) -> float:
        """Seconds that its steps take alone on the fastest type: the work that is predicted."""
        return self.steps / self.steps_per_s


def over(job: Submission, start: float | None, end: float, steps: float, state: JobState = JobState.DONE) -> HistoryJob:
    """What a submission has become. Raises PredictionError for an end before it."""
    known = {name: getattr(job, name) for name in Submission.__slots__}
    return HistoryJob(**known, start=start, end=end, steps=steps, state=state)


_COLUMNS = tuple(f.name for f in fields(HistoryJob))


def to_rows(jobs: Iterable[HistoryJob]) -> dict[str, list[Any]]:
    """Jobs as columns that JSON can hold."""
    records = [asdict(job) for job in jobs]
    return {c: [str(r[c]) if c == "state" else r[c] for r in records] for c in _COLUMNS}


def from_rows(rows: Mapping[str, list[Any]], name: str) -> tuple[HistoryJob, ...]:
    """The jobs of :func:`to_rows`. Raises PredictionError, with ``name`` in it, for anything else."""
    try:
        columns = [rows[c] for c in _COLUMNS]
        records = [dict(zip(_COLUMNS, values, strict=True)) for values in zip(*columns, strict=True)]
        return tuple(HistoryJob(**{**r, "state": JobState(r["state"])}) for r in records)
    except (KeyError, TypeError, ValueError) as error:
        raise PredictionError(f"{name}: is not a history of jobs ({error!r})") from None
