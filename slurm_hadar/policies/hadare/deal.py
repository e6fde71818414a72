"""Which nodes get copies of forked jobs, once the base plan says where one copy of each goes. All of it our definition.

A parent with R steps to go whose copies make X steps/s has ``R / X`` seconds to go; with one more copy of rate Xn, that
starts after s seconds, ``(R + Xn s) / (X + Xn)``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.model import Fork, Job, Placement, Plan
from slurm_hadar.policies.hadar.lookahead.outlook import Floats
from slurm_hadar.policies.hadare.parents import Parent
from slurm_hadar.policies.toolkit.arena import Arena, Gang

__all__ = ["Deal", "pays_a_start"]

_WORTH_A_START = 2.0  # a new copy must work for so many times as long as its start takes, as in the base plan
_LEAST_SHARE = 0.02  # of its parent's speed: what is slower does not even make up for the consolidations
_WORTH = 1.5  # fork=auto takes the GPUs of others where that is worth so many times what it costs
_URGENT = 2.0  # and where its parent weighs so many times as much as they
_SHORT = 4.0  # or would be done in so small a part of the time they need
_KEEPS = 1.1  # what a copy has it keeps where it is not outdone by more than this


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who has GPUs on one slot by the base plan and could be made to wait. ``left_s``: to its end, where it is fastest
    or with all its copies."""

    job: Job
    gang: Gang
    weight: float
    left_s: float
    parent: Parent | None


