"""Hadar's view of each job, and the search for the best gang at given prices (FIND_ALLOC)."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from slurm_hadar.model import Form, Job, Mix, Speed
from slurm_hadar.policies.hadar.lookahead.makespan import shadow_prices
from slurm_hadar.policies.hadar.lookahead.outlook import PREFERRED
from slurm_hadar.policies.hadar.paper.utilities import Era, Utility, Work
from slurm_hadar.policies.toolkit.arena import Arena, Reach
from slurm_hadar.policies.toolkit.gangs import Gang, node_counts
from slurm_hadar.policies.toolkit.ledger import Ledger

__all__ = ["Bidder", "Market", "Offer", "make_bidders", "round_era"]


@dataclass(frozen=True, slots=True)
class Offer:
    """One gang that a job could take now. ``utility`` is per round, with the bonus for staying where the job stays."""

    gang: Gang
    utility: float
    stays: bool = False


@dataclass(slots=True)
class TypeOption:
    """One GPU type for one job: its slots, the run time of what remains on one node, and how fast the job is there."""

    gpu_type: str
    slots: tuple[int, ...]
    one_node_s: float
    speed: Speed
    most_nodes: int

    def run_s(self, nodes: int) -> float:
        """The run time of what remains on so many nodes."""
        return self.one_node_s / self.speed.factor(nodes) if nodes > 1 else self.one_node_s

    @property
    def worst_s(self) -> float:
        """The run time spread over nodes: where a graph tells them apart, over as many as the job may have."""
        speed = self.speed
        return self.one_node_s / (speed.factor(self.most_nodes) if speed.by_nodes else speed.spread)


@dataclass
class Market:
    """What is the same for all bidders of a round: slots, utility, and the rules of moving."""

    arena: Arena
    utility: Utility
    era: Era
    switch_gain: float
    patience_s: float


@dataclass
class Bidder:
    """One job that wants GPUs, compiled for speed. ``options`` go from the fastest type to the slowest."""

    job: Job
    market: Market
    reach: Reach
    work: Work
    remaining_steps: float
    options: list[TypeOption]
    stay: Gang | None = None
    stay_utility: float = 0.0
    density: float = 0.0
    _utilities: dict[float, float] = field(default_factory=dict)

    def utility(self, run_s: float) -> float:
        """Utility per round of running ``run_s`` seconds on a new placement, its restart included."""
        found = self._utilities.get(run_s)
        if found is None:
            found = self.market.utility.per_round(self.work, self.market.era, run_s + self.job.restart_cost_s)
            self._utilities[run_s] = found
        return found

    def tolerates(self, run_s: float) -> bool:
        """False while the job, which could not be moved again, does better to wait for a faster type.

        It may wait ``patience_s`` from its arrival at most, so that no job waits for ever.
        """
        market = self.market
        if not market.patience_s or self.job.unmovable is None:
            return True
        left_s = market.patience_s - self.work.age_s
        return left_s <= 0 or run_s <= self.options[0].one_node_s + left_s

    def offers(self, ledger: Ledger, wide: bool = False) -> list[Offer]:
        """What the job could take: staying, the best gang of each type, and mixed gangs where its form allows them.

        The offers of types are in order of speed. With ``wide`` there are also gangs spread over several nodes where
        one node has room: slower, but they leave that node to another gang.
        """
        found = []
        if self.stay is not None and ledger.is_free(self.stay):
            found.append(Offer(self.stay, self.stay_utility, stays=True))
        form = self.job.form
        for option in self.options:
            if ledger.by_type[option.gpu_type] >= form.workers:
                found.extend(self._on_type(option, ledger, wide))
        if form.mix is not Mix.NEVER and len(self.options) > 1:
            found.extend(self._mixed(form, ledger))
            if wide and self._spread_form:
                found.extend(self._mixed(self._spread_form, ledger))
        return found

    def _on_type(self, option: TypeOption, ledger: Ledger, wide: bool) -> list[Offer]:
        gangs = [ledger.find(self.job.form, option.slots)]
        if wide and gangs[0] and len(gangs[0]) == 1 and self._spread_form:
            gangs.append(ledger.find(self._spread_form, option.slots))
        return [o for g in gangs if g for o in self._worth(tuple(sorted(g)), option.run_s(len(g)))]

    @functools.cached_property
    def _spread_form(self) -> Form | None:
        """The form limited to gangs that span several nodes; None if there are none."""
        form = self.job.form
        spread = form if form.min_nodes > 1 else replace(form, min_nodes=2)
        return spread if node_counts(spread) else None

    def _worth(self, gang: Gang, run_s: float) -> list[Offer]:
        if gang == self.stay or not self.tolerates(run_s):
            return []
        return [Offer(gang, self.utility(run_s))]

    def _mixed(self, form: Form, ledger: Ledger) -> list[Offer]:
        """Mixed gangs, one pool of types for each possible slowest type (the bottleneck of a gated gang)."""
        found = []
        arena = self.market.arena
        gangs = [ledger.find_mixed(form, nodes) for nodes in self._pools]
        if form.mix is Mix.BALANCED:
            gangs.append(ledger.find_mixed(form, self._pools[-1], self._slot_speed))
        for gang in dict.fromkeys(tuple(sorted(g)) for g in gangs if g):
            if len({arena.type_of[s] for s, _ in gang}) > 1:
                rate = self.job.rate(arena.placement(gang))
                found.extend(self._worth(gang, self.remaining_steps / rate))
        return found

    @functools.cached_property
    def _slot_speed(self) -> list[float]:
        speeds = {o.gpu_type: self.job.speeds[o.gpu_type].steps_per_s for o in self.options}
        return [speeds.get(t, 0.0) for t in self.market.arena.type_of]

    @functools.cached_property
    def _pools(self) -> list[list[tuple[int, ...]]]:
        """Slots per node for the fastest 2, 3, ... types: slowest first for a gated gang, since the slowest rate is
        paid for anyway, and fastest first for a balanced one."""
        speed = {o.gpu_type: i for i, o in enumerate(self.options)}
        sign = 1 if self.job.form.mix is Mix.BALANCED else -1
        type_of = self.market.arena.type_of
        pools = []
        for last in range(1, len(self.options)):
            nodes = []
            for slots in self.reach.nodes:
                here = [s for s in slots if speed[type_of[s]] <= last]
                if here:
                    nodes.append(tuple(sorted(here, key=lambda s: (sign * speed[type_of[s]], s))))
            pools.append(nodes)
        return pools


def make_bidders(market: Market, unknown_runtime_s: float) -> list[Bidder]:
    """The jobs to decide about that can run on something, densest first.

    Density is utility per round and GPU on the best type, with no restart counted, so that the order of the jobs does
    not depend on which of them happen to run.
    """
    bidders = []
    for job in market.arena.movers:
        bidder = _bidder(market, job, unknown_runtime_s)
        if bidder is not None:
            bidders.append(bidder)
    bidders.sort(key=lambda b: (-b.density, b.job.arrival, b.job.job_id))
    return bidders


def _bidder(market: Market, job: Job, unknown_runtime_s: float) -> Bidder | None:
    reach = market.arena.reach(job)
    felt = ((job.speeds[t].steps_per_s * _wish(job, (t,)), t) for t in reach.by_type)
    rates = sorted(felt, key=lambda pair: (-pair[0], pair[1]))
    stays = job.running
    if not stays and (not rates or job.form.workers < 1):
        return None
    best = rates[0][0] if rates else (job.best_rate() or 1.0)
    steps = job.steps_to_go(best, unknown_runtime_s)
    most = job.form.max_nodes
    options = [TypeOption(t, reach.modest[t], steps / rate, job.speeds[t], most) for rate, t in rates]
    work = _work(market, job, options, steps, best)
    bidder = Bidder(job, market, reach, work, steps, options)
    bidder.density = market.utility.per_round(work, market.era, work.remaining_s) / max(1, job.form.workers)
    if stays:
        rate = job.rate(job.placement) * _wish(job, job.placement.by_type)
        bidder.stay = tuple(sorted(market.arena.gang(job.placement)))
        if rate > 0:
            worth = market.utility.per_round(work, market.era, steps / rate)
            bidder.stay_utility = worth * (1.0 + market.switch_gain)
    return bidder


def _wish(job: Job, gpu_types: Iterable[str]) -> float:
    """How much faster than they are the types that a job's owner prefers count: our definition of a wish."""
    return PREFERRED if job.prefer and job.prefer.issuperset(gpu_types) else 1.0


