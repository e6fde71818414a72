"""What a predictor may know of a job: figures from jobs that were over before it was submitted."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from slurm_hadar.predict.history import HistoryJob, Submission

__all__ = ["FEATURES", "Fallback", "Past", "Sample", "samples", "walk"]

#: The columns of a row, in order; what each is stands in :meth:`Past.row`.
FEATURES = (
    "series_count", "series_mean", "series_last", "series_median", "series_spread", "series_recent", "series_age",
    "user_count", "user_mean", "user_median", "shape_median", "model_mean", "all_median", "gpus", "cpus", "memory",
    "day_sin", "day_cos", "weekday",
)  # fmt: skip
_RECENT = 0.4  # weight of the newest run in a series' exponential average
_DAY_S = 86400.0
_NEVER_S = 30 * _DAY_S
_EPOCH_WEEKDAY = 3  # 1 January 1970 was a Thursday; Monday is 0


class Fallback(NamedTuple):
    """The best plain guess: log of the seconds alone, and whose median it is: group, user, shape or all."""

    log_s: float
    level: str


class _Tally:
    """Figures over logs of seconds, kept up to date one by one. ``total_s`` sums the seconds themselves."""

    __slots__ = ("_sum", "_sum2", "last", "last_end", "logs", "recent", "total_s")

    def __init__(self) -> None:
        self.logs: list[float] = []
        self._sum = self._sum2 = self.total_s = self.last = self.recent = 0.0
        self.last_end = -math.inf

    def add(self, log_s: float, end: float) -> None:
        self.recent = log_s if not self.logs else _RECENT * log_s + (1 - _RECENT) * self.recent
        bisect.insort(self.logs, log_s)
        self._sum += log_s
        self._sum2 += log_s * log_s
        self.total_s += math.exp(log_s)
        self.last, self.last_end = log_s, end

    @property
    def count(self) -> int:
        return len(self.logs)

    @property
    def mean(self) -> float:
        return self._sum / len(self.logs)

    @property
    def median(self) -> float:
        middle, odd = divmod(len(self.logs), 2)
        return self.logs[middle] if odd else (self.logs[middle - 1] + self.logs[middle]) / 2

    @property
    def spread(self) -> float:
        """Standard deviation; 0 for one value."""
        return math.sqrt(max(0.0, self._sum2 / len(self.logs) - self.mean**2))

    @property
    def mean_s(self) -> float:
        """Arithmetic mean of the seconds."""
        return self.total_s / len(self.logs)


class Past:
    """Jobs that are over, as far as they teach: by series, user, shape (GPUs and type) and model.

    A Past knows nothing of the time: it is the caller's to add only what had ended. :func:`walk` does that for a whole
    history, :class:`slurm_hadar.predict.online.Online` as jobs come and go. Adding is O(log n) and a short move of
    memory, a row O(1).
    """

    def __init__(self, jobs: Iterable[HistoryJob] = ()) -> None:
        self._tallies: dict[tuple[str, object], _Tally] = {}
        for job in sorted(jobs, key=lambda j: (j.end, j.job_id)):
            self.add(job)

    def add(self, job: HistoryJob) -> None:
        """Take in a job that has ended, in the order of the ends. Those that teach nothing are passed over."""
        if not job.teaches:
            return
        log_s = math.log(job.alone_s)
        for key in _keys(job).values():
            self._tallies.setdefault(key, _Tally()).add(log_s, job.end)

    def tally(self, what: str, job: Submission) -> _Tally | None:
        """What is known of the job's ``series``, ``user``, ``shape``, ``model`` or of ``all``; None = nothing."""
        key = _keys(job).get(what)
        return None if key is None else self._tallies.get(key)

    def runs(self, job: Submission) -> int:
        """How often the job's series has ended before."""
        tally = self.tally("series", job)
        return 0 if tally is None else tally.count

    def mean_s(self, what: str, job: Submission) -> float | None:
        """Mean seconds alone of the job's ``series``, ``user`` or of ``all``."""
        tally = self.tally(what, job)
        return None if tally is None else tally.mean_s

    def fallback(self, job: Submission) -> Fallback | None:
        """The median of the series, else of the user, of jobs with as many GPUs of the type, of all; None = no past."""
        for what, level in (("series", "group"), ("user", "user"), ("shape", "shape"), ("all", "all")):
            tally = self.tally(what, job)
            if tally is not None:
                return Fallback(tally.median, level)
        return None

    def row(self, job: Submission) -> tuple[float, ...] | None:
        """The features of ``job``, in the order of :data:`FEATURES`; None if nothing has ended yet.

        Figures of the series, the user, the shape and the model are means, medians, standard deviations and an
        exponential average of logs of seconds alone; where there are none, :meth:`fallback` stands in, and the count of
        0 says so. ``series_age`` is the log of the seconds since the series' last end. The mean of a series, user or
        model takes the place of its name (target encoding, over the past only). Our selection.
        """
        plain = self.fallback(job)
        everybody = self.tally("all", job)
        if plain is None or everybody is None:
            return None
        series, user, shape, model = (self.tally(w, job) for w in ("series", "user", "shape", "model"))
        guess = plain.log_s
        age_s = _NEVER_S if series is None else max(1.0, min(_NEVER_S, job.submit - series.last_end))
        days, second = divmod(job.submit, _DAY_S)
        angle = 2 * math.pi * second / _DAY_S
        of_series = (
            (0.0, guess, guess, guess, -1.0, guess)
            if series is None
            else (math.log1p(series.count), series.mean, series.last, series.median, series.spread, series.recent)
        )
        of_user = (0.0, guess, guess) if user is None else (math.log1p(user.count), user.mean, user.median)
        return (
            *of_series,
            math.log(age_s),
            *of_user,
            guess if shape is None else shape.median,
            everybody.mean if model is None else model.mean,
            everybody.median,
            math.log2(job.gpus),
            math.log1p(job.cpus),
            math.log1p(job.memory_gb),
            math.sin(angle),
            math.cos(angle),
            (days + _EPOCH_WEEKDAY) % 7,
        )


