"""What Hadar tells the owner of a job that waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slurm_hadar.model import Placement, Tier, Wait
from slurm_hadar.policies.hadar.paper.bids import Bidder, Offer
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.gangs import Gang
from slurm_hadar.policies.toolkit.ledger import Ledger
from slurm_hadar.policies.toolkit.waits import Obstacles, listing

__all__ = ["explain_waits"]

_PATIENT = Wait(
    Tier.POLICY, "waits for a faster GPU type, since it cannot be moved once it has started (patience_s bounds this)"
)


def explain_waits(
    arena: Arena, bidders: Sequence[Bidder], placements: Mapping[str, Placement], price: Mapping[str, float]
) -> dict[str, Wait]:
    """A Wait for every job to be decided about that has no placement, at the prices after the last sale."""
    obstacles = Obstacles(arena)
    by_job = {b.job.job_id: b for b in bidders}
    holding = _holding(arena, placements)
    ledger = Ledger(arena)
    waits = {}
    for job in arena.movers:
        if job.job_id in placements:
            continue
        obstacle = obstacles.of(job)
        if obstacle is not None:
            waits[job.job_id] = obstacle
            continue
        bidder = by_job[job.job_id]
        offers = [o for o in bidder.offers(ledger) if not o.stays or o.utility > 0]
        waits[job.job_id] = _wait(arena, bidder, offers, price, holding)
    return waits


def _wait(
    arena: Arena, bidder: Bidder, offers: list[Offer], price: Mapping[str, float], holding: Mapping[int, list[str]]
) -> Wait:
    if not offers:
        return _PATIENT
    cost, offer = min(((_cost(arena, o.gang, price), o) for o in offers), key=lambda pair: pair[0] - pair[1].utility)
    payoff = offer.utility - cost
    wanted = bidder.job.placement if offer.stays else arena.placement(offer.gang)
    holders = list(dict.fromkeys(job_id for slot, _ in offer.gang for job_id in holding.get(slot, ())))
    if payoff > 0 and holders:
        why = f"{wanted} would be worth {offer.utility:.3g} to it at a price of {cost:.3g}, but is held by "
        return Wait(Tier.CAPACITY, why + listing(holders), cost, payoff, wanted)
    why = f"its best place {wanted} is worth {offer.utility:.3g} to it this round and costs {cost:.3g}"
    if holders:
        why += f"; {listing(holders)} gain more there"
    return Wait(Tier.POLICY, why, cost, payoff, wanted)


def _cost(arena: Arena, gang: Gang, price: Mapping[str, float]) -> float:
    return sum(count * price[arena.type_of[slot]] for slot, count in gang)


def _holding(arena: Arena, placements: Mapping[str, Placement]) -> dict[int, list[str]]:
    holding: dict[int, list[str]] = {}
    for job_id, placement in placements.items():
        for slot, _ in arena.gang(placement):
            holding.setdefault(slot, []).append(job_id)
    return holding
