"""Run times as empirical distributions, and those of batches, whose longest request decides."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

__all__ = ["Distribution", "longest_of", "mixture"]

_LEAST_S = 1e-9


class Distribution:
    """A probability on finitely many times (atoms), in ascending order.

    Parameters
    ----------
    times_s: above 0; need not be sorted or distinct.
    weights: of the times, in any unit; default: alike.
    """

    __slots__ = ("cumulative", "mean_s", "times_s", "weights")

    def __init__(self, times_s: Sequence[float] | Any, weights: Sequence[float] | Any | None = None) -> None:
        times, where = np.unique(np.maximum(np.asarray(times_s, float), _LEAST_S), return_inverse=True)
        if not len(times) or not np.isfinite(times).all():
            raise ValueError("a distribution needs at least one time, and finite ones only")
        mass = np.bincount(where, None if weights is None else np.asarray(weights, float))
        mass = mass / mass.sum()
        times, mass = times[mass > 0], mass[mass > 0]
        self.times_s: tuple[float, ...] = tuple(times.tolist())
        self.weights: tuple[float, ...] = tuple(mass.tolist())
        reached = np.cumsum(mass)
        reached[-1] = 1.0
        #: P(time <= the n-th atom), with a 0 in front: ``cumulative[bisect_right(times_s, x)]`` is P(time <= x)
        self.cumulative: tuple[float, ...] = (0.0, *reached.tolist())
        self.mean_s = float(times @ mass)

    def cdf(self, seconds: float) -> float:
        """P(time <= seconds)."""
        return self.cumulative[bisect_right(self.times_s, seconds)]

    def cdf_at(self, grid: Any) -> Any:
        """The same for an array of times."""
        return np.asarray(self.cumulative)[np.searchsorted(self.times_s, grid, side="right")]

    def quantile(self, share: float) -> float:
        """The least atom that is not exceeded with a probability of ``share``."""
        place = int(np.searchsorted(self.cumulative[1:], share - 1e-12))
        return self.times_s[min(place, len(self.times_s) - 1)]

    def scaled(self, factor: float) -> Distribution:
        """Of times that are ``factor`` times as long."""
        return Distribution(np.asarray(self.times_s) * factor, self.weights)

    def thinned(self, atoms: int) -> Distribution:
        """At most so many atoms, each the mean of an equal share of the probability: the mean stays."""
        if len(self.times_s) <= atoms:
            return self
        edges = np.linspace(0.0, 1.0, atoms + 1)
        cumulative, times = np.asarray(self.cumulative), np.asarray(self.times_s)
        # the integral of the quantile function up to each edge, which is piecewise linear
        below = np.concatenate(([0.0], np.cumsum(times * np.diff(cumulative))))
        return Distribution(np.diff(np.interp(edges, cumulative, below)) * atoms)


def longest_of(members: Iterable[tuple[Distribution, int]]) -> Distribution:
    """Of the longest of independent times, so many of each distribution: the product of their distribution functions.

    [Order statistics; our reconstruction of Orloj, docs/serving.md.]
    """
    counted = [(d, n) for d, n in members if n]
    grid = np.unique(np.concatenate([np.asarray(d.times_s) for d, _ in counted]))
    product = np.ones_like(grid)
    for distribution, count in counted:
        product = product * distribution.cdf_at(grid) ** count
    mass = np.diff(product, prepend=0.0)
    return Distribution(grid[mass > 0], mass[mass > 0])


def mixture(parts: Iterable[tuple[Distribution, float]], atoms: int) -> Distribution:
    """Of a time that comes from each distribution with the given weight, on at most so many atoms."""
    parts = [(d, w) for d, w in parts if w > 0]
    times = np.concatenate([np.asarray(d.times_s) for d, _ in parts])
    weights = np.concatenate([np.asarray(d.weights) * w for d, w in parts])
    return Distribution(times, weights).thinned(atoms)
