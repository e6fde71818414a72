"""The search for a place for a gang among the free GPUs of slots."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence

from slurm_hadar.model import Form

__all__ = ["Gang", "find_gang", "find_on_type", "node_counts"]

#: Which slots a gang takes and how many GPUs of each: ``((slot, count), ...)``.
Gang = tuple[tuple[int, int], ...]


#: A node with free GPUs: how many, how many of them no running job holds, and its slots. Plain, as there are so many.
_Candidate = tuple[int, int, Sequence[int]]


@functools.lru_cache(maxsize=4096)
def node_counts(form: Form) -> Sequence[int]:
    """Over how many nodes the gang may lie, fewest first. O(sqrt(W)) for W workers: users ask for what they like."""
    counts = range(max(1, form.min_nodes), min(form.max_nodes, form.workers) + 1)
    if not form.uniform or not counts:
        return counts
    root = math.isqrt(form.workers)
    if len(counts) <= root:  # few nodes, whatever a user asks for
        return tuple(m for m in counts if form.workers % m == 0)
    small = [m for m in range(1, root + 1) if form.workers % m == 0]
    return tuple(m for m in sorted({*small, *(form.workers // m for m in small)}) if m in counts)


def find_gang(
    form: Form,
    nodes: Iterable[Sequence[int]],
    free: Sequence[int],
    held: Sequence[int] | None = None,
    speed: Sequence[float] | None = None,
) -> Gang | None:
    """A place for the gang: fewest nodes first, then the least disturbance, then the tightest fit.

    Parameters
    ----------
    nodes: for each node the slots that may be used there, in the order in which they shall be used up.
    free: free GPUs per slot.
    held: of those, how many are in the hands of running jobs that may lose them; taking them comes last.
    speed: of one worker on each slot; if given, the fastest nodes come before all else.

    Returns None if the gang does not fit. O(H log H) for H nodes and each admissible node count.
    """
    found = []
    for slots in nodes:
        there = sum(free[s] for s in slots)
        if there > 0:
            found.append((there, there - (sum(held[s] for s in slots) if held else 0), slots))
    return _placed(form, found, free, speed)


def find_on_type(
    form: Form, slots: Sequence[int], free: Sequence[int], held: Sequence[int] | None = None
) -> Gang | None:
    """:func:`find_gang` on nodes with one slot each, which is the usual case, and found sooner. O(slots)."""
    counts = node_counts(form)
    least = form.workers // counts[-1] if counts and form.uniform else 1  # nodes with less are of no use
    if held is None:
        held = (0,) * len(free)
    if counts and counts[0] == 1:  # a node on which it takes all that is free, and nobody's: none is better
        for s in slots:
            if free[s] == form.workers and not held[s]:
                return ((s, form.workers),)
    return _placed(form, [(free[s], free[s] - held[s], (s,)) for s in slots if free[s] >= least], free, None)


def _placed(
    form: Form, candidates: list[_Candidate], free: Sequence[int], speed: Sequence[float] | None
) -> Gang | None:
    for count in node_counts(form):
        if len(candidates) < count:
            continue
        if form.uniform or count == 1:
            gang = _even(form.workers // count, count, candidates, free, speed)
        else:
            gang = _uneven(form.workers, count, candidates, free, speed)
        if gang:
            return gang
    return None


def _even(
    each: int, count: int, candidates: list[_Candidate], free: Sequence[int], speed: Sequence[float] | None
) -> Gang | None:
    """``each`` workers on every one of ``count`` nodes."""
    # (speed lost, workers that others have to make way for, free GPUs, position)
    ranked = [
        (0.0, each - unheld if unheld < each else 0, there, i)
        for i, (there, unheld, _) in enumerate(candidates)
        if there >= each
    ]
    if len(ranked) < count:
        return None
    if speed is not None:
        gained = {i: sum(n * speed[s] for s, n in _take(each, candidates[i][2], free)) for *_, i in ranked}
        ranked = [(-gained[i], taken, there, i) for _, taken, there, i in ranked]
    chosen = [min(ranked)] if count == 1 else sorted(ranked)[:count]
    return tuple(pair for *_, i in chosen for pair in _take(each, candidates[i][2], free))


def _uneven(
    workers: int, count: int, candidates: list[_Candidate], free: Sequence[int], speed: Sequence[float] | None
) -> Gang | None:
    """Roomiest nodes first, or those with the fastest GPU; each of the ``count`` nodes gets at least one worker."""

    def rank(node: _Candidate) -> tuple[float, int, int]:
        there, unheld, slots = node
        quickness = 0.0 if speed is None else max(speed[s] for s in slots if free[s] > 0)
        return -quickness, -unheld, -there

    chosen = sorted(candidates, key=rank)[:count]
    if sum(there for there, _, _ in chosen) < workers:
        chosen = sorted(candidates, key=lambda node: -node[0])[:count]
    left, gang = workers, []
    for position, (there, _, slots) in enumerate(chosen):
        here = min(there, left - (count - position - 1))
        gang.extend(_take(here, slots, free))
        left -= here
    return tuple(gang) if left == 0 else None


def _take(count: int, slots: Sequence[int], free: Sequence[int]) -> list[tuple[int, int]]:
    taken = []
    for slot in slots:
        here = min(count, free[slot])
        if here > 0:
            taken.append((slot, here))
            count -= here
    return taken
