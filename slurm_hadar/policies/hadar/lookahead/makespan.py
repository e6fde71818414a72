"""A lower bound on the time that all remaining work takes, and what a GPU of each type is worth for it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["shadow_prices", "with_leftovers"]

_ITERATIONS = 80
_LEFTOVERS = 3  # the functions that tell of gangs above a half, a third and a quarter of the GPUs


def shadow_prices(gpu_seconds: NDArray[np.float64], gpus: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """Near-optimal dual prices of the fluid makespan problem, and the bound that they prove.

    The problem: finish all jobs within T, each in any fractions on any types, on ``gpus[r]`` GPUs of each type. Its
    dual is ``max_k sum_j min_r k_r * gpu_seconds[j, r]`` subject to ``sum_r gpus[r] * k_r = 1``, and by weak duality
    every feasible ``k`` gives a lower bound on T.

    Parameters
    ----------
    gpu_seconds: shape (jobs, types): gang size times run time of what remains; ``inf`` where a job cannot run.
    gpus: shape (types,): GPUs per type, all positive.

    Returns prices scaled so that the average GPU costs 1, and the bound in seconds. Multiplicative weights with a
    decreasing step, O(80 * jobs * types); deterministic.
    """
    total = gpus.sum()
    prices = best = np.ones(len(gpus))
    usable = gpu_seconds[np.isfinite(gpu_seconds).any(axis=1)]
    if not len(usable):
        return best, 0.0
    rows, bound = np.arange(len(usable)), -1.0
    for step in range(_ITERATIONS):
        costs = usable * prices
        cheapest = costs.argmin(axis=1)
        value = costs[rows, cheapest].sum() / total
        if value > bound:
            best, bound = prices, value
        load = np.bincount(cheapest, weights=usable[rows, cheapest], minlength=len(gpus)) / gpus
        prices = prices * np.exp(
            np.clip(load / max(load.max(), 1e-12) - load.mean() / max(load.max(), 1e-12), -1, 1) / (1.0 + 0.2 * step)
        )
        prices = prices * (total / (gpus * prices).sum())
    return best, float(bound)


def with_leftovers(
    workers: NDArray[np.float64], gpus: NDArray[np.float64], possible: NDArray[np.bool_]
) -> list[NDArray[np.float64]]:
    """What gangs take of their GPUs with those that they leave and nobody else can use, as three of five. In place of
    ``workers`` it bounds the makespan too, and sometimes better.

    Dual feasible functions (Fekete and Schepers, 2001) of the share ``x`` that a gang takes: ``floor((k + 1) x) / k``
    where ``(k + 1) x`` is no whole number, else ``x``. Shares that fit together still do then.

    Parameters
    ----------
    workers: GPUs per gang. gpus: how many there are where it runs. possible: whether it can run there. All of shape
    (n, k), or of one that numpy brings to it.

    Returns arrays of that shape, only those with a possible entry above ``workers``.
    """
    share, found = np.minimum(workers / gpus, 1.0), []
    for k in range(1, _LEFTOVERS + 1):
        times = share * (k + 1)
        whole = np.abs(times - np.round(times)) < 1e-9
        taken = np.where(whole, share, np.floor(times) / k) * gpus
        if ((taken > workers + 1e-9) & possible).any():
            found.append(np.maximum(taken, 1e-12))
    return found
