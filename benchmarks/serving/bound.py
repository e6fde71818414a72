"""What no scheduler can exceed: of the same requests, how many could be answered in time by who knows them all."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from slurm_hadar.serving.trace import TracedRequest

__all__ = ["most_in_time"]

_ROUNDING_S = 1e-9


def most_in_time(trace: Sequence[TracedRequest], g: float, largest: int) -> int:
    """An upper bound for one worker of speed 1, where a batch of k takes g + (1 - g) k times as long as its longest
    request, g <= 2/3, and deadlines come in the order of arrivals. Our definition.

    1. Nobody late need be in a batch. Let l_1 be a batch's longest request, and n_i the number of its requests that are
    at least half as long as request i. Then its time, l_1 (g + (1 - g) k), is no less than the sum over its requests of
    l_i (1 - g + g / n_i): with c the class of lengths from l_1 / 2^(c+1) to l_1 / 2^c, those of class 0 have at most
    g l_1 in all of the parts with n_i, those of a class c > 0 at most g l_1 / 2^c / 2 each, as n_i >= 2; and by the
    other parts each of these leaves (1 - g) (l_1 - l_i) >= (1 - g) l_1 (1 - 1 / 2^c), which is as much if g <= 2/3.
    2. So each takes that part of the worker's time between its arrival and its deadline, where n_i is at most what some
    batch that ends in time can have of such requests. As the batch is given up, one machine remains, with jobs of known
    length whose deadlines come in the order of their arrivals.
    3. There that order is as good as any (who is exchanged with a neighbour that came earlier ends when both did), and
    the most jobs in time follow from the earliest end of each number of jobs among the first ones: a dynamic programme
    over requests and numbers, O(n^2).
    """
    if not 0 <= g <= 2 / 3:
        raise ValueError(f"the bound holds for batch laws with g up to 2/3, not {g:g}")
    ordered = sorted(trace, key=lambda r: r.arrival_s)
    if any(b.deadline_s < a.deadline_s for a, b in pairwise(ordered)):
        raise ValueError("deadlines must come in the order of arrivals")
    ends_s = np.array([0.0])  # by how many are answered: the earliest end
    for r, together in zip(ordered, _together(ordered, g, largest), strict=True):
        if not together:
            continue
        with_it_s = np.maximum(ends_s, r.arrival_s) + r.exec_s * (1 - g + g / together)
        with_it_s[with_it_s > r.deadline_s + _ROUNDING_S] = np.inf
        ends_s = np.minimum(np.append(ends_s, np.inf), np.append(np.inf, with_it_s))
        if np.isinf(ends_s[-1]):
            ends_s = ends_s[:-1]
    return len(ends_s) - 1


def _together(ordered: Sequence[TracedRequest], g: float, largest: int) -> list[int]:
    """Of each request: the most at least half as long, itself among them, in a batch in which it ends in time. 0: even
    alone it would be late."""
    arrivals, deadlines = [r.arrival_s for r in ordered], [r.deadline_s for r in ordered]
    found = []
    for number, r in enumerate(ordered):
        first, last = bisect_left(deadlines, r.arrival_s), bisect_right(arrivals, r.deadline_s)
        near = [n for n in range(first, last) if ordered[n].exec_s >= r.exec_s / 2]
        place = near.index(number)
        most = 0
        for k in range(min(largest, len(near)), 0, -1):
            takes_s = r.exec_s * (g + (1 - g) * k)
            begins = range(max(0, place - k + 1), min(place, len(near) - k) + 1)
            if any(arrivals[near[a + k - 1]] + takes_s <= deadlines[near[a]] + _ROUNDING_S for a in begins):
                most = k
                break
        found.append(most)
    return found
