"""Which gangs to run on a pool of GPUs: first fit in order of density, and choose-or-skip where that leaves a hole."""

from __future__ import annotations

import numpy as np

from slurm_hadar.policies.hadar.lookahead.outlook import Floats, Ints

__all__ = ["choose", "first_fit"]

_WINDOW = 32  # GPUs at the margin over which choices are weighed; further up the order is certain enough
_BREADTH = 3  # candidates for the window, as a multiple of its GPUs


def first_fit(order: Ints, workers: Ints, gpus: int) -> Ints:
    """Every job of ``order`` that fits into what those before it leave of ``gpus``. ``workers`` is by job."""
    chosen = []
    left = order
    while gpus > 0:
        left = left[workers[left] <= gpus]
        if not len(left):
            break
        filled = np.cumsum(workers[left])
        count = int(np.searchsorted(filled, gpus, "right"))
        chosen.append(left[:count])
        gpus -= int(filled[count - 1])
        left = left[count + 1 :]
    return np.concatenate(chosen) if chosen else order[:0]


def choose(order: Ints, workers: Ints, value: Floats, gpus: int) -> Ints:
    """The jobs of ``order`` to run on ``gpus``: first fit, or a subset of more total ``value`` if there is a hole.

    Hadar's choose-or-skip dynamic programme, exact over the last GPUs; jobs that come long before the margin are
    taken for granted. O(jobs + window ** 2).
    """
    greedy = first_fit(order, workers, gpus)
    if int(workers[greedy].sum()) == gpus or len(greedy) == len(order):
        return greedy
    filled = np.cumsum(workers[greedy])
    certain = greedy[: int(np.searchsorted(filled, gpus - _WINDOW, "right"))]
    rest = gpus - int(workers[certain].sum())
    open_ = order[~np.isin(order, certain) & (workers[order] <= rest)]
    open_ = open_[: int(np.searchsorted(np.cumsum(workers[open_]), _BREADTH * rest, "right")) + 1]
    best = _programme(open_, workers, value, rest)
    marginal = greedy[len(certain) :]
    if value[best].sum() > value[marginal].sum() * (1.0 + 1e-9):
        return np.concatenate([certain, best])
    return greedy


def _programme(jobs: Ints, workers: Ints, value: Floats, gpus: int) -> Ints:
    """0/1 knapsack: the subset of ``jobs`` with the most value on ``gpus``, in the order given."""
    best = np.zeros(gpus + 1)
    taken = np.zeros((len(jobs), gpus + 1), bool)
    for row, job in enumerate(jobs):
        width = int(workers[job])
        with_it = best[: gpus + 1 - width] + value[job]
        taken[row, width:] = with_it > best[width:] * (1.0 + 1e-12)
        best[width:] = np.where(taken[row, width:], with_it, best[width:])
    chosen = []
    for row in range(len(jobs) - 1, -1, -1):
        if taken[row, gpus]:
            chosen.append(jobs[row])
            gpus -= int(workers[jobs[row]])
    return np.array(chosen[::-1], int)
