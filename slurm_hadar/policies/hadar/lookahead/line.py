"""The queue of one pool: how long each place in it waits, and whom one more gang there delays. Our definition.

A gang starts when those before it leave it room. In a queue of ascending run times, on C GPUs, whoever has no more than
C - w GPUs' worth of gangs of width w before it does not wait at all, and whoever comes later waits for the gang that
stands C GPUs before it. So a gang that needs the pool's GPUs up to position y (its own included) waits

    W(y - C),    W(x) = A(x) / C + (1 - 1 / C) / 2 * L(x)    for x > 0, else 0

where A(x) is the area (workers * seconds) of the gangs up to position x, and L(x) the run time of the one there: the
sum of every C-th run time, by its integral and the half of its last term (Euler and Maclaurin). Of equal gangs of one
GPU this makes the queue's total, and what one more adds to it, exact.

Elastic gangs take whatever is free, so that all GPUs serve them together and the first alone does not wait: W(y) =
A(y) / C, up to the gang itself (the fluid limit).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from slurm_hadar.policies.hadar.lookahead.outlook import Floats, Ints

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
    """The gangs of a pool with ``gpus`` GPUs, in their order.

    ``key[i]``, ``workers[i]``, ``area[i]``, ``weight[i]``: of the i-th. ``index``: of each job's row, n where it is not
    here. ``together``: all GPUs serve it as one.
    """

    gpus: int
    key: Floats
    workers: Ints
    area: Floats
    weight: Floats
    index: Ints
    together: bool

    @classmethod
    def of(cls, rows: Ints, area: Floats, workers: Ints, weights: Floats, gpus: int, together: bool) -> Line:
        """Of ``rows`` in the order of Smith's rule. ``area[n]``, ``workers[n]`` and ``weights[n]``: of all jobs."""
        key = area[rows] / weights[rows]
        order = np.argsort(key, kind="stable")
        rows = rows[order]
        index = np.full(len(area), len(rows))
        index[rows] = np.arange(len(rows))
        return cls(gpus, key[order], workers[rows], area[rows], weights[rows], index, together)

    def places(self, rows: Ints, key: Floats, width: Ints) -> Places:
        """Where each of ``rows`` would stand by its ``key`` with a gang of its ``width``, while all others stay."""
        me = self.index[rows]
        mine, wide, weights = (np.append(of, 0)[me] for of in (self.area, self.workers, self.weight))
        at = np.searchsorted(self.key, key, "left")
        leaves = me < at  # itself is one of those before the place
        if self.together:
            none, far = np.zeros(len(rows)), at
            before, late_s, near = self._areas[at] - np.where(leaves, mine, 0.0), none, none
        else:
            start = self._taken[at] - np.where(leaves, wide, 0)
            first = start + width - self.gpus
            past = leaves & (self._taken[me] <= first)
            before = self._area_at(first + np.where(past, wide, 0)) - np.where(past, mine, 0.0)
            late_s = self._half * self._run_s[self._inside(first)]
            stays = (me < len(self.key)) & ~leaves
            far = np.maximum(self._first_from(start + np.where(stays, wide, 0)), at)
            near = self._near(me, at, far, width)
        behind = self._weights[-1] - self._weights[far] - np.where(me >= far, weights, 0.0)
        return Places(before, late_s, behind, near)

    def _near(self, me: Ints, at: Ints, far: Ints, width: Ints) -> Floats:
        """By how much those from ``at`` to ``far`` are delayed by a gang before them: who is here delays them already,
        and they are compared with what they would be without it."""
        here = me < len(self.key)
        kinds, kind = np.unique(np.where(here, -width, width), return_inverse=True)
        moved_s = self._wait_s(self._starts + kinds[:, None]) - self._wait_s(self._starts)
        each = np.zeros((len(kinds), len(self.key) + 1))
        each[:, :-1] = np.sign(kinds)[:, None] * moved_s * self.weight
        sums = np.zeros((len(kinds), len(self.key) + 1))
        np.cumsum(each[:, :-1], axis=1, out=sums[:, 1:])
        itself = np.where((me >= at) & (me < far), each[kind, me], 0.0)
        near: Floats = np.maximum(sums[kind, far] - sums[kind, at] - itself, 0.0)
        return near

    # Of those before the i-th, up to all n

    @cached_property
    def _taken(self) -> Ints:
        return np.concatenate(([0], np.cumsum(self.workers)))

    @cached_property
    def _areas(self) -> Floats:
        return _sums(self.area)

    @cached_property
    def _weights(self) -> Floats:
        return _sums(self.weight)

    @cached_property
    def _starts(self) -> Ints:
        """Up to which position the work has to be done before each starts."""
        starts: Ints = self._taken[1:] - self.gpus
        return starts

    # By position, in GPUs: 0 before all, up to T behind the last

    def _first_from(self, position: Ints) -> Ints:
        """The first who waits for all that is before this position."""
        found: Ints = self._place[np.minimum(position + self.gpus, len(self._place) - 1)]
        return found

    def _area_at(self, position: Ints) -> Floats:
        return self._upto[self._inside(position)]

    def _wait_s(self, position: Ints) -> Floats:
        at = self._inside(position)
        waits: Floats = self._upto[at] / self.gpus + self._half * self._run_s[at]
        return waits

    def _inside(self, position: Ints) -> Ints:
        return np.clip(position, 0, self._taken[-1])

    @property
    def _half(self) -> float:
        return 0.5 * (1.0 - 1.0 / self.gpus)

    @cached_property
    def _place(self) -> Ints:
        """Which gang has the GPU."""
        count = len(self.key)
        return np.concatenate(([0], np.repeat(np.arange(count), self.workers), [count]))

    @cached_property
    def _run_s(self) -> Floats:
        return np.concatenate(([0.0], np.repeat(self.area / self.workers, self.workers)))

    @cached_property
    def _upto(self) -> Floats:
        """The area of all up to there."""
        return np.cumsum(self._run_s)


def _sums(of: Floats) -> Floats:
    return np.concatenate(([0.0], np.cumsum(of)))
