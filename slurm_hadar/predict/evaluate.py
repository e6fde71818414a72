"""How good predictors are: learned from the earlier jobs of a history, asked about the later ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slurm_hadar.errors import PredictionError
from slurm_hadar.predict.features import samples, walk
from slurm_hadar.predict.forest import TREES, Forest, grow
from slurm_hadar.predict.history import HistoryJob
from slurm_hadar.predict.predictors import (
    ForestPredictor,
    GlobalMean,
    GroupMean,
    GroupMedian,
    Prediction,
    Predictor,
    UserMean,
)

__all__ = ["CHOICES", "Report", "Score", "Training", "evaluate", "refusal", "score", "train"]

TRAIN_SHARE = 0.8
_FEWEST_TESTS = 10
_SAME = 1e-6  # what differs by less is how it was added up


@dataclass(frozen=True, slots=True)
class Score:
    """One predictor's errors over the jobs asked about.

    r2_log: share of the variance of log(work) that is explained; below 0 = worse than a constant.
    mape: mean of |predicted / true - 1|; 0.5 = off by half.
    rank: Spearman's rank correlation, which is what an order by predicted work lives on; None where all predictions
        are alike.
    over, under: the largest predicted / true (lambda) and true / predicted (Lambda), at least 1: what A-SRPT's
        competitive ratio grows with.
    """

    name: str
    r2_log: float
    mape: float
    rank: float | None
    over: float
    under: float


@dataclass(frozen=True, slots=True)
class Report:
    """An evaluation. ``tested`` jobs submitted at ``split`` or later were asked about, each with what had ended before
    its submission; ``trained`` ones, over before ``split``, were learned from. ``unseen`` is the share of tested jobs
    whose group had never ended before, ``inside`` the share within the forest's interval, meant to be 0.8."""

    trained: int
    tested: int
    split: float
    unseen: float
    inside: float
    scores: tuple[Score, ...]

    def of(self, name: str) -> Score:
        """The score of the predictor of this name. Raises KeyError."""
        return {s.name: s for s in self.scores}[name]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "scores": [asdict(s) for s in self.scores]}


def score(name: str, predicted: Sequence[float], true: Sequence[float]) -> Score:
    """Compare two lists of work, all above 0, in any unit. Raises PredictionError for empty or unequal lists."""
    if not predicted or len(predicted) != len(true):
        raise PredictionError(f"{len(predicted)} predictions against {len(true)} jobs cannot be scored")
    p, t = np.asarray(predicted, dtype=float), np.asarray(true, dtype=float)
    log_p, log_t = np.log(p), np.log(t)
    around = float(((log_t - log_t.mean()) ** 2).sum())
    missed = float(((log_t - log_p) ** 2).sum())
    r2 = 1 - missed / around if around > 0 else (1.0 if missed == 0 else -math.inf)
    return Score(
        name,
        r2,
        float(np.abs(p / t - 1).mean()),
        _rank(p, t),
        max(1.0, float((p / t).max())),
        max(1.0, float((t / p).max())),
    )


def _rank(p: NDArray[np.float64], t: NDArray[np.float64]) -> float | None:
    if np.ptp(p) == 0 or np.ptp(t) == 0:
        return None
    from scipy.stats import rankdata

    return float(np.corrcoef(rankdata(p), rankdata(t))[0, 1])


def _split(jobs: Sequence[HistoryJob]) -> float:
    """The submission before which four fifths of the jobs were submitted."""
    times = sorted(j.submit for j in jobs if j.teaches)
    if not times:
        raise PredictionError("the history has no job that ended well: there is nothing to learn from")
    return times[min(len(times) - 1, int(TRAIN_SHARE * len(times)))]


def evaluate(jobs: Sequence[HistoryJob], trees: int = TREES, seed: int = 0) -> Report:
    """A forest against medians and means, all errors in seconds alone.

    The forest learns from what had ended when four fifths of the jobs were submitted and is asked about the rest: a
    split by time, never a random one. Each question is asked with the jobs that had ended before that job's own
    submission. Raises PredictionError for a history that is too short.
    """
    split = _split(jobs)
    before = [j for j in jobs if j.end < split]
    known = samples(before)
    forest = grow(known, trees, seed)
    predictors: tuple[Predictor, ...] = (
        ForestPredictor(forest),
        GroupMedian(),
        GroupMean(),
        UserMean(),
        GlobalMean(),
    )
    answers: list[list[Prediction]] = [[] for _ in predictors]
    true = []
    for job, past in walk(jobs):
        if job.submit < split or not job.teaches:
            continue
        true.append(job.alone_s)
        for predictor, found in zip(predictors, answers, strict=True):
            prediction = predictor.predict(job, past)
            assert prediction is not None  # what the forest learned from had ended before
            found.append(prediction.scaled(1 / job.steps_per_s))
    if len(true) < _FEWEST_TESTS:
        raise PredictionError(f"{len(true)} jobs in the last fifth of the history: at least {_FEWEST_TESTS} are needed")
    scores = tuple(score(p.name, [a.steps for a in found], true) for p, found in zip(predictors, answers, strict=True))
    return Report(
        len(known),
        len(true),
        split,
        sum(a.runs == 0 for a in answers[0]) / len(true),
        sum(a.low * (1 - _SAME) <= t <= a.high * (1 + _SAME) for a, t in zip(answers[0], true, strict=True))
        / len(true),
        scores,
    )


def refusal(report: Report) -> str | None:
    """Why a forest with this report must not be used; None if it may: it has to order jobs no worse than the group mean
    does, and to be off by no more."""
    forest, mean = report.of("forest"), report.of("group mean")
    if (forest.rank or 0.0) < (mean.rank or 0.0) - _SAME:
        return (
            f"its rank correlation {forest.rank or 0.0:.3f} is below the group mean's {mean.rank or 0.0:.3f} "
            f"on the last {report.tested} jobs"
        )
    if forest.mape > mean.mape + _SAME:
        return (
            f"its mean error {forest.mape:.0%} is above the group mean's {mean.mape:.0%} "
            f"on the last {report.tested} jobs"
        )
    return None


@dataclass(frozen=True)
class Training:
    """What was made of a whole history: the ``predictor`` to answer by (of :data:`CHOICES`), with its forest if it is
    one; how a forest's like did when the last fifth was kept from it, None if none was tried; and why a forest was
    wanted and must not be used, or None."""

    predictor: str
    forest: Forest | None
    report: Report | None
    refused: str | None


#: What a version may answer by; without a forest it is the history alone that is asked.
CHOICES = ("forest", "group median", "group mean")
_INSTEAD = "group mean"


def train(jobs: Sequence[HistoryJob], trees: int = TREES, seed: int = 0, predictor: str = "forest") -> Training:
    """Evaluate a forest on the last fifth, then grow it on everything.

    Where it is refused, or the history is too short for one, the group mean is what is left. With another
    ``predictor`` no forest is tried. Raises PredictionError for a history in which no job ended well.
    """
    if not any(job.teaches for job in jobs):
        raise PredictionError("the history has no job that ended well: there is nothing to learn from")
    if predictor != "forest":
        return Training(predictor, None, None, None)
    try:
        report = evaluate(jobs, trees, seed)
        refused = refusal(report)
        forest = None if refused else grow(samples(jobs), trees, seed)
    except PredictionError as error:
        return Training(_INSTEAD, None, None, str(error))
    return Training(_INSTEAD if refused else "forest", forest, report, refused)
