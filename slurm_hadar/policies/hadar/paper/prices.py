"""Hadar's exponential prices: the nearer a GPU type is to being sold out, the dearer it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slurm_hadar.policies.hadar.paper.bids import Bidder

__all__ = ["Prices", "clearing_prices", "round_prices"]

_ITERATIONS = 60


@dataclass(frozen=True)
class Prices:
    """``k^r(used) = U_min^r * (U_max^r / U_min^r) ** (used / C^r)`` per GPU and round, kept as logarithms.

    The nodes of one type share one price, since within a round a job does not care which of them it gets, and a price
    per node would sell an empty node cheaper than a half-empty one and so tear holes that gangs cannot use. ``C^r`` is
    therefore the number of GPUs of the type, and ``k_h^r = k^r``.
    """

    capacity: Mapping[str, int]
    log_min: Mapping[str, float]
    log_max: Mapping[str, float]

    def at(self, free: Mapping[str, int]) -> dict[str, float]:
        """Price per GPU of each type when ``free`` GPUs of it are left."""
        prices = {}
        for gpu_type, total in self.capacity.items():
            sold = 1.0 - free[gpu_type] / total
            low = self.log_min[gpu_type]
            prices[gpu_type] = math.exp(low + sold * (self.log_max[gpu_type] - low))
        return prices

    @property
    def alpha(self) -> float:
        """``max_r max(1, ln(U_max^r / U_min^r))``: half the competitive ratio of the irrevocable variant."""
        spans = (self.log_max[t] - self.log_min[t] for t in self.capacity)
        return max(1.0, max(spans, default=1.0))


def round_prices(bidders: Sequence[Bidder], capacity: Mapping[str, int]) -> Prices:
    """Prices for this round's active jobs and their remaining work.

    * ``U_max^r``: the largest utility per GPU that any job gets from type r (gang size W, or 1 if it may mix types).
      At ``used = C`` nobody buys.
    * ``U_min^r = (1 / 4 eta) * min_j`` utility per GPU at the worst speed, with
      ``1 / eta = min_j t_j^max W_j / (T * sum C)``: then the initial dual stays below a quarter of the optimum. The
      horizon T is the larger of the longest worst-case run time and the time that all work takes at its worst.
    * ``U_max >= e * U_min``, so that the price always rises.

    Utilities are per round (see :mod:`slurm_hadar.policies.hadar.paper.utilities`), which divides Hadar's formulas by
    the number of slots. O(jobs x types).
    """
    most = dict.fromkeys(capacity, 0.0)
    least = math.inf
    longest = shortest = total = 0.0
    for bidder in bidders:
        if not bidder.options:
            continue
        workers = bidder.job.form.workers
        gpus = workers if bidder.job.form.mix == "never" else 1
        for option in bidder.options:
            worth = bidder.utility(option.one_node_s) / gpus
            if worth > most[option.gpu_type]:
                most[option.gpu_type] = worth
        worst_s = bidder.options[-1].worst_s
        least = min(least, bidder.utility(worst_s) / workers)
        longest = max(longest, worst_s)
        shortest = min(shortest or math.inf, worst_s * workers)
        total += worst_s * workers
    gpus_in_all = max(1, sum(capacity.values()))
    horizon = max(longest, total / gpus_in_all, 1.0)
    inverse_eta = min(1.0, (shortest or horizon) / (horizon * gpus_in_all))
    log_low = _log(least if least < math.inf else 0.0) + math.log(inverse_eta / 4.0)
    log_max = {t: max(_log(most[t]), log_low + 1.0) for t in capacity}
    return Prices(dict(capacity), dict.fromkeys(capacity, log_low), log_max)


def clearing_prices(bidders: Sequence[Bidder], free: Mapping[str, int]) -> dict[str, float]:
    """The prices per GPU at which single-type gangs would just fill the ``free`` GPUs, were jobs divisible.

    These are the duals of ``max sum_jr u_jr x_jr`` subject to ``sum_r x_jr <= 1`` and ``sum_j W_j x_jr <= C_r``: the
    minimisers of ``sum_r C_r k_r + sum_j max(0, max_r (u_jr - W_j k_r))``, found by multiplicative steps in the
    direction of excess demand. They tell the dynamic programme what the GPUs that it leaves free are worth to the jobs
    still to come. O(60 * jobs * types); deterministic.
    """
    types = [t for t, count in free.items() if count > 0]
    prices = dict.fromkeys(free, 0.0)
    if not types or not bidders:
        return prices
    column = {t: i for i, t in enumerate(types)}
    worth = np.zeros((len(bidders), len(types)))
    for row, bidder in enumerate(bidders):
        for option in bidder.options:
            if option.gpu_type in column:
                worth[row, column[option.gpu_type]] = bidder.utility(option.one_node_s)
        for gpu_type in {bidder.market.arena.type_of[s] for s, _ in bidder.stay or ()} & column.keys():
            worth[row, column[gpu_type]] = max(worth[row, column[gpu_type]], bidder.stay_utility)
    workers = np.array([float(max(1, b.job.form.workers)) for b in bidders])
    gpus = np.array([float(free[t]) for t in types])
    found = _minimise_dual(worth, workers, gpus)
    return prices | dict(zip(types, found.tolist(), strict=True))


def _minimise_dual(
    worth: NDArray[np.float64], workers: NDArray[np.float64], gpus: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Shapes: worth (jobs, types), workers (jobs,), gpus (types,)."""
    density = np.sort((worth / workers[:, None]).max(axis=1))[::-1]
    price = best = np.full(len(gpus), max(density[min(len(density) - 1, int(gpus.sum()) // 2)], 1e-12))
    least, rows = np.inf, np.arange(len(workers))
    for step in range(_ITERATIONS):
        payoff = worth - workers[:, None] * price
        choice = payoff.argmax(axis=1)
        gain = payoff[rows, choice]
        value = gpus @ price + gain[gain > 0].sum()
        if value < least:
            best, least = price, value
        buys = gain > 0
        demand = np.bincount(choice[buys], weights=workers[buys], minlength=len(gpus))
        price = price * np.exp(np.clip((demand - gpus) / gpus, -1.0, 1.0) / (1.0 + 0.15 * step))
    return best


def _log(value: float) -> float:
    """Natural logarithm, with a floor for what no float utility can be told from."""
    return math.log(value) if value > 1e-300 else -690.0