class Deal:
    """One decision about copies: call ``settle``, ``keep``, ``fill``, ``displace`` and ``grow`` in this order.

    Parameters
    ----------
    arena: of the snapshot that the base plan was made for. weights: of its jobs. longest_first: idle GPUs go to the
    parent with the longest time to go (for the total time), else to where they save most (for the completion times).
    unknown_runtime_s: as of the base plan.

    ``displaced`` are the jobs and copies that lost the base plan's GPUs, with the parent that got them.
    """

    def __init__(
        self, arena: Arena, base: Plan, parents: Sequence[Parent], weights: Mapping[str, float], *, longest_first: bool,
        unknown_runtime_s: float,
    ) -> None:  # fmt: skip
        self.arena, self.base, self.parents, self.weights = arena, base, parents, weights
        self.longest_first, self.unknown_runtime_s = longest_first, unknown_runtime_s
        self.displaced: dict[str, str] = {}
        self.idle: list[int] = []  # what the base plan leaves, per slot
        self.free = list(arena.free)
        for job in arena.movers:
            self._book(base.placement(job.job_id), -1)

    # Places

    def _book(self, placement: Placement, sign: int) -> None:
        for slot, count in self.arena.gang(placement):
            self.free[slot] += sign * count

    def _fits(self, placement: Placement) -> bool:
        return all(self.free[slot] >= count for slot, count in self.arena.gang(placement))

    def _give(self, parent: Parent, copy: Job, placement: Placement) -> None:
        self._book(placement, -1)
        parent.give(copy, placement)

    # What the base plan gave to the parents

    def settle(self) -> None:
        """Each parent's place in the base plan goes to the copy that is there, or else to one that waits: where a copy
        runs elsewhere, it need not move. The lead itself moves only if no other is left."""
        for parent in self.parents:
            wanted = self.base.placement(parent.shown_as)
            if parent.fixed:
                parent.lead = parent.lead_job.job_id
            elif wanted:
                self._book(wanted, +1)
                copy, placement = self._settled(parent, wanted)
                parent.lead = copy.job_id
                self._give(parent, copy, placement)
        self.idle = self.free.copy()

    def _settled(self, parent: Parent, wanted: Placement) -> tuple[Job, Placement]:
        lead = parent.lead_job
        for copy in parent.running:
            if copy.placement == wanted:
                return copy, wanted
        for copy in parent.running:
            if not {*copy.placement.nodes}.isdisjoint(wanted.nodes):
                return copy, copy.placement if self._fits(copy.placement) and copy.rate(copy.placement) > 0 else wanted
        if lead in parent.running and self._may_stay(lead) and lead.rate(lead.placement) >= lead.rate(wanted):
            return lead, lead.placement
        if lead in parent.spare or not parent.spare or len(wanted.nodes) > 1:
            return lead, wanted
        return parent.spare[0], wanted

    def _may_stay(self, copy: Job) -> bool:
        """Whether all that it holds is on available nodes, and nobody else's."""
        held = sum(len(counts) for _, counts in copy.placement.shares)
        return len(self.arena.gang(copy.placement)) == held and self._fits(copy.placement)

    # What is left

    def keep(self) -> None:
        """Running copies go on where nobody was given their GPUs; others may be put elsewhere, as those that wait."""
        for parent in self.parents:
            for copy in list(parent.running):
                if parent.nodes.isdisjoint(copy.placement.nodes) and self._fits(copy.placement):
                    self._give(parent, copy, copy.placement)
            parent.spare.extend(parent.running)

    def fill(self) -> None:
        """New copies go onto idle GPUs."""
        able = [p for p in self.parents if p.forkable and p.spare and p.rate > 0]
        if able and any(n > 0 for n in self.free):
            _Filling(self, able).run()

    # What others have

    def displace(self) -> bool:
        """Parents that may do so take GPUs that the base plan gives to others; whether any was taken."""
        eager = [p for p in self.parents if p.mode is not Fork.IDLE and p.forkable and p.rate > 0]
        holders = self._holders() if eager else {}
        if not holders:
            return False
        eager.sort(key=lambda p: -p.weight / p.left_s)  # stable: in order of arrival among equals
        for parent in eager:
            if parent.mode is Fork.SPREAD or self._ever(parent, holders):
                self._spread(parent, holders)
        return bool(self.displaced)

    def _ever(self, parent: Parent, holders: Mapping[int, list[_Holder]]) -> bool:
        """Whether there is anyone at all to whom the conditions of ``auto`` could apply."""
        others = [h for hs in holders.values() for h in hs if h.parent is not parent]
        return any(parent.weight >= _URGENT * h.weight for h in others) or (
            self._calm and any(h.left_s > parent.left_s for h in others)
        )

    @property
    def _calm(self) -> bool:
        """Nobody waits who could run; and it is not the total time that counts."""
        return not self.longest_first and all(w.payoff is None for w in self.base.waits.values())

    def _holders(self) -> dict[int, list[_Holder]]:
        """Per slot, whom the base plan puts there, on this slot alone, and who need not stay.

        Left out are those who would be given other GPUs in the next round, that copies have only because they were
        idle: nothing would be gained but a move.
        """
        found: dict[int, list[_Holder]] = {}
        parent_of = {p.shown_as: p for p in self.parents if not p.fixed}
        for job in self.arena.movers:
            parent = parent_of.get(job.job_id)
            copy, placement = (job, self.base.placement(job.job_id)) if parent is None else parent.leading()
            gang = self.arena.gang(placement)
            rate = job.rate(placement)
            if len(gang) != 1 or len(placement.nodes) != 1 or rate <= 0 or self._elsewhere(job):
                continue
            if parent is not None and len(parent.cells) > 1:
                continue
            best = max(rate, job.best_rate())
            left_s = (
                job.steps_to_go(best, self.unknown_runtime_s) / best
                if parent is None
                else parent.steps / max(parent.rate, best)
            )
            weight = self.weights.get(job.job_id, job.weight)
            found.setdefault(gang[0][0], []).append(_Holder(copy, gang, weight, left_s, parent))
        for holders in found.values():
            holders.sort(key=lambda h: (h.weight / h.left_s, h.job.job_id))
        return found

    def _elsewhere(self, job: Job) -> bool:
        """Whether GPUs that the base plan leaves idle would do for the job."""
        least = job.form.gang_sizes[0]
        return any(self.idle[s] >= least for slots in self.arena.reach(job).by_type.values() for s in slots)

    def _spread(self, parent: Parent, holders: dict[int, list[_Holder]]) -> None:
        lead = parent.lead_job
        slots = [s for slots in self.arena.reach(lead).by_type.values() for s in slots if s in holders]
        slots.sort(key=lambda s: (-lead.speeds[self.arena.slots[s][1]].steps_per_s, s))
        for slot in slots:
            node, gpu_type = self.arena.slots[slot]
            copy = self._next_copy(parent, slot)
            if node in parent.nodes or copy is None:
                continue
            workers = copy.placement.workers if self._is_on(copy, slot) else lead.form.workers
            victims = self._victims(parent, copy, slot, workers, holders[slot])
            if victims is None:
                continue
            for holder in victims:
                self._oust(parent, holder)
                holders[slot].remove(holder)
            self._give(parent, copy, Placement.of({node: {gpu_type: workers}}))

    def _next_copy(self, parent: Parent, slot: int) -> Job | None:
        """The copy that would go there: the one that runs there already, else one that waits."""
        there = [j for j in parent.running if self._is_on(j, slot)]
        return next(iter(there + parent.spare), None)

    def _is_on(self, copy: Job, slot: int) -> bool:
        """Whether the copy runs on this slot alone."""
        return copy.running and [s for s, _ in self.arena.gang(copy.placement)] == [slot]

    def _victims(
        self, parent: Parent, copy: Job, slot: int, workers: int, holders: Sequence[_Holder]
    ) -> list[_Holder] | None:
        """Who would have to go, least dense first, or None if the parent may not have the GPUs."""
        gpu_type = self.arena.slots[slot][1]
        room, victims = self.free[slot], []
        for holder in holders:
            if room >= workers:
                break
            if holder.parent is not parent:
                victims.append(holder)
                room += holder.gang[0][1]
        speed = copy.speeds_at(workers).get(gpu_type)
        if room < workers or speed is None or speed.steps_per_s <= 0:
            return None
        stays = self._is_on(copy, slot)
        start_s = 0.0 if stays else copy.restart_cost_s
        end_s = (parent.steps + speed.steps_per_s * start_s) / (parent.rate + speed.steps_per_s)
        if end_s - start_s < _WORTH_A_START * start_s or speed.steps_per_s < _LEAST_SHARE * parent.rate:
            return None
        bonus = _KEEPS if stays else 1.0
        if parent.mode is Fork.SPREAD:
            density = bonus * parent.weight / parent.left_s
            allowed = all(density >= _KEEPS * h.weight / h.left_s for h in victims)
        else:
            allowed = self._pays(parent, slot, workers, end_s, victims, bonus)
        return victims if allowed else None

    def _pays(
        self, parent: Parent, slot: int, workers: int, end_s: float, victims: Sequence[_Holder], bonus: float
    ) -> bool:
        """Whether ``fork=auto`` takes the GPUs: the two conditions on its victims, and the price."""
        calm = self._calm
        for h in victims:
            urgent = bonus * parent.weight >= _URGENT * h.weight
            short = bonus * h.left_s >= _SHORT * end_s and bonus * end_s >= _WORTH_A_START * h.job.restart_cost_s
            if not urgent and not (calm and short):
                return False
        price = self.base.prices.get(self.arena.slots[slot], 0.0)
        own = sum(c * self.base.prices.get((n, t), 0.0) for p in parent.cells.values() for n, t, c in p.items())
        gain = (parent.left_s - end_s) * (parent.weight + own)
        cost = price * (workers * end_s + sum(h.gang[0][1] * h.job.restart_cost_s for h in victims if h.job.running))
        return bonus * gain >= _WORTH * cost

    def _oust(self, parent: Parent, holder: _Holder) -> None:
        self.displaced[holder.job.job_id] = parent.family.parent
        if holder.parent is not None:
            placement = holder.parent.cells[holder.job.job_id]
            holder.parent.take(holder.job)
        else:
            placement = self.base.placement(holder.job.job_id)
        self._book(placement, +1)

    # Elastic copies

    def grow(self) -> None:
        """Elastic copies take more of their node where nobody else does; those that run, if that pays for a restart."""
        for parent in self.parents:
            if not parent.lead_job.form.sizes:
                continue
            stuck = {j.job_id for j in parent.fixed}
            for copy in parent.family.copies:
                if copy.job_id in parent.cells and copy.job_id not in stuck:
                    self._grow(parent, copy)

    def _grow(self, parent: Parent, copy: Job) -> None:
        placement = parent.cells[copy.job_id]
        gang = self.arena.gang(placement)
        if len(gang) != 1 or len(placement.nodes) != 1:
            return
        slot, count = gang[0]
        node, gpu_type = self.arena.slots[slot]
        larger = [n for n in copy.form.gang_sizes if count < n <= count + self.free[slot]]
        wider = max((Placement.of({node: {gpu_type: n}}) for n in larger), key=copy.rate, default=placement)
        more = copy.rate(wider) - copy.rate(placement)
        restart_s = copy.restart_cost_s if copy.running and copy.placement == placement else 0.0
        if more > 0 and more * (parent.left_s - restart_s) > _WORTH_A_START * restart_s * copy.rate(wider):
            self._book(placement, +1)
            parent.rate += more
            parent.cells[copy.job_id] = wider
            self._book(wider, -1)


