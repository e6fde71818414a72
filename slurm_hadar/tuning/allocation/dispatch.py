"""Which of the trials that wait for a part of a GPU start now, and on which type. A pure function."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from heapq import heapify, heapreplace

__all__ = ["dispatch", "placed"]


def dispatch(small_s: Iterable[float], speeds: Sequence[float], free_in_s: Sequence[Sequence[float]]) -> dict[int, int]:
    """By their numbers, in order, the trials that start now, and each one's type. The others wait, since there is
    nothing free, or since they end sooner on a part that comes free. No more trials are asked for than matter.

    Parameters
    ----------
    small_s: what each trial takes on a part of a GPU of speed 1.
    speeds: of the types.
    free_in_s: in how many seconds each part of each type comes free; 0: it is.
    """
    idle = sum(at <= 0 for parts in free_in_s for at in parts)
    found = dict[int, int]()
    queue = ([seconds / speed for speed in speeds] for seconds in small_s)
    for trial, (begin_s, _, n) in enumerate(placed(queue, free_in_s) if idle else ()):
        if begin_s <= 0:
            found[trial] = n
            idle -= 1
            if not idle:
                break
    return found


def placed(
    seconds: Iterable[Sequence[float]], free_in_s: Sequence[Sequence[float]]
) -> Iterator[tuple[float, float, int]]:
    """When each trial begins and ends, and on which type: by ``seconds`` that it takes on a part of each type, of which
    there is one at least.

    Earliest completion time first, the greedy rule for uniform machines of Ibarra and Kim, Heuristic Algorithms for
    Scheduling Independent Tasks on Nonidentical Processors (J. ACM, 1977), algorithm D; here with machines that are
    busy at first. O(trials x (types + log parts)).
    """
    heaps = [list(parts) for parts in free_in_s]
    for heap in heaps:
        heapify(heap)
    able = [n for n, heap in enumerate(heaps) if heap]
    for on in seconds:
        end_s, n = min((heaps[n][0] + on[n], n) for n in able)
        yield heaps[n][0], end_s, n
        heapreplace(heaps[n], end_s)
