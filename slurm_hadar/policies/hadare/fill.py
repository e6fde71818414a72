"""Idle GPUs go to new copies of forked jobs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from slurm_hadar.model import Placement
from slurm_hadar.policies.hadar.lookahead.outlook import Floats
from slurm_hadar.policies.hadare.parents import LEAST_SHARE, WORTH_IDLE, Parent
from slurm_hadar.policies.toolkit.ledger import Ledger

__all__ = ["fill"]


def fill(ledger: Ledger, parents: Sequence[Parent], *, longest_first: bool) -> None:
    """Give new copies what is free, one after the other, until none is worth its start; changes ``ledger`` and
    ``parents``."""
    able = [p for p in parents if p.forkable and p.spare and p.rate > 0]
    if not able or not any(n > 0 for n in ledger.free):
        return
    filling = _Filling(ledger, able)
    while (best := filling.best(longest_first)) is not None:
        filling.give(*best)


class _Filling:
    """Parents (p), slots (s) and gang sizes (k) as arrays, kept up to date copy by copy."""

    def __init__(self, ledger: Ledger, parents: Sequence[Parent]) -> None:
        self.ledger, self.parents, self.arena = ledger, parents, ledger.arena
        slots = len(self.arena.slots)
        self.free = np.array(ledger.free)
        sizes = max(len(p.lead_job.form.gang_sizes) for p in parents)
        self.rates = np.zeros((len(parents), slots, sizes))
        self.workers = np.full((len(parents), sizes), np.iinfo(int).max)
        for row, parent in enumerate(parents):
            self._rate(row, parent)
        fits = self.workers[:, None, :] <= self.free[None, :, None]
        self.now = np.where(fits, self.rates, 0.0).max(axis=2)
        self.steps = np.array([p.steps for p in parents])
        self.weight = np.array([p.weight for p in parents])
        self.start_s = np.array([p.spare[0].restart_cost_s for p in parents])
        self.speed = np.array([p.rate for p in parents])
        self.gain = self._gain(slice(None), slice(None))

    def _rate(self, row: int, parent: Parent) -> None:
        copy = parent.spare[0]
        for k, size in enumerate(copy.form.gang_sizes):
            self.workers[row, k] = size
            for gpu_type, where in self.arena.reach(copy).by_type.items():
                speed = copy.speeds_at(size).get(gpu_type)
                if speed is not None:
                    self.rates[row, list(where), k] = speed.steps_per_s
        for node in parent.nodes:
            self.rates[row, self.arena.slots_of.get(node, [])] = 0.0

    def _gain(self, rows: slice, slots: slice | list[int]) -> Floats:
        """What a copy there is worth: the weighted seconds that it saves its parent, over the square of the time to
        go (without it times with it); 0 where it is not worth its start.

        So it goes where most of the job is done in a second: who is done soon leaves its GPUs to the others, who lose
        nothing by that. What is done within a round leaves them idle until the next, so that no time to go counts as
        less than a round."""
        more = self.now[rows, slots]
        speed, steps = self.speed[rows, None], self.steps[rows, None]
        start_s, round_s = self.start_s[rows, None], self.arena.snapshot.round_s
        left_s, end_s = steps / speed, (steps + more * start_s) / (speed + more)
        worth = (more > LEAST_SHARE * speed) & (end_s - start_s >= WORTH_IDLE * start_s)
        squared = np.maximum(left_s, round_s) * np.maximum(end_s, round_s)
        return np.where(worth, self.weight[rows, None] * np.maximum(left_s - end_s, 0.0) / squared, 0.0)

    def best(self, longest_first: bool) -> tuple[int, int] | None:
        """The parent and the slot whose pair gains most; None if nothing is worth a start any more."""
        if longest_first:
            left_s = np.where(self.gain.max(axis=1) > 0, self.steps / self.speed, -math.inf)
            row = int(left_s.argmax())
            slot = int(self.gain[row].argmax())
        else:
            row, slot = divmod(int(self.gain.argmax()), self.gain.shape[1])
        return (row, slot) if self.gain[row, slot] > 0 else None

    def give(self, row: int, slot: int) -> None:
        """The parent gets a copy on the slot, of the size that is fastest there."""
        parent = self.parents[row]
        node, gpu_type = self.arena.slots[slot]
        able = np.where(self.workers[row] <= self.free[slot], self.rates[row, slot], 0.0)
        size = int(self.workers[row, int(able.argmax())])
        parent.give(parent.spare[0], Placement.of({node: {gpu_type: size}}), self.ledger)
        self._update(row, slot, parent)

    def _update(self, row: int, slot: int, parent: Parent) -> None:
        """What changes for all on that slot, and for the parent everywhere."""
        self.free[slot] = self.ledger.free[slot]
        self.rates[row, self.arena.slots_of[self.arena.slots[slot][0]]] = 0.0
        self.speed[row] = parent.rate
        if not parent.spare:
            self.rates[row] = 0.0
        mine = slice(row, row + 1)
        fits = self.workers[:, None, :] <= self.free[None, [slot], None]
        self.now[:, [slot]] = np.where(fits, self.rates[:, [slot]], 0.0).max(axis=2)
        fits = self.workers[mine, None, :] <= self.free[None, :, None]
        self.now[mine] = np.where(fits, self.rates[mine], 0.0).max(axis=2)
        self.gain[:, [slot]] = self._gain(slice(None), [slot])
        self.gain[mine] = self._gain(mine, slice(None))
