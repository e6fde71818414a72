"""What HadarE tells the owner of a forked job about the copies that do not run."""

from __future__ import annotations

from dataclasses import replace

from slurm_hadar.model import Fork, Job, Tier, Wait
from slurm_hadar.policies.hadare.deal import Deal
from slurm_hadar.policies.hadare.parents import Parent
from slurm_hadar.policies.toolkit.waits import listing

__all__ = ["explain_copies", "explain_displaced"]


def explain_displaced(deal: Deal) -> dict[str, Wait]:
    """Jobs whose GPUs in the base plan went to copies of a forked job."""
    copies = {j.job_id for p in deal.parents for j in p.family.copies}
    return {
        job_id: _outbid(f"copies of job {parent} have its GPUs: its earlier end is worth more", deal, job_id)
        for job_id, parent in deal.displaced.items()
        if job_id not in copies
    }


def _outbid(why: str, deal: Deal, name: str) -> Wait:
    """For whom the base plan had GPUs, under this name."""
    return Wait(Tier.POLICY, why, None, deal.base.plan.payoffs.get(name), deal.base.plan.placement(name))


def explain_copies(parent: Parent, deal: Deal) -> dict[str, Wait]:
    """A Wait for each of the parent's copies that has no place. Those on their way in or out have theirs from the base
    plan."""
    out = [j for j in (*parent.family.running, *parent.family.waiting) if j.job_id not in parent.cells]
    if not out:
        return {}
    if parent.cells:
        wait = _beside(parent, deal)
    else:
        wait = _none_runs(parent, deal)
    return {copy.job_id: wait for copy in out}


def _none_runs(parent: Parent, deal: Deal) -> Wait:
    name = f"copy of job {parent.family.parent}"
    by = next((deal.displaced[j.job_id] for j in parent.family.copies if j.job_id in deal.displaced), None)
    if by is not None:
        why = f"{name}: copies of job {by} have its GPUs: its earlier end is worth more"
        return _outbid(why, deal, parent.shown_as)
    wait = deal.base.plan.waits[parent.shown_as]
    return replace(wait, why=f"{name}: {wait.why}")


def _beside(parent: Parent, deal: Deal) -> Wait:
    """Why a parent that runs has no more copies."""
    does = "its copy on {} does the work" if len(parent.nodes) == 1 else "its copies on {} do the work"
    why = f"copy of job {parent.family.parent}: {does.format(listing(sorted(parent.nodes)))}"
    price, payoff = _worth(parent, parent.lead_job, deal)
    tier, reason = _reason(parent, deal)
    return Wait(tier, f"{why}; {reason}", price, payoff)


def _reason(parent: Parent, deal: Deal) -> tuple[Tier, str]:
    arena = deal.base.arena
    open_to = {arena.slots[s][0] for slots in arena.reach(parent.lead_job).by_type.values() for s in slots}
    if not parent.forkable:
        return Tier.CANNOT_RUN, "each needs several nodes, and only single-node gangs can run beside each other"
    if open_to <= parent.nodes:
        return Tier.POLICY, "there is one on each node that it can use"
    if not parent.pays_a_start:
        return Tier.POLICY, f"it is done in {parent.left_s:.0f} s, too soon for another to pay for its start"
    if any(deal.ledger.free[s] >= parent.lead_job.form.gang_sizes[0] for s in _elsewhere(parent, deal)):
        return Tier.POLICY, "on the idle GPUs that it can use another would gain less than it costs"
    limit = "; with fork=idle it takes those of no other job" if parent.mode is Fork.IDLE else ""
    return Tier.CAPACITY, f"no idle GPU that it can use{limit}"


def _elsewhere(parent: Parent, deal: Deal) -> list[int]:
    """The slots open to it on nodes where it has no copy."""
    reach = deal.base.arena.reach(parent.lead_job).by_type.values()
    return [s for slots in reach for s in slots if deal.base.arena.slots[s][0] not in parent.nodes]


def _worth(parent: Parent, copy: Job, deal: Deal) -> tuple[float | None, float | None]:
    """What the GPUs of one more copy cost per second where it would gain most after the price, and that gain."""
    arena, prices, offers = deal.base.arena, deal.base.plan.prices, []
    for slot in _elsewhere(parent, deal):
        pair = arena.slots[slot]
        speed = copy.speeds.get(pair[1])
        if pair in prices and speed is not None and parent.rate > 0:
            price = copy.form.workers * prices[pair]
            gain = parent.weight * speed.steps_per_s / (parent.rate + speed.steps_per_s)
            offers.append((gain - price, price))
    if not offers:
        return None, None
    payoff, price = max(offers)
    return price, payoff
