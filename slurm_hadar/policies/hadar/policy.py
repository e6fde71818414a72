"""Hadar: task-level, heterogeneity-aware scheduling by prices (primal-dual)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from slurm_hadar.errors import ConfigError
from slurm_hadar.model import EMPTY, JobState, Placement, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import UNKNOWN_RUNTIME_S, Policy
from slurm_hadar.policies.hadar.lookahead.objectives import FAIR_SHARES
from slurm_hadar.policies.hadar.lookahead.plan import look_ahead
from slurm_hadar.policies.hadar.lookahead.rules import Rules
from slurm_hadar.policies.hadar.paper.bids import Bidder, Market, make_bidders, round_era
from slurm_hadar.policies.hadar.paper.dual import Draft, draft_plans
from slurm_hadar.policies.hadar.paper.prices import Prices, round_prices
from slurm_hadar.policies.hadar.paper.utilities import Utility, make_utility
from slurm_hadar.policies.hadar.paper.waits import explain_waits
from slurm_hadar.policies.toolkit.arena import Arena

__all__ = ["Hadar"]

_MOST_STEPS = 8


@dataclass(frozen=True)
class Hadar(Policy):
    """Jobs buy GPUs at prices, and run where what they gain exceeds what the jobs behind them lose.

    After "Hadar" (IPDPS 2024) and "HadarE" (arXiv 2503.10918); what their abstracts do not state is our definition and
    is marked so where it stands. There are two kinds of prices:

    * ``lookahead`` (default): the price of a GPU-second is what it costs the jobs that wait for that GPU, over the time
      until they are done (:mod:`slurm_hadar.policies.hadar.lookahead.prices`). Each job queues for the GPU type and
      the gang size that cost all jobs least; each type runs the jobs of highest density, chosen by a dynamic programme
      where gangs leave a hole; free GPUs go to whoever gains most from them for the meantime. Where at most 64 jobs are
      to be decided about and to stop them costs something, or at most 512 and it costs much, the queues are those of
      the best plan found by playing many forward to their ends
      (:mod:`slurm_hadar.policies.hadar.lookahead.planning.search`).
    * ``round``: our reconstruction of the paper's round. Prices rise exponentially as a type sells out, and a
      choose-or-skip dynamic programme picks the plan of largest utility for this round alone. Kept to compare with.

    Neither is the irrevocable variant of theory, so neither has its competitive ratio; ``benchmarks/brute_force.py``
    measures how far ``round`` is from the optimum of a round.

    Parameters
    ----------
    objective: ``jct`` (average job completion time), ``ttd`` (total time duration, makespan), ``ftf`` (finish-time
        fairness), ``deadline``.
    frontier: with ``jct``, from 0 (average JCT alone) over 0.5 (both at once) to 1 (TTD alone); other objectives ignore
        it, and so does a stream of jobs, which has no end. The default costs next to nothing in average JCT and keeps
        the longest jobs of a batch from being left for the end.
    fairness: with ``jct``, from 0 (average JCT alone) to 1 (finish-time fairness alone; with ``frontier=0`` the same as
        ``objective=ftf``).
    prices: ``lookahead`` or ``round``; the latter knows neither ``fairness`` nor ``fair_share``.
    fair_share: ``none``, or weigh each job by the fair share over the recent share of its ``user`` or ``account``, in
        GPU time at the value of the GPU type.
    switch_gain: a running job is moved, or stopped for another, only if that gains more than this share; the restart
        cost is counted besides.
    unknown_runtime_s: the run time on the best type that is assumed of a job whose steps nobody states or predicts,
        until others like it tell (:mod:`slurm_hadar.policies.hadar.lookahead.estimates.lifetimes`; with ``round``,
        always).
    patience_s: in a queue that is too long to be planned, a job that could not be moved once started (``unmovable`` set
        while pending) may wait this long from its arrival for a faster type; 0 starts it on whatever is free.
    overdue: with ``lookahead``, a job that has waited so many times its own run time, and after which others have come,
        goes before all others until it ends (:mod:`slurm_hadar.policies.hadar.lookahead.overdue`); 0 = no such bound.
    fill: with ``prices=round``, give GPUs that nobody wants at the price to jobs that can use them.
    effort: with ``prices=round``, how many states the dynamic programme looks at at most.
    """

    name: ClassVar[str] = "hadar"

    objective: str = "jct"
    frontier: float = 0.25
    fairness: float = 0.0
    prices: str = "lookahead"
    fair_share: str = "none"
    switch_gain: float = 0.05
    fill: bool = True
    unknown_runtime_s: float = UNKNOWN_RUNTIME_S
    patience_s: float = 0.0
    overdue: float = 10.0
    effort: int = 1000

    def __post_init__(self) -> None:
        make_utility(self.objective, self._frontier)
        make_utility("jct", self.frontier)
        for key, valid in (("prices", ("lookahead", "round")), ("fair_share", FAIR_SHARES)):
            if getattr(self, key) not in valid:
                raise ConfigError(f"policy {self.name}: {key}={getattr(self, key)!r} must be one of {', '.join(valid)}")
        if not 0.0 <= self.fairness <= 1.0:
            raise ConfigError(f"policy {self.name}: fairness={self.fairness} must lie between 0 and 1")
        self.require_at_least(switch_gain=0.0, unknown_runtime_s=1.0, patience_s=0.0, overdue=0.0, effort=1)

    def allocate(self, snapshot: Snapshot) -> Plan:
        """The plan for the coming round.

        A plan must be one that the policy would repeat if it were carried out; otherwise jobs would be started only to
        be moved a round later. So with prices of a round it is planned again from the state that the plan leads to,
        until nothing changes. A step is taken only if it gains more than ``switch_gain`` and the restarts over keeping
        all, so the sum of utilities rises with each and the steps come to an end; there are seldom more than one.
        """
        if self.prices == "lookahead":
            return look_ahead(self._rules, snapshot, self.name)
        state = snapshot
        for _ in range(_MOST_STEPS):
            decision = self._decide(state)
            following = _carried_out(state, decision.placements)
            if following is None:
                break
            state = following
        return self._written_out(decision)

    @property
    def utility(self) -> Utility:
        """What a job is worth per round, with ``prices=round``."""
        return make_utility(self.objective, self._frontier)

    @property
    def _frontier(self) -> float:
        return self.frontier if self.objective == "jct" else 0.0

    @property
    def _rules(self) -> Rules:
        return Rules(
            objective=self.objective,
            frontier=1.0 if self.objective == "ttd" else self._frontier,
            fairness=self.fairness,
            fair_share=self.fair_share,
            switch_gain=self.switch_gain,
            unknown_runtime_s=self.unknown_runtime_s,
            patience_s=self.patience_s,
            overdue=self.overdue,
        )

    def _decide(self, snapshot: Snapshot) -> _Decision:
        arena = Arena.of(snapshot)
        era = round_era(arena, self.unknown_runtime_s)
        market = Market(arena, self.utility, era, self.switch_gain, self.patience_s)
        bidders = make_bidders(market, self.unknown_runtime_s)
        prices = round_prices(bidders, arena.gpus)
        draft = _best(draft_plans(bidders, arena, prices, self.effort, self.fill))
        placements = dict(arena.kept)
        for bidder in bidders:
            choice = draft.choices.get(bidder.job.job_id)
            if choice is not None:
                stays = choice.offer.stays
                placements[bidder.job.job_id] = bidder.job.placement if stays else arena.placement(choice.offer.gang)
        return _Decision(arena, bidders, prices, draft, placements)

    def _written_out(self, decision: _Decision) -> Plan:
        arena, draft = decision.arena, decision.draft
        final = decision.prices.at(draft.ledger.by_type)
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
