"""A predictor that goes along with time: asked as jobs are submitted, told as they end."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from slurm_hadar.errors import PredictionError
from slurm_hadar.predict.features import Past, Sample, walk
from slurm_hadar.predict.forest import FEWEST, TREES, grow
from slurm_hadar.predict.history import HistoryJob, Submission
from slurm_hadar.predict.predictors import (
    ForestPredictor,
    GlobalMean,
    GroupMean,
    GroupMedian,
    Nobody,
    Noisy,
    Oracle,
    Prediction,
    Predictor,
    UserMean,
)

__all__ = ["Online", "OnlineForest", "named"]

_MOST_SAMPLES = 20_000
_DAY_S = 86400.0
_PLAIN: Mapping[str, Callable[[], Predictor]] = {
    "group_median": GroupMedian,
    "group_mean": GroupMean,
    "user_mean": UserMean,
    "global_mean": GlobalMean,
    "none": Nobody,
}


class Online:
    """Any predictor, over the jobs that have ended so far.

    No clock and no files: what it says follows from the calls alone.
    """

    def __init__(self, predictor: Predictor) -> None:
        self.predictor, self.past = predictor, Past()

    @property
    def name(self) -> str:
        """That of the predictor."""
        return self.predictor.name

    def learn(self, jobs: Sequence[HistoryJob], now: float) -> list[HistoryJob]:
        """Take in earlier jobs, before anything else is asked or told. ``now`` is the time on their clock.

        Returns those that are not over yet, in the order of their ends: :meth:`ended` is to be told of them then.
        """
        ends = sorted(jobs, key=lambda j: (j.end, j.job_id))
        for job in ends:
            if job.end < now:
                self.ended(job)
        return [job for job in ends if job.end >= now]

    def submitted(self, job: Submission) -> Prediction | None:
        """What is expected of a job that is submitted now; None as long as no job has ended."""
        return self.predictor.predict(job, self.past)

    def ended(self, job: HistoryJob) -> None:
        """A job is over."""
        self.past.add(job)


class OnlineForest(Online):
    """The forest, grown anew every ``every_s`` seconds of the jobs' clock from all that has ended by then.

    Until 40 jobs have ended it goes by medians (:class:`ForestPredictor` without a forest). A sample's features are
    those that the job had when it was submitted. Of more than 20,000 samples the newest count. None is refused here:
    whoever plays a trace wants to see what a forest is worth.

    Raises PredictionError for a span that is not above 0.
    """

    def __init__(self, every_s: float = _DAY_S, trees: int = TREES, seed: int = 0) -> None:
        if not every_s > 0:
            raise PredictionError(f"time between growing forests {every_s:g} s: must be above 0")
        self._forest = ForestPredictor(None)
        super().__init__(self._forest)
        self._every_s, self._trees, self._seed = every_s, trees, seed
        self._rows: dict[str, tuple[tuple[float, ...], bool]] = {}
        self._samples: list[Sample] = []
        self._grown = -math.inf
        self._new = 0

    def learn(self, jobs: Sequence[HistoryJob], now: float) -> list[HistoryJob]:
        for job, past in walk(jobs):
            self._keep_features(job, past)
        return super().learn(jobs, now)

    def submitted(self, job: Submission) -> Prediction | None:
        self._keep_features(job, self.past)
        if self._new and len(self._samples) >= FEWEST and job.submit - self._grown >= self._every_s:
            self._forest.forest = grow(self._samples[-_MOST_SAMPLES:], self._trees, self._seed)
            self._grown, self._new = job.submit, 0
        return super().submitted(job)

    def _keep_features(self, job: Submission, past: Past) -> None:
        """Keep the features that a job has when it is submitted."""
        row = past.row(job)
        if row is not None:
            self._rows[job.job_id] = row, past.runs(job) > 0

    def ended(self, job: HistoryJob) -> None:
        row = self._rows.pop(job.job_id, None)
        if row is not None and job.teaches:
            self._samples.append(Sample(job, *row))
            self._new += 1
        super().ended(job)


def named(text: str, steps: Mapping[str, float], seed: int = 0) -> Online:
    """A predictor by its name: ``oracle``, ``noisy:2`` (factor), ``forest``, ``forest:6`` (hours between growing it),
    ``group_median``, ``group_mean``, ``user_mean``, ``global_mean`` or ``none``, which knows nothing.

    ``steps`` are the truth by job id, which only the first two look at; ``seed`` is the noise's or the forest's. Raises
    PredictionError for any other name or number.
    """
    name, colon, number = text.partition(":")
    try:
        value = float(number) if colon else None
    except ValueError:
        value = math.nan
    if name == "oracle" and not colon:
        return Online(Oracle(steps))
    if name == "noisy" and value is not None and value >= 1:
        return Online(Noisy(steps, value, seed))
    if name == "forest" and (value is None or value > 0):
        return OnlineForest(_DAY_S if value is None else value * 3600.0, seed=seed)
    if name in _PLAIN and not colon:
        return Online(_PLAIN[name]())
    raise PredictionError(
        f"predictor {text!r}: must be oracle, noisy:FACTOR, forest, forest:HOURS or one of {', '.join(_PLAIN)}"
    )
