"""What no scheduler can exceed: of the same requests, how many could be answered in time by who knows them all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.trace import TracedRequest

__all__ = ["most_in_time"]


def most_in_time(trace: Sequence[TracedRequest], law: BatchLaw) -> int:
    """An upper bound, for one worker of speed 1 and deadlines in the order of arrivals. Our definition.

    A batch of k takes f(k) max l, which is no less than the sum over its members of l f(k) / k. So who ends in time
    takes at least l min f(k) / k of the worker's time between arrival and deadline, over those k for which f(k) l fits
    in between. Batches are given up for that: what remains is one machine with jobs of known length whose deadlines
    come in the order of their arrivals. There the order of arrivals is as good as any (who is exchanged with a
    neighbour that came earlier ends no later than both did), and the most jobs in time follow from the earliest end of
    each number of jobs among the first ones: a dynamic programme over (requests, requests answered), O(n^2).
    """
    factors = np.array(law.factors[1:])
    per_member = factors / np.arange(1, len(factors) + 1)
    ends_s = np.array([0.0])  # by how many are answered: the earliest end
    last_s = 0.0
    for r in sorted(trace, key=lambda r: r.arrival_s):
        if r.deadline_s < last_s:
            raise ValueError("deadlines must come in the order of arrivals")
        last_s = r.deadline_s
        fits = factors * r.exec_s <= r.deadline_s - r.arrival_s
        if not fits.any():
            continue
        with_it_s = np.maximum(ends_s, r.arrival_s) + r.exec_s * per_member[fits].min()
        with_it_s[with_it_s > r.deadline_s] = np.inf
        ends_s = np.minimum(np.append(ends_s, np.inf), np.append(np.inf, with_it_s))
        if np.isinf(ends_s[-1]):
            ends_s = ends_s[:-1]
    return len(ends_s) - 1
