"""Hadar's dual subroutine: which jobs buy which GPUs this round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import TypeAlias

from slurm_hadar.policies.hadar.paper.bids import Bidder, Offer
from slurm_hadar.policies.hadar.paper.prices import Prices, clearing_prices
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.ledger import Ledger

__all__ = ["Choice", "Draft", "draft_plans"]

# On a tiny cluster twice the GPUs are few jobs; looking at some more costs nothing.
_LEAST_WINDOW = 12


@dataclass(frozen=True, slots=True)
class Choice:
    """What a job takes, what it paid for it and what it gains: ``payoff = utility - price``."""

    offer: Offer
    price: float

    @property
    def payoff(self) -> float:
        return self.offer.utility - self.price


@dataclass
class Draft:
    """A whole plan under construction. ``value`` is the sum of the utilities per round.

    What running jobs hold that are not decided about yet is ``held`` in the ``ledger``.
    """

    ledger: Ledger
    choices: dict[str, Choice] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return sum(choice.offer.utility for choice in self.choices.values())

    def add(self, bidder: Bidder, choice: Choice) -> None:
        self.choices[bidder.job.job_id] = choice
        self.ledger.take(choice.offer.gang)


def draft_plans(bidders: Sequence[Bidder], arena: Arena, prices: Prices, effort: int, fill: bool) -> list[Draft]:
    """Complete candidate plans, in order of preference among equals.

    1. keep: every running job stays, the others buy greedily;
    2. the dynamic programme over the densest jobs, greedy for the others;
    3. greedy alone.

    Then the GPUs left over are filled in each. O(effort * find + jobs * find) for ``find`` the cost of one FIND_ALLOC.
    """
    ledger = Ledger(arena)
    for bidder in bidders:
        ledger.hold(bidder.stay or ())
    drafts = [_keep(bidders, ledger, prices)]
    window = _window(bidders, ledger, effort)
    clearing = clearing_prices(bidders, ledger.by_type)
    drafts += _dynamic_programme(window, ledger, prices, clearing, effort)
    drafts.append(Draft(ledger.copy()))
    for draft in drafts:
        _greedy(bidders, draft, prices)
        _fill(bidders, draft, prices, fill)
    return drafts


def _cost(offer: Offer, price: Mapping[str, float], arena: Arena) -> float:
    return sum(count * price[arena.type_of[slot]] for slot, count in offer.gang)


def _keep(bidders: Sequence[Bidder], ledger: Ledger, prices: Prices) -> Draft:
    """Running jobs stay and pay the price of the moment, the densest first; for them it decides nothing."""
    draft = Draft(ledger.copy())
    for bidder in bidders:
        if bidder.stay is None:
            continue
        draft.ledger.let_go(bidder.stay)
        if draft.ledger.is_free(bidder.stay):
            offer = Offer(bidder.stay, bidder.stay_utility, stays=True)
            draft.add(bidder, Choice(offer, _cost(offer, prices.at(draft.ledger.by_type), ledger.arena)))
    return draft


def _greedy(bidders: Sequence[Bidder], draft: Draft, prices: Prices) -> None:
    """Densest first, each job takes the offer with the largest positive payoff at the price of the moment."""
    ledger = draft.ledger
    for bidder in _undecided(bidders, draft):
        ledger.let_go(bidder.stay or ())
        if bidder.stay is None and not any(ledger.by_type.values()):
            continue
        offers = bidder.offers(ledger)
        if not offers:
            continue
        price = prices.at(ledger.by_type)
        best = max((Choice(o, _cost(o, price, ledger.arena)) for o in offers), key=lambda c: c.payoff)
        if best.payoff > 0:
            draft.add(bidder, best)


def _fill(bidders: Sequence[Bidder], draft: Draft, prices: Prices, fill: bool) -> None:
    """Work conservation: GPUs that nobody wants at the price go to whom they serve best.

    A running job keeps its GPUs if nobody took them, whatever the price, even where ``fill`` is off.
    """
    ledger = draft.ledger
    for bidder in _undecided(bidders, draft):
        ledger.let_go(bidder.stay or ())
        if bidder.stay is None and not (fill and any(ledger.by_type.values())):
            continue
        offers = bidder.offers(ledger)
        if not fill:
            offers = [o for o in offers if o.stays]
        if offers:
            best = max(offers, key=lambda o: o.utility)
            draft.add(bidder, Choice(best, _cost(best, prices.at(ledger.by_type), ledger.arena)))


def _undecided(bidders: Sequence[Bidder], draft: Draft) -> list[Bidder]:
    """Those who have nothing yet; what they hold is counted as held again."""
    found = [b for b in bidders if b.job.job_id not in draft.choices]
    draft.ledger.held = [0] * len(draft.ledger.free)
    for bidder in found:
        draft.ledger.hold(bidder.stay or ())
    return found


def _window(bidders: Sequence[Bidder], ledger: Ledger, effort: int) -> Sequence[Bidder]:
    """The densest jobs that together want about twice the GPUs there are, and no more than the effort allows."""
    wanted, room = 0, 2 * sum(ledger.by_type.values())
    for count, bidder in enumerate(bidders):
        if (wanted >= room and count >= _LEAST_WINDOW) or count >= effort:
            return bidders[:count]
        wanted += bidder.job.form.workers
    return bidders


_Chain: TypeAlias = "tuple[_Chain | None, Bidder, Choice]"


@dataclass(slots=True, eq=False)
class _State:
    """A node of the dynamic programme; ``chain`` links the choices made so far, newest first."""

    utility: float
    payoff: float
    ledger: Ledger
    chain: _Chain | None = None


def _dynamic_programme(
    window: Sequence[Bidder], ledger: Ledger, prices: Prices, clearing: Mapping[str, float], effort: int
) -> list[Draft]:
    """Choose or skip each job in turn; states that leave the same GPUs free are merged, the better one is kept.

    Hadar's recursion memoised on (job, free GPUs by type), made iterative and extended in three ways: a job may choose
    among its offers (one for each type) rather than only its best, the size of the largest free block of each type is
    part of the key, so that merging does not hide whether a gang still fits, and at most ``effort / len(window)``
    states live on per job. Every state carries the true free GPUs per slot, so each choice is feasible.
    """
    if not window:
        return []
    beam = max(1, effort // len(window))
    blocks = _blocks(ledger.arena)
    worth_free = [clearing[t] for t in ledger.by_type]
    states = [_State(0.0, 0.0, ledger.copy())]
    for bidder in window:
        fresh: dict[tuple[int, ...], _State] = {}
        for state in states:
            state.ledger.let_go(bidder.stay or ())
            _merge(fresh, state, blocks)
            for new in _choose(state, bidder, prices):
                _merge(fresh, new, blocks)
        states = sorted(
            fresh.values(), key=lambda s: -s.utility - sum(map(mul, worth_free, s.ledger.by_type.values()))
        )[:beam]
    # What is left free may find no taker among the jobs that follow, so the richest state as it stands counts too.
    finalists = [*states[:2], max(states, key=lambda s: s.utility)]
    return [_unchain(ledger, state) for i, state in enumerate(finalists) if state not in finalists[:i]]


def _choose(state: _State, bidder: Bidder, prices: Prices) -> Iterable[_State]:
    offers = bidder.offers(state.ledger, wide=True)
    if not offers:
        return
    price = prices.at(state.ledger.by_type)
    for offer in offers:
        cost = _cost(offer, price, state.ledger.arena)
        if offer.utility > cost:
            ledger = state.ledger.copy()
            ledger.take(offer.gang)
            chain = (state.chain, bidder, Choice(offer, cost))
            yield _State(state.utility + offer.utility, state.payoff + offer.utility - cost, ledger, chain)


def _blocks(arena: Arena) -> list[list[int]]:
    slots: dict[str, list[int]] = {}
    for slot, gpu_type in enumerate(arena.type_of):
        slots.setdefault(gpu_type, []).append(slot)
    return list(slots.values())


def _merge(states: dict[tuple[int, ...], _State], state: _State, blocks: list[list[int]]) -> None:
    free = state.ledger.free
    key = (*state.ledger.by_type.values(), *[max([free[s] for s in block]) for block in blocks])
    known = states.get(key)
    if known is None or state.payoff > known.payoff:
        states[key] = state


def _unchain(ledger: Ledger, state: _State) -> Draft:
    links = []
    chain = state.chain
    while chain is not None:
        chain, bidder, choice = chain
        links.append((bidder, choice))
    draft = Draft(ledger.copy())
    for bidder, choice in reversed(links):
        draft.add(bidder, choice)
    return draft
