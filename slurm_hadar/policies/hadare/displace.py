"""Forked jobs that take GPUs which the base plan gives to others (``fork=auto`` and ``fork=spread``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_hadar.model import Fork, Job, Placement
from slurm_hadar.policies.hadare.base_plan import BasePlan
from slurm_hadar.policies.hadare.parents import LEAST_SHARE, WORTH_A_START, Parent
from slurm_hadar.policies.toolkit.gangs import Gang
from slurm_hadar.policies.toolkit.ledger import Ledger

__all__ = ["displace"]

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


@dataclass(frozen=True, slots=True)
class _Cell:
    """Where a copy would go: so many workers on one slot; a copy that runs there ``stays``."""

    copy: Job
    slot: int
    workers: int
    stays: bool

    @property
    def bonus(self) -> float:
        """What is there already counts for more, so that nothing changes for little."""
        return _KEEPS if self.stays else 1.0


def displace(base: BasePlan, parents: Sequence[Parent], ledger: Ledger, idle: Sequence[int]) -> dict[str, str]:
    """Give copies GPUs that the base plan has for others; changes ``parents`` and ``ledger``.

    ``idle``: GPUs per slot that the base plan left to nobody. Returns who lost GPUs, and the parent that got them.
    """
    eager = [p for p in parents if p.mode is not Fork.IDLE and p.forkable and p.rate > 0]
    if not eager:
        return {}
    work = _Displacement(base, ledger)
    holders = work.holders(parents, idle)
    if not holders:
        return {}
    eager.sort(key=lambda p: -p.weight / p.left_s)  # stable: in order of arrival among equals
    for parent in eager:
        if parent.mode is Fork.SPREAD or work.conceivable(parent, holders):
            work.spread(parent, holders)
    return work.displaced


@dataclass
class _Displacement:
    base: BasePlan
    ledger: Ledger
    displaced: dict[str, str] = field(default_factory=dict)

    def holders(self, parents: Sequence[Parent], idle: Sequence[int]) -> dict[int, list[_Holder]]:
        """Per slot, whom the base plan puts there, on this slot alone, and who need not stay.

        Left out are those who would be given other GPUs in the next round, that copies have only because they were
        idle: nothing would be gained but a move.
        """
        found: dict[int, list[_Holder]] = {}
        parent_of = {p.shown_as: p for p in parents if not p.fixed}
        for job in self.base.arena.movers:
            holder = self._holder(job, parent_of.get(job.job_id))
            if holder is not None and not self._elsewhere(job, idle):
                found.setdefault(holder.gang[0][0], []).append(holder)
        for there in found.values():
            there.sort(key=lambda h: (h.weight / h.left_s, h.job.job_id))
        return found

    def _holder(self, job: Job, parent: Parent | None) -> _Holder | None:
        """The job, or its parent's lead, if it has GPUs of one slot alone."""
        copy, placement = (job, self.base.plan.placement(job.job_id)) if parent is None else parent.leading()
        gang, rate = self.base.arena.gang(placement), job.rate(placement)
        if len(gang) != 1 or len(placement.nodes) != 1 or rate <= 0 or (parent is not None and len(parent.cells) > 1):
            return None
        best = max(rate, job.best_rate())
        if parent is None:
            left_s = job.steps_to_go(best, self.base.unknown_runtime_s) / best
        else:
            left_s = parent.steps / max(parent.rate, best)
        return _Holder(copy, gang, self.base.weights.get(job.job_id, job.weight), left_s, parent)

    def _elsewhere(self, job: Job, idle: Sequence[int]) -> bool:
        """Whether GPUs that the base plan leaves idle would do for the job."""
        least = job.form.gang_sizes[0]
        return any(idle[s] >= least for slots in self.base.arena.reach(job).by_type.values() for s in slots)

    def conceivable(self, parent: Parent, holders: Mapping[int, list[_Holder]]) -> bool:
        """Whether there is anyone at all to whom the conditions of ``auto`` could apply."""
        others = [h for hs in holders.values() for h in hs if h.parent is not parent]
        return any(parent.weight >= _URGENT * h.weight for h in others) or (
            self._calm and any(h.left_s > parent.left_s for h in others)
        )

    @property
    def _calm(self) -> bool:
        """Nobody waits who could run; and it is not the total time that counts."""
        return not self.base.longest_first and all(w.payoff is None for w in self.base.plan.waits.values())

    def spread(self, parent: Parent, holders: dict[int, list[_Holder]]) -> None:
        """Copies of the parent go wherever it may have the GPUs, the fastest first."""
        lead, arena = parent.lead_job, self.base.arena
        slots = [s for slots in arena.reach(lead).by_type.values() for s in slots if s in holders]
        slots.sort(key=lambda s: (-lead.speeds[arena.slots[s][1]].steps_per_s, s))
        for slot in slots:
            node, gpu_type = arena.slots[slot]
            cell = self._cell(parent, slot)
            if node in parent.nodes or cell is None:
                continue
            victims = self._victims(parent, cell, holders[slot])
            if victims is None:
                continue
            for holder in victims:
                self._oust(parent, holder)
                holders[slot].remove(holder)
            parent.give(cell.copy, Placement.of({node: {gpu_type: cell.workers}}), self.ledger)

    def _cell(self, parent: Parent, slot: int) -> _Cell | None:
        """With the copy that runs there already, else one that waits."""
        there = [j for j in parent.running if [s for s, _ in self.base.arena.gang(j.placement)] == [slot]]
        if there:
            return _Cell(there[0], slot, there[0].placement.workers, True)
        return _Cell(parent.spare[0], slot, parent.lead_job.form.workers, False) if parent.spare else None

    def _victims(self, parent: Parent, cell: _Cell, holders: Sequence[_Holder]) -> list[_Holder] | None:
        """Who would have to go, least dense first, or None if the parent may not have the GPUs."""
        gpu_type = self.base.arena.slots[cell.slot][1]
        free, victims = self.ledger.free[cell.slot], []
        for holder in holders:
            if free >= cell.workers:
                break
            if holder.parent is not parent:
                victims.append(holder)
                free += holder.gang[0][1]
        speed = cell.copy.speeds_at(cell.workers).get(gpu_type)
        if free < cell.workers or speed is None or speed.steps_per_s <= 0:
            return None
        start_s = 0.0 if cell.stays else cell.copy.restart_cost_s
        end_s = (parent.steps + speed.steps_per_s * start_s) / (parent.rate + speed.steps_per_s)
        if end_s - start_s < WORTH_A_START * start_s or speed.steps_per_s < LEAST_SHARE * parent.rate:
            return None
        if parent.mode is Fork.SPREAD:
            density = cell.bonus * parent.weight / parent.left_s
            allowed = all(density >= _KEEPS * h.weight / h.left_s for h in victims)
        else:
            allowed = self._pays(parent, cell, end_s, victims)
        return victims if allowed else None

    def _pays(self, parent: Parent, cell: _Cell, end_s: float, victims: Sequence[_Holder]) -> bool:
        """Whether ``fork=auto`` takes the GPUs: the two conditions on its victims, and the price."""
        calm, bonus, prices = self._calm, cell.bonus, self.base.plan.prices
        for h in victims:
            urgent = bonus * parent.weight >= _URGENT * h.weight
            short = bonus * h.left_s >= _SHORT * end_s and bonus * end_s >= WORTH_A_START * h.job.restart_cost_s
            if not urgent and not (calm and short):
                return False
        price = prices.get(self.base.arena.slots[cell.slot], 0.0)
        own = sum(c * prices.get((n, t), 0.0) for p in parent.cells.values() for n, t, c in p.items())
        gain = (parent.left_s - end_s) * (parent.weight + own)
        restarts = sum(h.gang[0][1] * h.job.restart_cost_s for h in victims if h.job.running)
        return bonus * gain >= _WORTH * (price * (cell.workers * end_s + restarts))

    def _oust(self, parent: Parent, holder: _Holder) -> None:
        self.displaced[holder.job.job_id] = parent.family.parent
        if holder.parent is not None:
            placement = holder.parent.cells[holder.job.job_id]
            holder.parent.take(holder.job)
        else:
            placement = self.base.plan.placement(holder.job.job_id)
        self.ledger.put_back(self.base.arena.gang(placement))
