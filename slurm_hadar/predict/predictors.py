"""Predictors: what a job's steps will be, by what was over when it was submitted. All have one protocol."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from slurm_hadar.errors import PredictionError
from slurm_hadar.predict.features import Past
from slurm_hadar.predict.forest import Forest
from slurm_hadar.predict.history import Submission

__all__ = [
    "OUTLIVES", "ForestPredictor", "GlobalMean", "GroupMean", "GroupMedian", "Nobody", "Noisy", "Oracle", "Prediction",
    "Predictor", "UserMean",
]  # fmt: skip

#: A job that has outlived a prediction of which no residuals are known is expected to be so many times what it has
#: done: about what the residuals of forests on drawn traces give.
OUTLIVES = 1.5
_LEAST_OUTLIVES = 1.1


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a job is expected to be.

    Parameters
    ----------
    steps: expected steps of the whole job.
    low, high: four jobs out of five lie between, by the residuals of training; both ``steps`` where nothing is known
        about the error.
    runs: how often its series had ended before.
    source: what the prediction rests on, in words.
    outlives: a job that goes on is expected to be at least so many times what it has done. By the residuals: half of
        the jobs that outlive ``steps`` are over by then; 1 for the truth.
    """

    steps: float
    low: float
    high: float
    runs: int
    source: str
    outlives: float = OUTLIVES

    def scaled(self, factor: float) -> Prediction:
        """The same in another unit: with 1 / ``steps_per_s`` of the job, in seconds alone."""
        return replace(self, steps=self.steps * factor, low=self.low * factor, high=self.high * factor)


class Predictor(Protocol):
    """Pure: the same job and past give the same prediction. None = nothing to go by, as no job has ended yet."""

    name: str

    def predict(self, job: Submission, past: Past, /) -> Prediction | None:
        """What is expected of ``job``, by jobs that have ended."""


def _sure(steps: float, runs: int, source: str, outlives: float = OUTLIVES) -> Prediction:
    return Prediction(steps, steps, steps, runs, source, outlives)


class Nobody:
    """Expects nothing of anybody: what there is without predictions."""

    name = "none"

    def predict(self, _job: Submission, _past: Past) -> Prediction | None:
        return None


class Oracle:
    """Knows it: {job id: steps}. The best any prediction can be worth."""

    def __init__(self, steps: Mapping[str, float]) -> None:
        self.name = "oracle"
        self._steps = dict(steps)

    def predict(self, job: Submission, past: Past) -> Prediction | None:
        """Raises PredictionError for a job that it was not told of."""
        if job.job_id not in self._steps:
            raise PredictionError(f"job {job.job_id}: its true steps were not given to the oracle")
        return _sure(self._steps[job.job_id], past.runs(job), "the truth", outlives=1.0)


class Noisy:
    """The truth times a factor between 1/``factor`` and ``factor``, uniform in its logarithm (our definition).

    A job's factor hangs on ``seed`` and its id alone, not on when it is asked for. Raises PredictionError for a factor
    below 1.
    """

    def __init__(self, steps: Mapping[str, float], factor: float, seed: int = 0) -> None:
        if not 1.0 <= factor < math.inf:
            raise PredictionError(f"noise factor {factor:g}: must be at least 1")
        self.name = f"noisy {factor:g}x"
        self._oracle, self._spread, self._seed = Oracle(steps), math.log(factor), seed

    def predict(self, job: Submission, past: Past) -> Prediction | None:
        truth = self._oracle.predict(job, past)
        assert truth is not None
        draw = random.Random(f"{self._seed}:{job.job_id}").uniform(-1.0, 1.0)
        return _sure(truth.steps * math.exp(draw * self._spread), truth.runs, "the truth with noise")


class _Mean:
    """Arithmetic means of seconds alone, of the first of ``levels`` of which anything is known."""

    name = ""
    levels: tuple[tuple[str, str], ...] = ()

    def predict(self, job: Submission, past: Past) -> Prediction | None:
        for what, words in self.levels:
            mean_s = past.mean_s(what, job)
            if mean_s is not None:
                return _sure(mean_s * job.steps_per_s, past.runs(job), f"mean of {words}")
        return None


class GroupMean(_Mean):
    """Mean of the job's group of the same user, else of the user, else of all: the estimate to beat."""

    name = "group mean"
    levels = (("series", "its group"), ("user", "its user"), ("all", "all jobs"))


class UserMean(_Mean):
    """Mean of the user's jobs, else of all."""

    name = "user mean"
    levels = (("user", "its user"), ("all", "all jobs"))


class GlobalMean(_Mean):
    """Mean of all jobs."""

    name = "global mean"
    levels = (("all", "all jobs"),)


_LEVELS = {
    "group": "the median of its group",
    "user": "the median of its user's jobs",
    "shape": "the median of jobs with as many GPUs of this type",
    "all": "the median of all jobs",
}


class GroupMedian:
    """The median of the job's group of the same user, else of the user, of jobs with its GPUs and type, of all."""

    name = "group median"

    def predict(self, job: Submission, past: Past) -> Prediction | None:
        plain = past.fallback(job)
        if plain is None:
            return None
        return _sure(math.exp(plain.log_s) * job.steps_per_s, past.runs(job), _LEVELS[plain.level])


class ForestPredictor:
    """A random forest over the features of :mod:`slurm_hadar.predict.features`; without one, :class:`GroupMedian`.

    For a job of an unseen group the medians that stand in are among its features. What is predicted is the median;
    :meth:`slurm_hadar.model.Job.steps_to_go` says whose place in the queue goes by the mean, which is far above that
    where the residuals are wide. Who can be stopped goes by the median: the Gittins index of a log-normal length whose
    logarithm has a standard deviation of 1 to 1.5 counts a job that has not run yet as 1.5 to 1.3 medians long, since
    most are over soon.
    """

    def __init__(self, forest: Forest | None) -> None:
        self.name = "forest"
        self.forest = forest

    def predict(self, job: Submission, past: Past) -> Prediction | None:
        row, plain = past.row(job), past.fallback(job)
        if row is None or plain is None or self.forest is None:
            return GroupMedian().predict(job, past)
        runs = past.runs(job)
        log_s = float(self.forest.predict([row])[0])
        low, wide, high = self.forest.spread(seen=runs > 0)
        steps = math.exp(log_s) * job.steps_per_s
        source = f"a forest, from {_LEVELS[plain.level]} and more"
        outlives = max(_LEAST_OUTLIVES, math.exp(wide))
        return Prediction(
            steps, steps * math.exp(min(0.0, low)), steps * math.exp(max(0.0, high)), runs, source, outlives
        )
