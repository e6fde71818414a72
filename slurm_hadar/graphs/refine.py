"""Kernighan-Lin refinement: bundles change places between two servers while the cut falls.

The pass of Kernighan and Lin (1970), with moves into free GPUs beside exchanges: the best change is made even if it is
for the worse, no change is taken back within a pass, and of the whole row the part with the least cut is kept. So it
gets over small hills, and the cut never rises. Our own: also several bundles of a stage go at once, where one alone
would have to break a ring.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slurm_hadar.graphs.graph import JobGraph
from slurm_hadar.graphs.greedy import Held

__all__ = ["refine"]

_MOST_LOOKS = 10_000  # changes weighed in all: large jobs keep what they have by then; more gained them nothing
_LOOKS_OF_A_STEP = 5  # what finding the changes costs, in changes weighed
_LEAST_GAIN = 1e-9  # of all bytes

#: How many bundles of which stage go over, and how many of which other stage come back (0: none do).
_Change = tuple[int, int, int, int]


def refine(graph: JobGraph, counts: Held, free: Mapping[int, int]) -> Held:
    """A placement whose cut is not larger. ``free[m]``: GPUs of each server that the job may use, those it holds
    included; servers that hold nothing yet may be taken. Deterministic."""
    table = _Table(graph, {m: list(held) for m, held in counts.items()}, free)
    servers = [*counts, *_spares(counts, free)]
    table.held |= {m: [0] * len(graph.stages) for m in servers if m not in table.held}
    improved = True
    while improved:
        improved = False
        for a, b in itertools.combinations(servers, 2):
            if table.looks > _MOST_LOOKS:
                break
            improved |= table.improve(a, b)
    return {m: held for m, held in table.held.items() if any(held)}


def _spares(counts: Held, free: Mapping[int, int]) -> list[int]:
    """One idle server of each size: others of that size would do the same."""
    first: dict[int, int] = {}
    for m, room in free.items():
        if m not in counts and room > 0:
            first.setdefault(room, m)
    return list(first.values())


@dataclass
class _Table:
    """The placement while it changes; ``looks`` counts the changes weighed so far."""

    graph: JobGraph
    held: Held
    free: Mapping[int, int]
    looks: int = 0

    def __post_init__(self) -> None:
        self.spread = [sum(1 for held in self.held.values() if held[s]) for s in range(len(self.graph.stages))]
        self.least = _LEAST_GAIN * self.graph.total_bytes

    def improve(self, a: int, b: int) -> bool:
        """One pass between two servers; whether the cut fell."""
        if not any(self.held[a]) and not any(self.held[b]):
            return False
        made: list[tuple[int, int, _Change]] = []
        locked: set[tuple[int, int]] = set()
        gain = best = 0.0
        keep = 0
        for _ in range(sum(self.held[a]) + sum(self.held[b])):
            found = self._best(a, b, locked)
            if found is None:
                break
            here, there, change, value = found
            self._make(here, there, change)
            made.append((here, there, change))
            # what came to a server in this pass stays there
            locked |= {(there, change[0])} | ({(here, change[2])} if change[3] else set())
            gain += value
            if gain > best + self.least:
                best, keep = gain, len(made)
        for here, there, change in reversed(made[keep:]):
            self._make(there, here, change)
        return keep > 0

    def _best(self, a: int, b: int, locked: set[tuple[int, int]]) -> tuple[int, int, _Change, float] | None:
        best: tuple[int, int, _Change, float] | None = None
        self.looks += _LOOKS_OF_A_STEP
        for here, there, change in self._changes(a, b, locked):
            self.looks += 1
            value = self._gain(here, there, change)
            if best is None or value > best[3] + self.least:
                best = (here, there, change, value)
        return best

    def _changes(self, a: int, b: int, locked: set[tuple[int, int]]) -> Iterator[tuple[int, int, _Change]]:
        stages, widths = range(len(self.graph.stages)), [s.width for s in self.graph.stages]
        room = {m: self.free[m] - sum(n * w for n, w in zip(self.held[m], widths, strict=True)) for m in (a, b)}
        movable = {m: [s for s in stages if self.held[m][s] and (m, s) not in locked] for m in (a, b)}
        for here, there in ((a, b), (b, a)):
            for s in movable[here]:
                yield from (
                    (here, there, (s, n, s, 0)) for n in _unlike(1, self.held[here][s]) if n * widths[s] <= room[there]
                )
        for s, t in itertools.product(movable[a], movable[b]):
            for n, m in self._amounts(a, b, s, t) if s != t else ():
                more = n * widths[s] - m * widths[t]
                if more <= room[b] and -more <= room[a]:
                    yield a, b, (s, n, t, m)

    def _amounts(self, a: int, b: int, s: int, t: int) -> list[tuple[int, int]]:
        """One for one, all for all, and one for as many as have its width: single bundles would have to break a ring
        before they close another."""
        all_s, all_t = self.held[a][s], self.held[b][t]
        wide, narrow = self.graph.stages[s].width, self.graph.stages[t].width
        alike = (min(all_s, max(1, narrow // wide)), min(all_t, max(1, wide // narrow)))
        return sorted({(1, 1), (all_s, all_t), alike})

    def _gain(self, here: int, there: int, change: _Change) -> float:
        """By how many bytes the cut falls."""
        s, n, back, m = change
        gain = self._ring(here, there, s, n) + n * self._pull(here, there, s)
        if not m:
            return gain
        gain += self._ring(there, here, back, m) + m * self._pull(there, here, back)
        if abs(s - back) == 1:  # each counted the other as if it stayed
            gain -= 2.0 * n * m * self.graph.pairs[min(s, back)]
        return gain

    def _ring(self, here: int, there: int, s: int, n: int) -> float:
        link, now = self.graph.links[s], self.spread[s]
        then = now - (self.held[here][s] == n) + (not self.held[there][s])
        return link * ((now if now > 1 else 0) - (then if then > 1 else 0))

    def _pull(self, here: int, there: int, s: int) -> float:
        """What one bundle gains in traffic with the stages next to its own."""
        from_, to, pairs = self.held[here], self.held[there], self.graph.pairs
        before = pairs[s - 1] * (to[s - 1] - from_[s - 1]) if s else 0.0
        after = pairs[s] * (to[s + 1] - from_[s + 1]) if s + 1 < len(pairs) else 0.0
        return before + after

    def _make(self, here: int, there: int, change: _Change) -> None:
        s, n, back, m = change
        for stage, count, a, b in ((s, n, here, there), (back, m, there, here)):
            if count:
                self.spread[stage] += (not self.held[b][stage]) - (self.held[a][stage] == count)
                self.held[a][stage] -= count
                self.held[b][stage] += count


def _unlike(one: int, all_: int) -> tuple[int, ...]:
    return (one,) if one == all_ else (one, all_)
