"""Forked jobs on their way through a decision of HadarE: as one job for the base plan, then copy by copy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slurm_hadar.model import Fork, Job, Placement, Snapshot
from slurm_hadar.policies.toolkit.copies import Family, fastest
from slurm_hadar.policies.toolkit.ledger import Ledger

__all__ = ["LEAST_SHARE", "WORTH_A_START", "WORTH_IDLE", "Parent", "parents_of", "with_parents"]

WORTH_A_START = 2.0  # where others could have its GPUs a copy must work for so many times as long as its start takes,
WORTH_IDLE = 0.5  # and where they are idle for this part of it: one that takes somewhat longer gains nothing then
LEAST_SHARE = 0.02  # of its parent's speed: what is slower does not even make up for the consolidations


@dataclass
class Parent:
    """A forked job while its copies are dealt out.

    ``lead_job`` stands for the parent in the base plan, under the name ``shown_as``; where a copy cannot be stopped
    there is nothing to decide, and the base plan sees (``fixed``) all such copies instead. ``lead`` is the copy that
    has the base plan's place. ``steps`` are what remains, ``cells`` what each copy gets, ``nodes`` and ``rate``
    (steps/s) of all cells together. ``spare`` are pending copies that have no place yet, ``running`` those that run
    and have none yet.
    """

    family: Family
    mode: Fork
    lead_job: Job
    shown_as: str
    steps: float
    weight: float
    fixed: tuple[Job, ...] = ()
    lead: str = ""
    cells: dict[str, Placement] = field(default_factory=dict)
    nodes: set[str] = field(default_factory=set)
    rate: float = 0.0
    spare: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)

    @property
    def forkable(self) -> bool:
        """Whether its copies can be single-node gangs at all."""
        return self.lead_job.form.min_nodes <= 1

    @property
    def left_s(self) -> float:
        """Seconds to the end with what its copies have."""
        return self.steps / self.rate if self.rate > 0 else float("inf")

    @property
    def pays_a_start(self) -> bool:
        """Whether there is time left in which a new copy on idle GPUs could earn its start, however slow it is."""
        return self.left_s >= (1.0 + WORTH_IDLE) * self.lead_job.restart_cost_s

    def give(self, copy: Job, placement: Placement, ledger: Ledger | None = None) -> None:
        """The copy gets the placement, out of the ``ledger`` unless it has it in any case."""
        if ledger is not None:
            ledger.take(ledger.arena.gang(placement))
        self.cells[copy.job_id] = placement
        self.nodes.update(placement.nodes)
        self.rate += copy.rate(placement)
        for waiting in (self.spare, self.running):
            if copy in waiting:
                waiting.remove(copy)

    def take(self, copy: Job) -> None:
        """The copy loses its placement."""
        placement = self.cells.pop(copy.job_id)
        self.nodes.difference_update(placement.nodes)
        self.rate = sum(self.lead_job.rate(p) for p in self.cells.values())
        if copy.placement != placement:
            self.spare.append(copy)


def parents_of(snapshot: Snapshot, mode: Fork | None, unknown_runtime_s: float) -> list[Parent]:
    """The forked jobs, in order of arrival. ``mode`` overrides what they say. Where nobody states or predicts steps,
    ``unknown_runtime_s`` on the best type is assumed to remain, as in the base plan."""
    leads = snapshot.memory.get("leads", {})
    found = []
    for family in Family.all_of(snapshot):
        held = tuple(j for j in family.stuck if j.running and j.placement)
        lead = _lead(family, held, leads.get(family.parent))
        if lead is None:
            continue
        parent = Parent(
            family,
            mode or lead.fork or Fork.AUTO,
            lead,
            _name(snapshot, family, lead),
            lead.steps_to_go(lead.best_rate(), unknown_runtime_s),
            lead.weight,
            held,
            spare=list(family.waiting),
            running=list(family.running),
        )
        for copy in held:
            parent.give(copy, copy.placement)
        found.append(parent)
    return found


def _lead(family: Family, held: tuple[Job, ...], remembered: str | None) -> Job | None:
    """The copy that stands for the parent: one that must stay, the one that did so before, the fastest, the first."""
    if held:
        return fastest(held)
    if family.running:
        return next((j for j in family.running if j.job_id == remembered), None) or fastest(family.running)
    return family.waiting[0] if family.waiting else None


def _name(snapshot: Snapshot, family: Family, lead: Job) -> str:
    """The parent's id, which stays the same whatever copy leads; the lead's own where another job is called so."""
    return lead.job_id if family.parent in snapshot.job else family.parent


def with_parents(snapshot: Snapshot, parents: list[Parent]) -> Snapshot:
    """The snapshot that the base plan is made for: parents instead of copies.

    Copies that must stay are jobs of their own that all end when the parent does; what is on its way in or out is left
    as it is, since it holds GPUs; all other copies are left out, so that what they hold is free.
    """
    seen = {}
    for parent in parents:
        for copy in parent.family.stuck:
            seen[copy.job_id] = replace(copy, fork=None)
        for copy in parent.fixed:
            if copy.total_steps is not None and parent.rate > 0:
                mine = parent.steps * copy.rate(copy.placement) / parent.rate
                seen[copy.job_id] = replace(copy, fork=None, done_steps=copy.total_steps - mine)
        if not parent.fixed:
            attained_s = sum(j.attained_s for j in parent.family.copies)
            lead = replace(parent.lead_job, job_id=parent.shown_as, fork=None, array_id=None, attained_s=attained_s)
            seen[parent.lead_job.job_id] = lead
    ours = {j.job_id for p in parents for j in p.family.copies}
    return snapshot.with_jobs(seen.get(j.job_id, j) for j in snapshot.jobs if j.job_id not in ours or j.job_id in seen)
