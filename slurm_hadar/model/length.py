"""How long a job is as a distribution, where it is predicted and the predictor tells how far it is off."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

__all__ = ["Length", "NORMAL", "Z_80"]

NORMAL = NormalDist()
Z_80 = NORMAL.inv_cdf(0.9)  # four in five lie between as many standard deviations below and above


@dataclass(frozen=True, slots=True)
class Length:
    """The steps of a whole job as a log-normal distribution (our choice): four such jobs in five lie between ``low``
    and ``high``, both positive."""

    low: float
    high: float

    @property
    def sigma(self) -> float:
        """The standard deviation of its logarithm."""
        return math.log(self.high / self.low) / (2 * Z_80)

    def left(self, share: float, done: float) -> float:
        """So many steps at most, or fewer, are left to a job that has made ``done`` and goes on, with probability
        ``share`` (0 to 1, exclusive)."""
        middle, sigma = math.log(self.low * self.high) / 2, self.sigma
        goes_on = NORMAL.cdf((middle - math.log(done)) / sigma) if done > 0 else 1.0
        beyond = max((1 - share) * goes_on, 1e-300)
        return max(0.0, math.exp(middle - sigma * NORMAL.inv_cdf(beyond)) - done)

    def mean_left(self, median: float, done: float) -> float:
        """The mean of what is left to a job that has made ``done`` and goes on (its mean residual life), if the median
        of all is ``median``; 0 of one that nobody would have expected to go on."""
        sigma = self.sigma
        mean = median * math.exp(sigma**2 / 2)
        if done <= 0:
            return mean
        at = math.log(done / median) / sigma
        goes_on = math.erfc(at / math.sqrt(2))
        return max(0.0, mean * math.erfc((at - sigma) / math.sqrt(2)) / goes_on - done) if goes_on > 0 else 0.0
