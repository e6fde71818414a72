"""Which of the trials that wait for a part of a GPU start now, and on which type. A pure function."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heapreplace

__all__ = ["dispatch"]


def dispatch(
    small_s: Sequence[float], speeds: Sequence[float], free_in_s: Sequence[Sequence[float]]
) -> list[int | None]:
    """For each trial, in order, the type on which it starts now. None: it waits, since there is nothing free, or since
    it ends sooner on a part that comes free.

    Earliest completion time first, the greedy rule for uniform machines of Ibarra and Kim, Heuristic Algorithms for
    Scheduling Independent Tasks on Nonidentical Processors (J. ACM, 1977), algorithm D; here with machines that are
    busy at first. O(trials x (types + log parts)).

    Parameters
    ----------
    small_s: what each trial takes on a part of a GPU of speed 1.
    speeds: of the types.
    free_in_s: in how many seconds each part of each type comes free; 0: it is.
    """
    heaps = [list(parts) for parts in free_in_s]
    for heap in heaps:
        heapify(heap)
    able = [n for n, heap in enumerate(heaps) if heap]
    idle = sum(at <= 0 for heap in heaps for at in heap)
    found: list[int | None] = [None] * len(small_s)
    for trial, seconds in enumerate(small_s):
        if not idle:
            break
        end_s, n = min((heaps[n][0] + seconds / speeds[n], n) for n in able)
        if heaps[n][0] <= 0:
            found[trial] = n
            idle -= 1
        heapreplace(heaps[n], end_s)
    return found