def pays_a_start(parent: Parent) -> bool:
    """Whether there is time left in which a new copy could earn its start, however slow it is."""
    return parent.left_s >= (1.0 + _WORTH_A_START) * parent.lead_job.restart_cost_s


class _Filling:
    """Dealing idle GPUs out as arrays over parents (p), slots (s) and gang sizes (k); one copy at a time."""

    def __init__(self, deal: Deal, parents: Sequence[Parent]) -> None:
        self.deal, self.parents = deal, parents
        slots, arena = len(deal.arena.slots), deal.arena
        self.free = np.array(deal.free)
        sizes = max(len(p.lead_job.form.gang_sizes) for p in parents)
        self.rates = np.zeros((len(parents), slots, sizes))
        self.workers = np.full((len(parents), sizes), np.iinfo(int).max)
        self.node_slots: dict[str, list[int]] = {}
        for slot, (node, _) in enumerate(arena.slots):
            self.node_slots.setdefault(node, []).append(slot)
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
        copy, arena = parent.spare[0], self.deal.arena
        for k, size in enumerate(copy.form.gang_sizes):
            self.workers[row, k] = size
            for gpu_type, where in arena.reach(copy).by_type.items():
                speed = copy.speeds_at(size).get(gpu_type)
                if speed is not None:
                    self.rates[row, list(where), k] = speed.steps_per_s
        for node in parent.nodes:
            self.rates[row, self.node_slots.get(node, [])] = 0.0

    def _gain(self, rows: slice, slots: slice | list[int]) -> Floats:
        """Weighted seconds that a copy there saves its parent; 0 where it is not worth its start."""
        more = self.now[rows, slots]
        speed, steps = self.speed[rows, None], self.steps[rows, None]
        start_s = self.start_s[rows, None]
        end_s = (steps + more * start_s) / (speed + more)
        worth = (more > _LEAST_SHARE * speed) & (end_s - start_s >= _WORTH_A_START * start_s)
        return np.where(worth, self.weight[rows, None] * np.maximum(steps / speed - end_s, 0.0), 0.0)

    def run(self) -> None:
        """Give copies out until none is worth it."""
        while (best := self._best()) is not None:
            row, slot = best
            parent = self.parents[row]
            node, gpu_type = self.deal.arena.slots[slot]
            able = np.where(self.workers[row] <= self.free[slot], self.rates[row, slot], 0.0)
            size = int(self.workers[row, int(able.argmax())])
            self.deal._give(parent, parent.spare[0], Placement.of({node: {gpu_type: size}}))
            self._note(row, slot, parent)

    def _best(self) -> tuple[int, int] | None:
        if self.deal.longest_first:
            left_s = np.where(self.gain.max(axis=1) > 0, self.steps / self.speed, -math.inf)
            row = int(left_s.argmax())
            slot = int(self.gain[row].argmax())
        else:
            row, slot = divmod(int(self.gain.argmax()), self.gain.shape[1])
        return (row, slot) if self.gain[row, slot] > 0 else None

    def _note(self, row: int, slot: int, parent: Parent) -> None:
        """What changes for all on that slot, and for the parent everywhere."""
        self.free[slot] = self.deal.free[slot]
        self.rates[row, self.node_slots[self.deal.arena.slots[slot][0]]] = 0.0
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
