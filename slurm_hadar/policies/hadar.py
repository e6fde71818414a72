"""Hadar: task-level, heterogeneity-aware scheduling by prices (primal-dual), one round at a time."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from slurm_hadar.errors import ConfigError
from slurm_hadar.model import EMPTY, JobState, Placement, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.arena import Arena
from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.hadar_bids import Bidder, Market, make_bidders, round_era
from slurm_hadar.policies.hadar_dual import Board, Draft, draft_plans
from slurm_hadar.policies.hadar_prices import Prices, round_prices
from slurm_hadar.policies.hadar_waits import explain_waits
from slurm_hadar.policies.utilities import make_utility

__all__ = ["Hadar"]

_MOST_STEPS = 8


@dataclass(frozen=True)
class Hadar(Policy):
    """Each round, jobs buy GPUs at exponential prices, and the plan with the largest total utility is carried out.

    After "Hadar" (IPDPS 2024) and "HadarE" (arXiv 2503.10918); what their abstracts do not state is our definition and
    is marked so where it stands. In short: utilities of completion times with the restart in the completion time,
    prices that rise exponentially as a GPU type sells out, a choose-or-skip dynamic programme over the jobs in order of
    density, gangs on one type or, where a job allows it, on several.

    Unlike the irrevocable variant of theory, the round-based preemptive one has no proven competitive ratio;
    ``benchmarks/brute_force.py`` measures how far from the optimum of a round it is.

    Parameters
    ----------
    objective: ``jct`` (average job completion time), ``ttd`` (makespan), ``ftf`` (finish-time fairness), ``deadline``.
    frontier: with ``jct``, how much weight goes to TTD instead: 0 none, 1 all.
    switch_gain: a running job is moved, or stopped for another, only if that gains more than this share; the restart
        cost is counted besides.
    fill: give GPUs that nobody wants at the price to jobs that can use them.
    unknown_runtime_s: the run time on the best type that is assumed of a job whose steps are not known.
    patience_s: a job that could not be moved once started (``unmovable`` set while pending) may wait this long from its
        arrival for a faster type; 0 starts it on whatever is free.
    effort: upper bound on the number of states that the dynamic programme looks at in a round.
    """

    name: ClassVar[str] = "hadar"

    objective: str = "jct"
    frontier: float = 0.0
    switch_gain: float = 0.05
    fill: bool = True
    unknown_runtime_s: float = 3600.0
    patience_s: float = 0.0
    effort: int = 1000

    def __post_init__(self) -> None:
        make_utility(self.objective, self.frontier)
        for key, least in (("switch_gain", 0.0), ("unknown_runtime_s", 1.0), ("patience_s", 0.0), ("effort", 1)):
            value = getattr(self, key)
            if not (math.isfinite(value) and value >= least):
                raise ConfigError(f"policy {self.name}: {key}={value} must be a finite number of at least {least}")

    def allocate(self, snapshot: Snapshot) -> Plan:
        """The plan for the coming round.

        A plan must be one that the policy would repeat if it were carried out; otherwise jobs would be started only to
        be moved a round later. So it is planned again from the state that the plan leads to, until nothing changes. A
        step is taken only if it gains more than ``switch_gain`` and the restarts over keeping all, so the sum of
        utilities rises with each and the steps come to an end; there are seldom more than one.
        """
        state = snapshot
        for _ in range(_MOST_STEPS):
            decision = self._decide(state)
            following = _carried_out(state, decision.placements)
            if following is None:
                break
            state = following
        return self._written_out(decision)

    def _decide(self, snapshot: Snapshot) -> _Decision:
        arena = Arena.of(snapshot)
        era = round_era(arena, self.unknown_runtime_s)
        market = Market(arena, make_utility(self.objective, self.frontier), era, self.switch_gain, self.patience_s)
        bidders = make_bidders(market, self.unknown_runtime_s)
        board = Board.of(arena.free, arena.type_of, bidders)
        prices = round_prices(bidders, _capacity(arena))
        draft = _best(draft_plans(bidders, board, prices, self.effort, self.fill))
        placements = dict(arena.kept)
        for bidder in bidders:
            choice = draft.choices.get(bidder.job.job_id)
            if choice is not None:
                stays = choice.offer.stays
                placements[bidder.job.job_id] = bidder.job.placement if stays else arena.placement(choice.offer.gang)
        return _Decision(arena, bidders, prices, draft, placements)

    def _written_out(self, decision: _Decision) -> Plan:
        arena, draft = decision.arena, decision.draft
        final = decision.prices.at(draft.board.totals)
        waits = {job_id: Wait(Tier.TRANSIENT, why) for job_id, why in arena.odd.items()}
        waits |= explain_waits(arena, decision.bidders, decision.placements, final)
        return Plan(
            self.name,
            decision.placements,
            waits,
            {pair: final[pair[1]] for pair in arena.slots},
            {job_id: choice.payoff for job_id, choice in draft.choices.items()},
        )


@dataclass(frozen=True)
class _Decision:
    """What runs where, and all that is needed to explain it."""

    arena: Arena
    bidders: list[Bidder]
    prices: Prices
    draft: Draft
    placements: dict[str, Placement]


def _carried_out(snapshot: Snapshot, placements: Mapping[str, Placement]) -> Snapshot | None:
    """The snapshot with ``placements`` in force; None if they are in force already."""
    jobs, changed = [], False
    for job in snapshot.jobs:
        mover = job.steerable and (job.state is JobState.PENDING or (job.running and bool(job.placement)))
        placement = placements.get(job.job_id, EMPTY)
        if mover and placement != job.placement:
            changed = True
            job = replace(job, placement=placement, state=JobState.RUNNING if placement else JobState.PENDING)
        jobs.append(job)
    return snapshot.with_jobs(jobs) if changed else None


def _best(drafts: list[Draft]) -> Draft:
    """The draft with the largest value; on a tie the first, which moves least. Rounding must not cause a move."""
    best = drafts[0]
    for draft in drafts[1:]:
        if draft.value > best.value * (1 + 1e-9):
            best = draft
    return best


def _capacity(arena: Arena) -> dict[str, int]:
    capacity = dict.fromkeys(arena.type_of, 0)
    for slot, count in enumerate(arena.capacity):
        capacity[arena.type_of[slot]] += count
    return capacity
