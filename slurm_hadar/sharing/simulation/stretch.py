"""A stretch of a lane's time in which nobody comes or goes, worked out at once and not turn by turn.

Where members are charged for each iteration, the j-th start of member i has the key (passed_i + j stride_i, order_i),
and the lane's iterations start in the order of their keys: a merge of arithmetic progressions. So how many iterations
of whom start below a key is arithmetic, and a moment is found by bisection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Run", "changes", "start_ns", "starts_within"]

_CHUNK = 1 << 22  # gaps looked at together: 4 MiB
_WIDE = 1 << 62  # what lies below that, and its sum with another, is counted in 64 bits


@dataclass(slots=True)
class Run:
    """One member's iterations to come: how long each takes, how many are ``left`` to start, and what they are charged
    (at least 1 each) from ``passed`` on."""

    order: int
    iteration_ns: int
    left: int
    passed: int
    stride: int

    def below(self, key: int, order: int) -> int:
        """How many of its starts come before ``(key, order)``."""
        reach = key - self.passed + (self.order < order)
        return min(self.left, max(0, -(-reach // self.stride)))


def start_ns(runs: Sequence[Run], run: Run, number: int) -> int:
    """GPU time that the others and itself take until the ``number``-th start (from 0) of ``run``."""
    key = run.passed + number * run.stride
    return sum(other.below(key, run.order) * other.iteration_ns for other in runs)


def starts_within(runs: Sequence[Run], work_ns: int) -> tuple[list[int], int, int]:
    """What starts in the next ``work_ns`` of GPU time: how many iterations of each run have keys below a level, that
    level, and the time left for those on it. They are the most whose iterations all end within that time."""
    low = min(run.passed for run in runs)
    high = max(run.passed + run.left * run.stride for run in runs) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _cost(runs, middle) <= work_ns:
            low = middle
        else:
            high = middle
    return [run.below(low, 0) for run in runs], low, work_ns - _cost(runs, low)


def _cost(runs: Sequence[Run], level: int) -> int:
    return sum(run.below(level, 0) * run.iteration_ns for run in runs)


def changes(runs: Sequence[Run], counts: Sequence[int]) -> tuple[int, int | None, int | None]:
    """How often the turn passes from one run to another among the first ``counts`` starts of each, all those below one
    level; and the indices of the runs that are first and last. None ends before the last of these starts."""
    present = [i for i, count in enumerate(counts) if count]
    if not present:
        return 0, None, None
    first = min(present, key=lambda i: (runs[i].passed, runs[i].order))
    last = max(present, key=lambda i: (runs[i].passed + (counts[i] - 1) * runs[i].stride, runs[i].order))
    again = sum(_again(i, present, runs, counts) for i in present)
    return sum(counts) - 1 - again, first, last


def _again(i: int, present: list[int], runs: Sequence[Run], counts: Sequence[int]) -> int:
    """How often run ``i`` has two turns in succession: gaps between its keys in which no other run has one.

    Another run with a stride not longer than its own has a key in every gap from its first one on, so that only the
    gaps before that need to be looked at.
    """
    own, gaps = runs[i], counts[i] - 1
    others = [(runs[j], counts[j]) for j in present if j != i]
    for other, _ in others:
        if other.stride <= own.stride:
            gaps = min(gaps, max(0, other.passed - own.passed - (other.order < own.order)) // own.stride)
    if not others or gaps <= 0:
        return max(0, gaps)
    chunk = min(_CHUNK, max(1, _WIDE // own.stride))
    return sum(_free(own, others, begin, min(begin + chunk, gaps)) for begin in range(0, gaps, chunk))


def _free(own: Run, others: list[tuple[Run, int]], begin: int, end: int) -> int:
    """Of the gaps ``begin`` to ``end`` of ``own`` those in which no other run has a key."""
    taken = np.zeros(end - begin, dtype=bool)
    low, high = own.passed + begin * own.stride, own.passed + end * own.stride
    for other, count in others:
        first, stop = other.below(low, own.order), min(count, other.below(high, own.order))
        if first >= stop:
            continue
        # a key of the same value comes in the gap before if the other is the older one
        offset = other.passed + first * other.stride - low - (other.order < own.order)
        if other.stride <= own.stride:  # in every gap from its first key to its last
            taken[offset // own.stride : (offset + (stop - 1 - first) * other.stride) // own.stride + 1] = True
        else:
            exact = np.int64 if other.stride < _WIDE else object  # then there are one or two
            places = (offset + np.arange(stop - first, dtype=exact) * other.stride) // own.stride
            taken[places.astype(np.int64)] = True
    return int(taken.size - np.count_nonzero(taken))
