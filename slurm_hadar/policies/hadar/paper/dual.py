"""Hadar's dual subroutine: which jobs buy which GPUs this round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import mul

from slurm_hadar.policies.hadar.paper.bids import Bidder, Offer
from slurm_hadar.policies.hadar.paper.prices import Prices, clearing_prices

__all__ = ["Board", "Choice", "Draft", "draft_plans"]

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
class Board:
    """GPUs that are free: per slot and per type; ``held`` of them are with running jobs not yet decided about."""

    free: list[int]
    totals: dict[str, int]
    held: list[int]
    type_of: Sequence[str]

    @classmethod
    def of(cls, free: Sequence[int], type_of: Sequence[str], bidders: Iterable[Bidder]) -> Board:
        totals = dict.fromkeys(type_of, 0)
        for slot, count in enumerate(free):
            totals[type_of[slot]] += count
        held = [0] * len(free)
        for bidder in bidders:
            for slot, count in bidder.stay or ():
                held[slot] += count
        return cls(list(free), totals, held, type_of)

    def copy(self) -> Board:
        return Board(self.free.copy(), self.totals.copy(), self.held.copy(), self.type_of)

    def decide(self, bidder: Bidder) -> None:
        """From now on what ``bidder`` holds is either taken again or simply free."""
        for slot, count in bidder.stay or ():
            self.held[slot] -= count

    def take(self, offer: Offer) -> None:
        for slot, count in offer.gang:
            self.free[slot] -= count
            self.totals[self.type_of[slot]] -= count


@dataclass
class Draft:
    """A whole plan under construction. ``value`` is the sum of the utilities per round."""

    board: Board
    choices: dict[str, Choice] = field(default_factory=dict)

    @property
    def value(self) -> float:
        return sum(choice.offer.utility for choice in self.choices.values())

    def add(self, bidder: Bidder, choice: Choice) -> None:
        self.choices[bidder.job.job_id] = choice
        self.board.take(choice.offer)


def draft_plans(bidders: Sequence[Bidder], board: Board, prices: Prices, effort: int, fill: bool) -> list[Draft]:
    """Complete candidate plans, in order of preference among equals.

    1. keep: every running job stays, the others buy greedily;
    2. the dynamic programme over the densest jobs, greedy for the others;
    3. greedy alone.

    Then the GPUs left over are filled in each. O(effort * find + jobs * find) for ``find`` the cost of one FIND_ALLOC.
    """
    drafts = [_keep(bidders, board, prices)]
    window = _window(bidders, board, effort)
    clearing = clearing_prices(bidders, board.totals)
    drafts += _dynamic_programme(window, board, prices, clearing, effort)
    drafts.append(Draft(board.copy()))
    for draft in drafts:
        _greedy(bidders, draft, prices)
        _fill(bidders, draft, prices, fill)
    return drafts


def _cost(offer: Offer, price: Mapping[str, float], type_of: Sequence[str]) -> float:
    return sum(count * price[type_of[slot]] for slot, count in offer.gang)


def _keep(bidders: Sequence[Bidder], board: Board, prices: Prices) -> Draft:
    """Running jobs stay and pay the price of the moment, the densest first; for them it decides nothing."""
    draft = Draft(board.copy())
    for bidder in bidders:
        if bidder.stay is None:
            continue
        draft.board.decide(bidder)
        if all(draft.board.free[slot] >= count for slot, count in bidder.stay):
            offer = Offer(bidder.stay, bidder.stay_utility, stays=True)
            draft.add(bidder, Choice(offer, _cost(offer, prices.at(draft.board.totals), board.type_of)))
    return draft


def _greedy(bidders: Sequence[Bidder], draft: Draft, prices: Prices) -> None:
    """Densest first, each job takes the offer with the largest positive payoff at the price of the moment."""
    board = draft.board
    _restore_held(bidders, draft)
    for bidder in bidders:
        if bidder.job.job_id in draft.choices:
            continue
        board.decide(bidder)
        if bidder.stay is None and not any(board.totals.values()):
            continue
        offers = bidder.offers(board.free, board.totals, board.held)
        if not offers:
            continue
        price = prices.at(board.totals)
        best = max((Choice(o, _cost(o, price, board.type_of)) for o in offers), key=lambda c: c.payoff)
        if best.payoff > 0:
            draft.add(bidder, best)


def _fill(bidders: Sequence[Bidder], draft: Draft, prices: Prices, fill: bool) -> None:
    """Work conservation: GPUs that nobody wants at the price go to whom they serve best.

    A running job keeps its GPUs if nobody took them, whatever the price, even where ``fill`` is off.
    """
    board = draft.board
    _restore_held(bidders, draft)
    for bidder in bidders:
        if bidder.job.job_id in draft.choices:
            continue
        board.decide(bidder)
        if bidder.stay is None and not (fill and any(board.totals.values())):
            continue
        offers = bidder.offers(board.free, board.totals, board.held)
        if not fill:
            offers = [o for o in offers if o.stays]
        if offers:
            best = max(offers, key=lambda o: o.utility)
            draft.add(bidder, Choice(best, _cost(best, prices.at(board.totals), board.type_of)))


def _restore_held(bidders: Sequence[Bidder], draft: Draft) -> None:
    """Count again what undecided running jobs hold, as far as nobody took it."""
    held = draft.board.held
    held[:] = [0] * len(held)
    for bidder in bidders:
        if bidder.stay is not None and bidder.job.job_id not in draft.choices:
            for slot, count in bidder.stay:
                held[slot] += count


def _window(bidders: Sequence[Bidder], board: Board, effort: int) -> Sequence[Bidder]:
    """The densest jobs that together want about twice the GPUs there are, and no more than the effort allows."""
    wanted, room = 0, 2 * sum(board.totals.values())
    for count, bidder in enumerate(bidders):
        if (wanted >= room and count >= _LEAST_WINDOW) or count >= effort:
            return bidders[:count]
        wanted += bidder.job.form.workers
    return bidders


@dataclass(slots=True, eq=False)
class _State:
    """A node of the dynamic programme; ``chain`` links the choices made so far, newest first."""

    utility: float
    payoff: float
    free: list[int]
    totals: dict[str, int]
    chain: tuple | None = None


def _dynamic_programme(
    window: Sequence[Bidder], board: Board, prices: Prices, clearing: Mapping[str, float], effort: int
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
    blocks = _blocks(board.type_of)
    worth_free = [clearing[t] for t in board.totals]
    states = [_State(0.0, 0.0, board.free.copy(), board.totals.copy())]
    held = board.held.copy()
    for bidder in window:
        for slot, count in bidder.stay or ():
            held[slot] -= count
        fresh: dict[tuple, _State] = {}
        for state in states:
            _merge(fresh, state, blocks)
            for new in _choose(state, bidder, held, prices, board.type_of):
                _merge(fresh, new, blocks)
        states = sorted(fresh.values(), key=lambda s: -s.utility - sum(map(mul, worth_free, s.totals.values())))[:beam]
    # What is left free may find no taker among the jobs that follow, so the richest state as it stands counts too.
    finalists = [*states[:2], max(states, key=lambda s: s.utility)]
    return [_unchain(board, state) for i, state in enumerate(finalists) if state not in finalists[:i]]


def _choose(
    state: _State, bidder: Bidder, held: Sequence[int], prices: Prices, type_of: Sequence[str]
) -> Iterable[_State]:
    offers = bidder.offers(state.free, state.totals, held, wide=True)
    if not offers:
        return
    price = prices.at(state.totals)
    for offer in offers:
        cost = _cost(offer, price, type_of)
        if offer.utility > cost:
            free, totals = state.free.copy(), state.totals.copy()
            for slot, count in offer.gang:
                free[slot] -= count
                totals[type_of[slot]] -= count
            chain = (state.chain, bidder, Choice(offer, cost))
            yield _State(state.utility + offer.utility, state.payoff + offer.utility - cost, free, totals, chain)


def _blocks(type_of: Sequence[str]) -> list[list[int]]:
    slots: dict[str, list[int]] = {}
    for slot, gpu_type in enumerate(type_of):
        slots.setdefault(gpu_type, []).append(slot)
    return list(slots.values())


def _merge(states: dict[tuple, _State], state: _State, blocks: list[list[int]]) -> None:
    free = state.free
    key = (*state.totals.values(), *[max([free[s] for s in block]) for block in blocks])
    known = states.get(key)
    if known is None or state.payoff > known.payoff:
        states[key] = state


def _unchain(board: Board, state: _State) -> Draft:
    links = []
    chain = state.chain
    while chain is not None:
        chain, bidder, choice = chain
        links.append((bidder, choice))
    draft = Draft(board.copy())
    for bidder, choice in reversed(links):
        draft.add(bidder, choice)
    return draft
