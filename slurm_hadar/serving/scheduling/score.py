"""The waiting-cost score: what it is expected to cost more if a request waits, per second of expected work.

Cost-based scheduling (Peha and Tobagi) with a waiting time of exponential length, rate b, as in iCBS (Chi, Moon and
Hacigumus, VLDB 2011). How Orloj forms it is not known to us in detail: the formulas are our reconstruction
(docs/serving.md). For run times l_i with probabilities g_i, and costs c_j from D + o_j on, at slack s = D - t:

    p = 1/E[L] sum_j c_j sum_{l_i <= s + o_j} g_i exp(-b (s + o_j - l_i)) = exp(b t) alpha,
    alpha = exp(-b D) K(s),

where K is a step function that falls as time goes on: alpha is constant until the slack falls under the next l_i - o_j,
the milestone, and then gets lower. Between milestones the order of requests by alpha does not change. All is kept as
logarithms, which no b, time or deadline makes overflow.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence

import numpy as np

from slurm_hadar.serving.scheduling.distribution import Distribution
from slurm_hadar.serving.scheduling.request import MISS, Step

__all__ = ["ScoreTable"]


class ScoreTable:
    """Scores of all requests that share run times and costs, by their slack.

    Parameters
    ----------
    latency: of the batch that a request would run in, seconds.
    rate: b, 1/s: how soon the next chance is expected.
    steps: what a late answer costs.
    """

    __slots__ = ("log_k_by_slack", "rate", "slacks_s")

    def __init__(self, latency: Distribution, rate: float, steps: Sequence[Step] = MISS) -> None:
        times, weights = np.asarray(latency.times_s), np.asarray(latency.weights)
        slacks = np.concatenate([times - step.after_s for step in steps])
        parts = np.concatenate([np.log(weights * step.cost) for step in steps]) + rate * slacks
        order = np.argsort(slacks, kind="stable")
        self.rate = rate
        #: the slacks at which milestones lie, ascending
        self.slacks_s: list[float] = slacks[order].tolist()
        summed = np.logaddexp.accumulate(parts[order]) - math.log(latency.mean_s)
        #: log K between milestones: ``log_k_by_slack[bisect_right(slacks_s, slack)]``
        self.log_k_by_slack: list[float] = [-math.inf, *summed.tolist()]

    def log_k(self, slack_s: float) -> float:
        """log K(slack); minus infinity where even the shortest run would be late."""
        return self.log_k_by_slack[bisect_right(self.slacks_s, slack_s)]

    def score(self, slack_s: float) -> float:
        """p, per second."""
        return math.exp(self.log_k(slack_s) - self.rate * slack_s)
