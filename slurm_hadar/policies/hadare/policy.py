"""HadarE: Hadar with forked jobs, whose copies train at once on several nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from slurm_hadar.errors import ConfigError
from slurm_hadar.model import Fork, Plan, Snapshot, Wait
from slurm_hadar.policies.hadar.lookahead.plan import look_ahead_weighed
from slurm_hadar.policies.hadar.policy import Hadar
from slurm_hadar.policies.hadare.base_plan import BasePlan
from slurm_hadar.policies.hadare.deal import Deal, deal_copies
from slurm_hadar.policies.hadare.parents import Parent, parents_of, with_parents
from slurm_hadar.policies.hadare.waits import explain_copies, explain_displaced
from slurm_hadar.policies.toolkit.arena import Arena

__all__ = ["HadarE"]

_BY_JOB = "job"


@dataclass(frozen=True)
class HadarE(Hadar):
    """Hadar's plan for one copy of each forked job, then further copies on top.

    After "HadarE" (arXiv 2503.10918): a job is forked into at most one copy per node, and its copies share its steps.
    Which node gets a copy of what, and when, is our definition (:mod:`slurm_hadar.policies.hadare.deal`):

    * The base plan is Hadar's, played forward where Hadar's own is, over plain jobs and one copy of each parent.
    * Copies that run go on where nobody else was given their GPUs; idle GPUs get the new copies that do most of a job
      in a second (with ``objective=ttd`` or ``frontier`` above 0.5: copies of the parent that has longest to go),
      unless the parent would be done before that works half as long as its start takes.
    * A parent with ``fork=auto`` also takes GPUs of other parents, where its earlier end serves all
      (:mod:`slurm_hadar.policies.hadare.line`): they have the nodes one after the other, but for those that are worth
      more to whoever is behind. It takes those of jobs that are not forked, and any while such jobs wait, only where it
      weighs twice as much and its earlier end is worth one and a half times what they cost at the look-ahead prices.
      With ``fork=spread`` it takes them from all jobs of lower density (weight over time to go).

    Parameters
    ----------
    fork: ``job`` (as each job says), or for all forked jobs ``idle`` (only GPUs that the base plan leaves idle),
        ``spread`` or ``auto``.

    The other parameters are those of :class:`~slurm_hadar.policies.hadar.policy.Hadar`; with ``prices=round``,
    ``auto`` means ``idle``, since there is no price of a GPU-second to compare with.

    Complexity: that of Hadar, and O(parents x nodes) for the copies.
    """

    name: ClassVar[str] = "hadare"
    forks: ClassVar[bool] = True

    fork: str = _BY_JOB

    def __post_init__(self) -> None:
        super().__post_init__()
        valid = (_BY_JOB, *Fork)
        if self.fork not in valid:
            raise ConfigError(f"policy {self.name}: fork={self.fork!r} must be one of {', '.join(valid)}")

    def allocate(self, snapshot: Snapshot) -> Plan:
        """The plan for the coming round."""
        parents = parents_of(snapshot, None if self.fork == _BY_JOB else Fork(self.fork), self.unknown_runtime_s)
        if not parents:
            return super().allocate(snapshot)
        seen = with_parents(snapshot, parents)
        base, weights = self._base(seen)
        for parent in parents:
            parent.weight = weights.get(parent.shown_as, parent.weight)
        deal = deal_copies(
            BasePlan(
                Arena.of(seen),
                base,
                weights,
                priced=self.prices == "lookahead",
                longest_first=self._longest_first,
                unknown_runtime_s=self.unknown_runtime_s,
            ),
            parents,
        )
        return _in_copies(deal)

    @property
    def _longest_first(self) -> bool:
        return self._rules.frontier > 0.5

    def _base(self, seen: Snapshot) -> tuple[Plan, Mapping[str, float]]:
        if self.prices == "lookahead":
            return look_ahead_weighed(self._rules, seen, self.name)
        return super().allocate(seen), {j.job_id: j.weight for j in seen.jobs}


def _in_copies(deal: Deal) -> Plan:
    """The plan in terms of copies instead of parents."""
    base, parents = deal.base.plan, deal.parents
    shown = {p.shown_as for p in parents}
    placements = {j: p for j, p in base.placements.items() if j not in shown and j not in deal.displaced}
    waits: dict[str, Wait] = {j: w for j, w in base.waits.items() if j not in shown}
    payoffs = {j: v for j, v in base.payoffs.items() if j in placements}
    waits |= explain_displaced(deal)
    for parent in parents:
        placements |= parent.cells
        payoffs |= _payoffs(parent, base)
        waits |= explain_copies(parent, deal)
    leads = {p.family.parent: p.lead for p in parents if p.lead in p.cells}
    return replace(base, placements=placements, waits=waits, payoffs=payoffs, memory={**base.memory, "leads": leads})


def _payoffs(parent: Parent, base: Plan) -> dict[str, float]:
    """Per copy, in Hadar's unit: the base plan's for the lead, and for the others the parent's weight times their share
    of its speed, less the price of their GPUs."""
    found = {}
    for job_id, placement in parent.cells.items():
        if job_id == parent.lead and parent.shown_as in base.payoffs:
            found[job_id] = base.payoffs[parent.shown_as]
        elif parent.rate > 0:
            price = sum(count * base.prices.get((node, t), 0.0) for node, t, count in placement.items())
            found[job_id] = parent.weight * parent.lead_job.rate(placement) / parent.rate - price
    return found
