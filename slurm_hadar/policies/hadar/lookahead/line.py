"""The queue of one pool: how long each place in it waits, and whom one more gang there delays. Our definition.

A gang starts when those before it leave it room. In a queue of ascending run times, on C GPUs, whoever has no more than
C - w GPUs' worth of gangs of width w before it does not wait at all, and whoever comes later waits for the gang that
stands C GPUs before it. So a gang that needs the pool's GPUs up to position y (its own included) waits

    W(y - C),    W(x) = A(x) / C + (1 - 1 / C) / 2 * L(x)    for x > 0, else 0

where A(x) is the area (workers * seconds) of the gangs up to position x, and L(x) the time after which x GPUs have come
free, if all gangs ran at once: the sum of every C-th run time, by its integral and the half of its last term (Euler and
Maclaurin). Of equal jobs of one GPU each wave of C waits as long in all as it really does.

Where it says so, all GPUs serve the queue together instead, one gang after the other, and the first alone does not
wait: W(y) = A(y) / C, up to the gang itself (the fluid limit).
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
        me, at = self.index[rows], np.searchsorted(self.key, key, "left")
        mine, wide, weights = (np.append(of, 0)[me] for of in (self.area, self.workers, self.weight))
        leaves = me < at  # itself is one of those before the place
        if self.together:
            behind = self._weights[-1] - self._weights[at] - np.where(leaves, 0.0, weights)
            none = np.zeros(len(rows))
            return Places(self._areas[at] - np.where(leaves, mine, 0.0), none, behind, none)
        start = self._taken[at] - np.where(leaves, wide, 0)
        first = start + width - self.gpus
        past = leaves & (self._taken[me] <= first)
        before = self._area_at(first + np.where(past, wide, 0)) - np.where(past, mine, 0.0)
        return Places(before, self._half * self._run_s[self._inside(first)], *self._delayed(me, at, start, width))

    def _delayed(self, me: Ints, at: Ints, start: Ints, width: Ints) -> tuple[Floats, Floats]:
        """``behind`` and ``near``, of gangs that would begin at position ``start``. Who comes after where it is now is
        where it is because of it: those are compared with what they would be without it."""
        kinds, kind = _kinds(width)
        now_s = self._wait_s(self._starts)
        come = _sums((self._wait_s(self._starts + kinds[:, None]) - now_s) * self.weight)
        gone = _sums((now_s - self._wait_s(self._starts - kinds[:, None])) * self.weight)
        here, after = np.maximum(me, at), np.minimum(np.maximum(me + 1, at), len(self.key))
        far = np.maximum(np.minimum(self._first_from(start), me), at)
        farther = np.maximum(self._first_from(start + width), after)
        behind = self._weights[here] - self._weights[far] + self._weights[-1] - self._weights[farther]
        near = come[kind, far] - come[kind, at] + gone[kind, farther] - gone[kind, after]
        return behind, np.maximum(near, 0.0)

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
        inside: Ints = np.minimum(np.maximum(position, 0), self._taken[-1])
        return inside

    @property
    def _half(self) -> float:
        return 0.5 * (1.0 - 1.0 / self.gpus)

    @cached_property
    def _place(self) -> Ints:
        """Which gang has the GPU."""
        count = len(self.key)
        return np.concatenate(([0], np.repeat(np.arange(count), self.workers), [count]))

    @cached_property
    def _upto(self) -> Floats:
        """The area of all up to there."""
        return _sums(np.repeat(self.area / self.workers, self.workers))

    @cached_property
    def _run_s(self) -> Floats:
        """For how long so many GPUs are taken, if all gangs ran at once: the shortest come free first."""
        run_s = self.area / self.workers
        order = np.argsort(run_s, kind="stable")
        return np.concatenate(([0.0], np.repeat(run_s[order], self.workers[order])))


def _sums(of: Floats) -> Floats:
    """Of the last axis, those before each element and of all."""
    sums = np.zeros((*of.shape[:-1], of.shape[-1] + 1))
    np.cumsum(of, axis=-1, out=sums[..., 1:])
    return sums


def _kinds(numbers: Ints) -> tuple[Ints, Ints]:
    """The different ones of small whole numbers, and which of them each is: ``np.unique`` without sorting."""
    least = int(numbers.min(initial=0))
    found = np.bincount(numbers - least) > 0
    return np.flatnonzero(found) + least, (np.cumsum(found) - 1)[numbers - least]