def _work(market: Market, job: Job, options: Sequence[TypeOption], steps: float, best_rate: float) -> Work:
    now = market.arena.snapshot.time
    remaining_s = steps / best_rate
    prices = market.era.type_prices
    return Work(
        workers=job.form.workers,
        remaining_s=remaining_s,
        total_s=max(remaining_s, (job.expected_steps or 0.0) / best_rate),
        priced_s=min((prices.get(o.gpu_type, 1.0) * o.one_node_s for o in options), default=remaining_s),
        age_s=max(0.0, now - job.arrival),
        weight=job.weight,
        deadline_in_s=None if job.deadline is None else job.deadline - now,
    )


def round_era(arena: Arena, unknown_runtime_s: float) -> Era:
    """The round's figures that the utilities need: contention, type prices and a lower bound on the makespan.

    The bound is the larger of the longest best run time and the fluid bound of
    :mod:`slurm_hadar.policies.hadar.lookahead.makespan`.
    """
    work, wanted, longest = [], 0, 1.0
    for job in arena.movers:
        rates = {t: job.speeds[t].steps_per_s for t in arena.reach(job).by_type}
        if not rates:
            continue
        steps = job.steps_to_go(max(rates.values()), unknown_runtime_s)
        work.append([job.form.workers * steps / rates[t] if t in rates else math.inf for t in arena.types])
        wanted += job.form.workers
        longest = max(longest, steps / max(rates.values()))
    if not work:
        return Era(round_s=arena.snapshot.round_s)
    prices, bound = shadow_prices(np.array(work), np.array([float(n) for n in arena.gpus.values()]))
    gpus = sum(arena.gpus.values())
    return Era(
        contention=max(1.0, wanted / gpus),
        makespan_s=max(longest, bound),
        round_s=arena.snapshot.round_s,
        type_prices=dict(zip(arena.types, prices.tolist(), strict=True)),
        mean_work_s=bound * gpus / len(work),
    )
