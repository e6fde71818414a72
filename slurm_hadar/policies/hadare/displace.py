"""Forked jobs that take GPUs which the base plan gives to others (``fork=auto`` and ``fork=spread``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_hadar.model import Fork, Job, Placement
from slurm_hadar.policies.hadare.base_plan import BasePlan
from slurm_hadar.policies.hadare.line import Line
from slurm_hadar.policies.hadare.parents import LEAST_SHARE, WORTH_A_START, Parent
from slurm_hadar.policies.toolkit.gangs import Gang
from slurm_hadar.policies.toolkit.ledger import Ledger

__all__ = ["displace"]

_KEEPS = 1.1  # what a copy has it keeps where it is not outdone by more than this
_ERRORS = 2.0  # of the speed there, by which it has to be better: what is tried is most often what was overrated
_URGENT = 2.0  # where prices decide, fork=auto takes GPUs of those whose weight is so many times smaller
_WORTH = 1.5  # and where that is worth so many times what it costs


@dataclass(frozen=True, slots=True)
class _Holder:
    """Who has GPUs of one slot and could be made to wait: a job by the base plan, or a copy of ``parent``.

    ``density``: weight over the time to go, where it is fastest, or with a copy on every node.
    """

    job: Job
    gang: Gang
    density: float
    weight: float
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
    """Give copies GPUs that others have; changes ``parents`` and ``ledger``.

    ``idle``: GPUs per slot that the base plan left to nobody. Returns who lost GPUs, and the parent that got them.
    """
    eager = [p for p in parents if p.mode is not Fork.IDLE and p.forkable and p.rate > 0]
    if not eager:
        return {}
    line = Line.of(base.arena, [p for p in parents if p.forkable])
    work = _Displacement(base, ledger, line)
    holders = work.holders(idle)
    for parent in sorted(eager, key=lambda p: -line.density(p)):  # stable: in order of arrival among equals
        if parent.rate > 0:  # it may have lost all of it
            work.spread(parent, holders)
    return work.displaced


@dataclass
class _Displacement:
    base: BasePlan
    ledger: Ledger
    line: Line
    displaced: dict[str, str] = field(default_factory=dict)
    by_price: bool = field(init=False)  # whether the base plan's prices decide for fork=auto, not the line

    def __post_init__(self) -> None:
        waits = self.base.plan.waits.items()
        others_wait = any(w.payoff is not None for j, w in waits if j not in self.line.places)
        self.by_price = others_wait or self.base.longest_first

    def holders(self, idle: Sequence[int]) -> dict[int, list[_Holder]]:
        """Per slot, who is there, on this slot alone, and need not stay; the least dense first."""
        found: dict[int, list[_Holder]] = {}
        for holder in (*self._plain(idle), *self._copies()):
            found.setdefault(holder.gang[0][0], []).append(holder)
        for there in found.values():
            there.sort(key=lambda h: (h.density, h.job.job_id))
        return found

    def _plain(self, idle: Sequence[int]) -> list[_Holder]:
        """Jobs that are not forked. Left out are those who would be given other GPUs in the next round, that copies
        have only because they were idle: nothing would be gained but a move."""
        base, found = self.base, []
        for job in base.arena.movers:
            placement = base.plan.placement(job.job_id)
            gang, rate = base.arena.gang(placement), job.rate(placement)
            one_slot = len(gang) == 1 and len(placement.nodes) == 1 and rate > 0
            if job.job_id not in self.line.places and one_slot and not self._elsewhere(job, idle):
                best = max(rate, job.best_rate())
                weight = base.weights.get(job.job_id, job.weight)
                density = weight * best / max(job.steps_to_go(best, base.unknown_runtime_s), 1.0)
                found.append(_Holder(job, gang, density, weight, None))
        return found

    def _elsewhere(self, job: Job, idle: Sequence[int]) -> bool:
        """Whether GPUs that the base plan leaves idle would do for the job."""
        least = job.form.gang_sizes[0]
        return any(idle[s] >= least for slots in self.base.arena.reach(job).by_type.values() for s in slots)

    def _copies(self) -> list[_Holder]:
        found = []
        for parent in self.line.parents:
            copies = {} if parent.fixed else {j.job_id: j for j in parent.family.copies}
            for job_id, placement in parent.cells.items():
                gang = self.base.arena.gang(placement)
                if job_id in copies and len(gang) == 1 and len(placement.nodes) == 1:
                    density = self.line.density(parent)
                    found.append(_Holder(copies[job_id], gang, density, parent.weight, parent))
        return found

    def spread(self, parent: Parent, holders: Mapping[int, list[_Holder]]) -> None:
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
        return victims if self._allowed(parent, cell, end_s, victims) else None

    def _allowed(self, parent: Parent, cell: _Cell, end_s: float, victims: Sequence[_Holder]) -> bool:
        if parent.mode is Fork.AUTO and (self.by_price or any(h.parent is None for h in victims)):
            urgent = all(cell.bonus * parent.weight >= _URGENT * h.weight for h in victims)
            return urgent and self._outbids(parent, cell, end_s, victims)
        denser = all(cell.bonus * self.line.density(parent) >= _KEEPS * h.density for h in victims)
        return denser and (parent.mode is Fork.SPREAD or self._goes_first(parent, cell, end_s, victims))

    def _outbids(self, parent: Parent, cell: _Cell, end_s: float, victims: Sequence[_Holder]) -> bool:
        """Whether the parent's earlier end, and that of its own GPUs, is worth so much more than the price of the GPUs
        until then, and of the restarts."""
        prices, slots = self.base.plan.prices, self.base.arena.slots
        price = prices.get(slots[cell.slot], 0.0)
        own = sum(c * prices.get((n, t), 0.0) for p in parent.cells.values() for n, t, c in p.items())
        restarts = sum(h.gang[0][1] * h.job.restart_cost_s for h in victims if h.job.running)
        gain = (parent.left_s - end_s) * (parent.weight + own)
        return cell.bonus * gain >= _WORTH * price * (cell.workers * end_s + restarts)

    def _goes_first(self, parent: Parent, cell: _Cell, end_s: float, victims: Sequence[_Holder]) -> bool:
        """Whether it serves all to have the parent end so much sooner (:mod:`slurm_hadar.policies.hadare.line`)."""
        line = self.line
        behind, heir = line.weight_behind(parent), line.next_to(parent)
        gangs = (self.base.arena.gang(p) for p in parent.cells.values())
        own = sum(line.share(heir, slot) for gang in gangs for slot, _ in gang) if heir else 0.0
        gain = (parent.left_s - end_s) * (parent.weight + behind * own)
        loss = sum(
            line.share(h.parent, cell.slot) * (end_s + (h.job.restart_cost_s if h.job.running else 0.0))
            for h in victims
            if h.parent is not None
        )
        error = cell.copy.speeds_at(cell.workers)[self.base.arena.slots[cell.slot][1]].error
        margin = 1.0 if cell.stays else 1.0 + _ERRORS * (error or 0.0)
        return cell.bonus * gain >= margin * behind * loss

    def _oust(self, parent: Parent, holder: _Holder) -> None:
        self.displaced[holder.job.job_id] = parent.family.parent
        if holder.parent is not None:
            placement = holder.parent.cells[holder.job.job_id]
            holder.parent.take(holder.job)
        else:
            placement = self.base.plan.placement(holder.job.job_id)
        self.ledger.put_back(self.base.arena.gang(placement))
