"""How much jobs have yet to do, as what is expected and as a distribution of which futures are drawn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from statistics import NormalDist

from slurm_hadar.model import Job, log_sigma

__all__ = ["LEAST_ERROR", "UNKNOWN_ERROR", "Length", "drawn_steps", "leaning_steps", "uncertainty"]

LEAST_ERROR = 0.1  # nothing is known better than this: measured speeds vary, saves and epilogs take their time
UNKNOWN_ERROR = 0.9  # of a job whose length nobody states or predicts
_PREDICTED_ERROR = 0.5  # where the predictor says nothing of its error
_NORMAL = NormalDist()
_Z = _NORMAL.inv_cdf(0.9)  # four in five lie between as many standard deviations below and above


@dataclass(frozen=True, slots=True)
class Length:
    """The steps of a whole job as a log-normal distribution (our choice): four such jobs in five lie between ``low``
    and ``high``."""

    low: float
    high: float

    @classmethod
    def of(cls, job: Job) -> Length | None:
        """None where the length is stated, unknown, or predicted without an error."""
        low, high = job.predicted_range or (0.0, 0.0)
        return None if job.total_steps is not None or not 0 < low < high else cls(low, high)

    def left(self, share: float, done: float) -> float:
        """So many steps at most, or fewer, are left to a job that has made ``done`` and goes on, with probability
        ``share`` (0 to 1, exclusive)."""
        middle, sigma = math.log(self.low * self.high) / 2, log_sigma(self.low, self.high)
        goes_on = _NORMAL.cdf((middle - math.log(done)) / sigma) if done > 0 else 1.0
        beyond = max((1 - share) * goes_on, 1e-300)
        return max(0.0, math.exp(middle - sigma * _NORMAL.inv_cdf(beyond)) - done)


def uncertainty(job: Job) -> float:
    """Relative error to be expected of the time that a job still needs (our definition): that of its speed and that of
    its length, as independent ones. A stated length has none; a predicted one of which no more is known is taken to be
    off by half."""
    if job.total_steps is not None:
        size = 0.0
    else:
        size = _PREDICTED_ERROR if job.predicted_steps is not None else UNKNOWN_ERROR
    return min(UNKNOWN_ERROR, max(LEAST_ERROR, math.hypot(_speed_error(job), size)))


def _speed_error(job: Job) -> float:
    types = job.placement.by_type or {t: 1 for t in job.speeds if job.form.admits_type(t)}
    return max((job.speeds[t].error or 0.0 for t in types if t in job.speeds), default=0.0)


def leaning_steps(job: Job, unknown_s: float, lean: float) -> float:
    """Steps that the job has left if it takes as long as expected (``lean`` 0), or is early (-1) or late (1): earlier,
    or later, are one in ten of those whose length is a distribution; of others it is their :func:`uncertainty`."""
    length = Length.of(job)
    if length is None or not lean:
        return _expected(job, unknown_s) * (1 + lean * uncertainty(job))
    speed = 1 + lean * max(LEAST_ERROR, _speed_error(job))
    return length.left(_NORMAL.cdf(lean * _Z), job.done_steps) * speed


def drawn_steps(job: Job, unknown_s: float, share: float, dice: Random) -> float:
    """Steps that the job has left, times what its speed is overestimated by, in a drawn future. So many of all lengths,
    ``share``, are shorter; where it has none the time that it needs is log-normal about the expected one."""
    length = Length.of(job)
    if length is None:
        return _expected(job, unknown_s) * math.exp(uncertainty(job) * _NORMAL.inv_cdf(share))
    error = max(LEAST_ERROR, min(UNKNOWN_ERROR, _speed_error(job)))
    return length.left(share, job.done_steps) * math.exp(error * dice.gauss())


def _expected(job: Job, unknown_s: float) -> float:
    return job.steps_to_go(job.best_rate(), unknown_s)
