"""Which nodes get copies of forked jobs, once the base plan says where one copy of each goes. All of it our definition.

A parent with R steps to go whose copies make X steps/s has ``R / X`` seconds to go; with one more copy of rate Xn, that
starts after s seconds, ``(R + Xn s) / (X + Xn)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_hadar.model import Job, Placement, Plan
from slurm_hadar.policies.hadare.base_plan import BasePlan
from slurm_hadar.policies.hadare.displace import displace
from slurm_hadar.policies.hadare.fill import fill
from slurm_hadar.policies.hadare.parents import WORTH_A_START, Parent
from slurm_hadar.policies.toolkit.ledger import Ledger

__all__ = ["Deal", "deal_copies"]


@dataclass(frozen=True)
class Deal:
    """Who got what: ``parents`` with the cells of their copies, and the ``ledger`` of what is left.

    ``displaced`` are the jobs and copies that lost the base plan's GPUs, with the parent that got them.
    """

    base: BasePlan
    parents: Sequence[Parent]
    ledger: Ledger
    displaced: Mapping[str, str]


def deal_copies(base: BasePlan, parents: Sequence[Parent]) -> Deal:
    """Deal the GPUs that the base plan leaves, and some that it does not, to copies of ``parents``, which are changed.

    First each parent's place in the base plan goes to one of its copies; copies that run go on; new ones go onto idle
    GPUs; parents that may do so take GPUs from others; and elastic copies grow into what is left.
    """
    ledger = Ledger(base.arena)
    for job in base.arena.movers:
        ledger.take(base.arena.gang(base.plan.placement(job.job_id)))
    for parent in parents:
        _place_lead(ledger, base.plan, parent)
    idle = tuple(ledger.free)
    for parent in parents:
        _keep_copies(ledger, parent)
    fill(ledger, parents, longest_first=base.longest_first)
    displaced = displace(base, parents, ledger, idle) if base.priced else {}
    if displaced:
        fill(ledger, parents, longest_first=base.longest_first)
    for parent in parents:
        _grow_copies(ledger, parent)
    return Deal(base, parents, ledger, displaced)


# What the base plan gave to the parents


def _place_lead(ledger: Ledger, plan: Plan, parent: Parent) -> None:
    """The parent's place in the base plan goes to the copy that is there, or else to one that waits: where a copy runs
    elsewhere, it need not move. The lead itself moves only if no other is left."""
    wanted = plan.placement(parent.shown_as)
    if parent.fixed:
        parent.lead = parent.lead_job.job_id
    elif wanted:
        ledger.put_back(ledger.arena.gang(wanted))
        copy, placement = _lead_and_place(ledger, parent, wanted)
        parent.lead = copy.job_id
        parent.give(copy, placement, ledger)


def _lead_and_place(ledger: Ledger, parent: Parent, wanted: Placement) -> tuple[Job, Placement]:
    lead = parent.lead_job
    for copy in parent.running:
        if copy.placement == wanted:
            return copy, wanted
    for copy in parent.running:
        if not {*copy.placement.nodes}.isdisjoint(wanted.nodes):
            return copy, copy.placement if _is_free(ledger, copy) and copy.rate(copy.placement) > 0 else wanted
    if lead in parent.running and _may_stay(ledger, lead) and lead.rate(lead.placement) >= lead.rate(wanted):
        return lead, lead.placement
    if lead in parent.spare or not parent.spare or len(wanted.nodes) > 1:
        return lead, wanted
    return parent.spare[0], wanted


def _is_free(ledger: Ledger, copy: Job) -> bool:
    """Whether nobody was given what it holds on available nodes."""
    return ledger.is_free(ledger.arena.gang(copy.placement))


def _may_stay(ledger: Ledger, copy: Job) -> bool:
    """Whether all that it holds is on available nodes, and nobody else's."""
    return ledger.has_room(copy.placement)


# What is left


def _keep_copies(ledger: Ledger, parent: Parent) -> None:
    """Running copies go on where nobody was given their GPUs; others may be put elsewhere, as those that wait."""
    for copy in list(parent.running):
        if parent.nodes.isdisjoint(copy.placement.nodes) and _is_free(ledger, copy):
            parent.give(copy, copy.placement, ledger)
    parent.spare.extend(parent.running)


def _grow_copies(ledger: Ledger, parent: Parent) -> None:
    """Elastic copies take more of their node where nobody else does; those that run, if that pays for a restart."""
    if not parent.lead_job.form.sizes:
        return
    stuck = {j.job_id for j in parent.fixed}
    for copy in parent.family.copies:
        if copy.job_id in parent.cells and copy.job_id not in stuck:
            _grow(ledger, parent, copy)


def _grow(ledger: Ledger, parent: Parent, copy: Job) -> None:
    placement, arena = parent.cells[copy.job_id], ledger.arena
    gang = arena.gang(placement)
    if len(gang) != 1 or len(placement.nodes) != 1:
        return
    slot, count = gang[0]
    node, gpu_type = arena.slots[slot]
    larger = [n for n in copy.form.gang_sizes if count < n <= count + ledger.free[slot]]
    wider = max((Placement.of({node: {gpu_type: n}}) for n in larger), key=copy.rate, default=placement)
    more = copy.rate(wider) - copy.rate(placement)
    restart_s = copy.restart_cost_s if copy.running and copy.placement == placement else 0.0
    if more > 0 and more * (parent.left_s - restart_s) > WORTH_A_START * restart_s * copy.rate(wider):
        ledger.put_back(gang)
        parent.rate += more
        parent.cells[copy.job_id] = wider
        ledger.take(arena.gang(wider))
