"""The queue of one pool: how long each place in it waits, and whom one more job there delays. Our definition.

A job starts when those before it leave it room. In a queue of ascending run times of jobs of one GPU, on C GPUs,
whoever has fewer than C before it does not wait at all, and whoever comes later waits for the one that stands C places
before it. So the job at place y (the first is at 1) waits

    W(y - C),    W(x) = A(x) / C + (1 - 1 / C) / 2 * L(x)    for x > 0, else 0

where A(x) is the run time of the first x jobs together, and L(x) the x-th run time: the sum of every C-th run time, by
its integral and the half of its last term (Euler and Maclaurin). Of equal jobs each wave of C waits as long in all as
it really does.

In the fluid limit all GPUs serve the queue together instead, one job or gang after the other, and the first alone does
not wait: W = A / C, with the area (workers * seconds) of all before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from slurm_hadar.policies.hadar.lookahead.outlook import Bools, Floats, Ints

__all__ = ["Line", "Places"]


class Places(NamedTuple):
    """What places in a line mean. ``before``: the area that has to be done first, and ``late_s``: seconds that one
    waits besides. ``behind``: the weight of those whom the whole of one's area delays; ``near``: by how much one delays
    those that come sooner, in weighted seconds."""

    before: Floats
    late_s: Floats
    behind: Floats
    near: Floats


@dataclass(frozen=True)
class Line:
    """The jobs of a pool with ``gpus`` GPUs, in their order.

    ``key[i]``, ``area[i]``, ``weight[i]``: of the i-th. ``index``: of each job's row, n where it is not here.
    """

    gpus: int
    key: Floats
    area: Floats
    weight: Floats
    index: Ints

    @classmethod
    def of(cls, rows: Ints, area: Floats, weights: Floats, gpus: int) -> Line:
        """Of ``rows`` in the order of Smith's rule. ``area[n]`` and ``weights[n]``: of all jobs."""
        key = area[rows] / weights[rows]
        order = np.argsort(key, kind="stable")
        rows = rows[order]
        index = np.full(len(area), len(rows))
        index[rows] = np.arange(len(rows))
        return cls(gpus, key[order], area[rows], weights[rows], index)

    def as_fluid(self, rows: Ints, key: Floats) -> Places:
        """Where each of ``rows`` would stand by its ``key``, while all others stay and all GPUs serve them together."""
        me, at, leaves = self._place(rows, key)
        before = self._areas[at] - np.where(leaves, np.append(self.area, 0.0)[me], 0.0)
        behind = self._weights[-1] - self._weights[at] - np.where(leaves, 0.0, np.append(self.weight, 0.0)[me])
        return Places(before, np.zeros(len(rows)), behind, np.zeros(len(rows)))

    def as_they_fit(self, rows: Ints, key: Floats) -> Places:
        """The same where the GPUs serve as many as fit, jobs of one GPU all."""
        me, at, leaves = self._place(rows, key)
        start = at - leaves
        first = start + 1 - self.gpus
        past = leaves & (me <= first)
        before = self._areas[self._inside(first + past)] - np.where(past, np.append(self.area, 0.0)[me], 0.0)
        return Places(before, self._late_s(first), *self._delayed(me, at, start))

    def _place(self, rows: Ints, key: Floats) -> tuple[Ints, Ints, Bools]:
        """Where each of ``rows`` is, where it would be, and whether it is one of those before that place."""
        me, at = self.index[rows], np.searchsorted(self.key, key, "left")
        return me, at, me < at

    def _delayed(self, me: Ints, at: Ints, start: Ints) -> tuple[Floats, Floats]:
        """``behind`` and ``near``, of jobs that would have ``start`` others before them. Who comes after where it is
        now is where it is because of it: those are compared with what they would be without it."""
        count = len(self.key)
        x = np.arange(1, count + 1) - self.gpus
        come = _sums((self._wait_s(x + 1) - self._wait_s(x)) * self.weight)
        gone = _sums((self._wait_s(x) - self._wait_s(x - 1)) * self.weight)
        here, after = np.maximum(me, at), np.minimum(np.maximum(me + 1, at), count)
        far = np.maximum(np.minimum(self._first_from(start), me), at)
        farther = np.maximum(self._first_from(start + 1), after)
        behind = self._weights[here] - self._weights[far] + self._weights[-1] - self._weights[farther]
        near = come[far] - come[at] + gone[farther] - gone[after]
        return behind, np.maximum(near, 0.0)

    # Of those before the i-th, up to all n

    @cached_property
    def _areas(self) -> Floats:
        return _sums(self.area)

    @cached_property
    def _weights(self) -> Floats:
        return _sums(self.weight)

    # Of a number of jobs that have to be done first

    def _first_from(self, done: Ints) -> Ints:
        """The first who waits for all of them."""
        return np.minimum(done + self.gpus - 1, len(self.key))

    def _wait_s(self, done: Ints) -> Floats:
        waits: Floats = self._areas[self._inside(done)] / self.gpus + self._late_s(done)
        return waits

    def _late_s(self, done: Ints) -> Floats:
        late_s: Floats = 0.5 * (1.0 - 1.0 / self.gpus) * self._run_s[self._inside(done)]
        return late_s

    def _inside(self, done: Ints) -> Ints:
        return np.clip(done, 0, len(self.key))

    @cached_property
    def _run_s(self) -> Floats:
        """The run time of the i-th shortest, which comes free as the i-th if all ran at once."""
        return np.concatenate(([0.0], np.sort(self.area)))


def _sums(of: Floats) -> Floats:
    """Those before each element and of all."""
    return np.concatenate(([0.0], np.cumsum(of)))