def _keys(job: Submission) -> dict[str, tuple[str, object]]:
    keys: dict[str, tuple[str, object]] = {"shape": ("shape", (job.gpus, job.gpu_type)), "all": ("all", None)}
    if job.series is not None:
        keys["series"] = ("series", job.series)
    if job.user:
        keys["user"] = ("user", job.user)
    if job.model:
        keys["model"] = ("model", (job.model, job.batch))
    return keys


@dataclass(frozen=True, slots=True)
class Sample:
    """One job to learn from: its features at its submission, and what it turned out to be (log of seconds alone)."""

    job: HistoryJob
    row: tuple[float, ...]
    seen: bool

    @property
    def log_s(self) -> float:
        """What is to be predicted from ``row``."""
        return math.log(self.job.alone_s)


def walk(jobs: Iterable[HistoryJob]) -> Iterator[tuple[HistoryJob, Past]]:
    """Every job in order of submission, with the past as it was then: jobs that had ended before, and no others.

    It is one and the same Past that goes on growing: look at it before the next step.
    """
    known = sorted(jobs, key=lambda j: (j.submit, j.job_id))
    ends = sorted(known, key=lambda j: (j.end, j.job_id))
    past, ended = Past(), 0
    for job in known:
        while ended < len(ends) and ends[ended].end < job.submit:
            past.add(ends[ended])
            ended += 1
        yield job, past


def samples(jobs: Iterable[HistoryJob]) -> list[Sample]:
    """What there is to learn from ``jobs``, in order of submission; the very first, without any past, are left out."""
    found = []
    for job, past in walk(jobs):
        row = past.row(job) if job.teaches else None
        if row is not None:
            found.append(Sample(job, row, past.runs(job) > 0))
    return found
