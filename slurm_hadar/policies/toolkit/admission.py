"""What the cluster refuses beside GPUs in use, kept out of every policy: limits, licences, CPUs, memory, whole nodes.

A policy hands out GPUs. Of what it plans, some the cluster would not start: a user is at a limit, the CPUs of a node
are gone before its GPUs. Such a job would be planned again in every round, and its GPUs be lost to all others. So a
plan is checked, what would be refused is taken from the policy's sight, and it is asked again. Jobs that are known
to be blocked are not shown to it at all. Our definition.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_hadar.model import Form, Job, JobState, Node, Placement, Plan, Snapshot, Tenant, Tier, Wait
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.ledger import Ledger
from slurm_hadar.policies.toolkit.tenants import kept_apart, settled, unwelcome
from slurm_hadar.policies.toolkit.waits import Obstacles

__all__ = ["Refusal", "drawn", "refusals", "within_bounds"]

_Allocate = Callable[[Any, Snapshot], Plan]
_MOST_TRIES = 4  # each is a whole decision; what is over after the last waits a round
_ROUNDING = 1e-6
_TAKEN_BACK = "the GPUs that it was to have are kept by a job that may not move now"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job would not start where a plan has it: a quota is used up, or something on a ``node`` is, or it is not
    welcome there (``apart``)."""

    job_id: str
    words: str
    node: str | None = None
    quota: str | None = None
    apart: bool = False


def within_bounds(allocate: _Allocate) -> _Allocate:
    """``allocate``, asked again until its plan is one that the cluster would carry out."""

    @functools.wraps(allocate)
    def allocate_within(self: Any, snapshot: Snapshot) -> Plan:
        barred = {j.job_id: j.blocked for j in snapshot.jobs if j.blocked is not None and j.state is JobState.PENDING}
        if (
            not barred
            and not snapshot.quotas
            and not snapshot.has_tenants
            and all(n.cpus is None and n.memory_bytes is None for n in snapshot.nodes)
        ):
            return allocate(self, snapshot)
        waits = {job_id: Wait(Tier.TRANSIENT, why) for job_id, why in barred.items() if snapshot.job[job_id].steerable}
        kept_off: dict[str, str] = {}
        shown = snapshot.with_jobs([j for j in snapshot.jobs if j.job_id not in barred]) if barred else snapshot
        if snapshot.has_tenants:
            shown = kept_apart(shown, settled(shown), kept_off)
        for _ in range(_MOST_TRIES):
            plan = allocate(self, shown)
            booking = _Booking.of(shown, plan)
            if not booking.refused:
                break
            shown = _without(shown, plan, booking, waits, kept_off)
        else:
            plan = _dropped(shown, plan, waits)
        return replace(plan, waits={**plan.waits, **_for_now(snapshot, plan, kept_off), **waits})

    return allocate_within


def _for_now(snapshot: Snapshot, plan: Plan, kept_off: Mapping[str, str]) -> dict[str, Wait]:
    """The true reasons of jobs that a policy takes for such as can never run, since it was not shown the nodes that
    have no room for them now."""
    hopeless = [job_id for job_id in kept_off if job_id in plan.waits and plan.waits[job_id].tier is Tier.CANNOT_RUN]
    if not hopeless:
        return {}
    of = Obstacles(Arena.of(snapshot)).of
    there = {job_id: of(snapshot.job[job_id]) for job_id in hopeless}
    return {
        job_id: Wait(Tier.TRANSIENT, kept_off[job_id])
        for job_id, obstacle in there.items()
        if obstacle is None or obstacle.tier is not Tier.CANNOT_RUN
    }


def drawn(jobs: Iterable[Job]) -> dict[str, float]:
    """What the jobs among these that run and are steered hold of each quota."""
    held: dict[str, float] = {}
    for job in jobs:
        if job.running and job.steerable:
            for draw in job.needs.draws:
                held[draw.quota] = held.get(draw.quota, 0.0) + draw.amount(job.placement)
    return held


def refusals(snapshot: Snapshot, plan: Plan) -> list[Refusal]:
    """What of a plan the cluster would refuse. What stays where it is has been granted already. O(jobs placed)."""
    return _Booking.of(snapshot, plan).refused


@dataclass
class _Booking:
    """What is left of each quota and on each node while a plan is booked."""

    left: dict[str, float]
    nodes: dict[str, Node]
    words: dict[str, str]
    cpus: dict[str, float] = field(default_factory=dict)
    partition_cpus: dict[tuple[str, str], float] = field(default_factory=dict)
    memory: dict[str, float] = field(default_factory=dict)
    users: dict[str, int] = field(default_factory=dict)
    alone: set[str] = field(default_factory=set)
    tenants: dict[str, set[Tenant]] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)

    @classmethod
    def of(cls, snapshot: Snapshot, plan: Plan) -> _Booking:
        held = drawn(snapshot.jobs)  # what the plan may take counts as left until the plan is booked
        left = {q.name: q.left + held.get(q.name, 0.0) for q in snapshot.quotas}
        booking = cls(left, snapshot.node, {q.name: q.words for q in snapshot.quotas})
        if snapshot.has_tenants:
            booking.tenants = {n.name: set(n.tenants) for n in snapshot.nodes}
        placed = [(snapshot.job[j], p) for j, p in plan.placements.items() if j in snapshot.job]
        for job, placement in sorted(placed, key=lambda pair: _rank(pair[0], pair[1], plan)):
            refusal = None if job.running and placement == job.placement else booking._refusal(job, placement)
            if refusal is not None:
                booking.refused.append(refusal)
            else:
                booking._book(job, placement)
        return booking

    def _refusal(self, job: Job, placement: Placement) -> Refusal | None:
        for draw in job.needs.draws:
            if draw.amount(placement) > self.left.get(draw.quota, float("inf")) + _ROUNDING:
                return Refusal(job.job_id, self.words[draw.quota], quota=draw.quota)
        for name in placement.nodes if self.tenants else ():
            if name in self.tenants and (why := unwelcome(job.tenant, self.tenants[name])):
                return Refusal(job.job_id, f"{why} on {name}", node=name, apart=True)
        for name, counts in placement.shares:
            words = self.lacking(job, self.nodes[name], sum(n for _, n in counts)) if name in self.nodes else None
            if words:
                return Refusal(job.job_id, f"{words} on {name}", node=name)
        return None

    def lacking(self, job: Job, node: Node, gpus: int) -> str | None:
        """What the node has too little of for so many of the job's GPUs there, in words; None if it has enough."""
        asked = job.needs.cpus_for(gpus)
        cpus = node.cpus_given(asked)
        if node.name in self.alone:
            return "a job has the whole node"
        if job.needs.exclusive and (node.shared or self.users.get(node.name)):
            return "other jobs are where it wants the whole node"
        if node.cpus is not None and cpus + self.cpus.get(node.name, 0.0) > node.cpus + _ROUNDING:
            return f"{cpus:g} CPUs are not free" if cpus != 1 else "1 CPU is not free"
        if self._over_limit(job, node, cpus):
            return f"partition {job.partition} has no {cpus:g} of its MaxCPUsPerNode left"
        memory = asked * job.needs.memory_per_cpu
        if node.memory_bytes is not None and memory + self.memory.get(node.name, 0.0) > node.memory_bytes + _ROUNDING:
            return f"{memory / 2**30:.3g} GiB of memory are not free"
        return None

    def _over_limit(self, job: Job, node: Node, cpus: float) -> bool:
        """Whether every partition in which the job may start there limits its jobs' CPUs on a node to less."""
        names = [p for p in job.partition.split(",") if p in node.partitions]
        return bool(names) and all(
            cpus + self.partition_cpus.get((node.name, p), 0.0) > node.partition_cpus.get(p, float("inf")) + _ROUNDING
            for p in names
        )

    def _book(self, job: Job, placement: Placement) -> None:
        for draw in job.needs.draws:
            if draw.quota in self.left:
                self.left[draw.quota] -= draw.amount(placement)
        for name, counts in placement.shares:
            asked = job.needs.cpus_for(sum(n for _, n in counts))
            cpus = self.nodes[name].cpus_given(asked) if name in self.nodes else asked
            self.cpus[name] = self.cpus.get(name, 0.0) + cpus
            for key in ((name, partition) for partition in job.partition.split(",")):
                self.partition_cpus[key] = self.partition_cpus.get(key, 0.0) + cpus
            self.memory[name] = self.memory.get(name, 0.0) + asked * job.needs.memory_per_cpu
            self.users[name] = self.users.get(name, 0) + 1
            if name in self.tenants:
                self.tenants[name].add(job.tenant)
            if job.needs.exclusive:
                self.alone.add(name)


def _rank(job: Job, placement: Placement, plan: Plan) -> tuple[bool, bool, float, float, str]:
    """Who is booked first: who stays, then who moves, then by what the policy makes of them."""
    return (placement != job.placement, not job.running, -plan.payoffs.get(job.job_id, 0.0), job.arrival, job.job_id)


def _without(
    snapshot: Snapshot, plan: Plan, booking: _Booking, waits: dict[str, Wait], kept_off: dict[str, str]
) -> Snapshot:
    """The snapshot without the jobs that cannot start any more this round, and without the nodes on which one cannot.

    Of a quota that is used up all who would draw more of it than is left go at once, not one by one; so do from a node
    all whom it has no room for, whatever else is planned, and, where one is not welcome, all who are not beside those
    who were booked. Who is refused a node goes from all that have no room beside those who were booked, lest it be
    planned on the next such in each try. ``kept_off`` has the reasons. A running job that was to move over a limit
    keeps its place.
    """
    if any(r.apart for r in booking.refused):
        snapshot = kept_apart(snapshot, booking.tenants, kept_off)
    spent = {r.quota: r.words for r in booking.refused if r.quota is not None}
    tight = sorted({r.node for r in booking.refused if r.node is not None and not r.apart})
    refused, full = {r.job_id: r for r in booking.refused}, _Full(booking, booking.nodes.values())
    jobs = []
    for job in _kept_off(snapshot, tight, waits, kept_off) if tight else snapshot.jobs:
        refusal = refused.get(job.job_id)
        if refusal is not None and job.running:
            jobs.append(replace(job, unmovable=job.unmovable or refusal.words))
        elif refusal is not None and refusal.node is not None:
            jobs.append(_closed(snapshot, job, {*full.of(job), refusal.node}))
            kept_off[job.job_id] = refusal.words
        elif refusal is not None and (smaller := _smaller(job, booking.left)) is not None:
            jobs.append(smaller)
        elif refusal is not None:
            waits[job.job_id] = Wait(Tier.TRANSIENT, refusal.words)
        elif job.steerable and not job.running and job.job_id not in plan.placements and spent:
            words = next((spent[q] for q in _short(job, booking.left) if q in spent), None)
            if words is None:
                jobs.append(job)
            else:
                waits[job.job_id] = Wait(Tier.TRANSIENT, words)
        else:
            jobs.append(job)
    return snapshot.with_jobs(jobs)


def _kept_off(snapshot: Snapshot, tight: list[str], waits: dict[str, Wait], kept_off: dict[str, str]) -> Iterator[Job]:
    """The jobs, each that waits without those of the ``tight`` nodes that have no room for it even if nobody else gets
    any of them. One that is left with no node goes into ``waits``."""
    full = _Full(_Booking({}, snapshot.node, {}), [snapshot.node[name] for name in tight])
    known: dict[tuple[object, ...], tuple[Form, str]] = {}  # most jobs are alike
    for job in snapshot.jobs:
        words = ""
        if job.steerable and not job.running:
            key = (_taking(job), job.form)
            if key not in known:
                known[key] = _narrowed(snapshot, job, full.of(job))
            form, words = known[key]
        if words:
            job = replace(job, form=form)
            kept_off[job.job_id] = words
        if words and not job.form.nodes:
            waits[job.job_id] = Wait(Tier.TRANSIENT, words)
        else:
            yield job


def _narrowed(snapshot: Snapshot, job: Job, full: Mapping[str, str]) -> tuple[Form, str]:
    """The job's form without these nodes, and what one of them lacks, if there is such with GPUs that it accepts."""
    closed = [name for name in full if job.form.admits_node(name)]
    if not closed:
        return job.form, ""
    telling = [name for name in closed if any(map(job.form.admits_type, snapshot.node[name].gpus))] or closed[:1]
    return _closed(snapshot, job, closed).form, f"{full[telling[-1]]} on {telling[-1]}"


@dataclass
class _Full:
    """Which of the nodes have no room beside those who were booked, worked out once for jobs that take alike."""

    booking: _Booking
    nodes: Collection[Node]
    known: dict[tuple[object, ...], dict[str, str]] = field(default_factory=dict)

    def of(self, job: Job) -> Mapping[str, str]:
        """What each of them has too little of for the job, in words."""
        key = _taking(job)
        if key not in self.known:
            lacking = ((n.name, self.booking.lacking(job, n, _least(job))) for n in self.nodes)
            self.known[key] = {name: words for name, words in lacking if words}
        return self.known[key]


def _taking(job: Job) -> tuple[object, ...]:
    """All that tells whether a node has room for the job."""
    needs = job.needs
    return (needs.cpus, needs.cpus_per_gpu, needs.memory_per_cpu, needs.exclusive, job.partition, _least(job))


def _least(job: Job) -> int:
    """The fewest GPUs that the job has on a node."""
    return max(1, job.form.gang_sizes[0] // max(1, job.form.max_nodes))


def _smaller(job: Job, left: Mapping[str, float]) -> Job | None:
    """An elastic job in the largest size that takes no more of any quota than is left; None where none does, or where
    it is in that size already."""
    fitting = [n for n in job.form.sizes if not list(_short(job, left, n))]
    if not fitting:
        return None
    size = max(fitting)
    return replace(job, form=replace(job.form, workers=size, sizes=()), speeds=job.speeds_at(size))


def _short(job: Job, left: Mapping[str, float], workers: int | None = None) -> Iterator[str]:
    """The quotas of which less is left than the least that the job takes, or would with so many workers."""
    for draw in job.needs.draws:
        if draw.quota in left and draw.least(workers or job.form.gang_sizes[0]) > left[draw.quota] + _ROUNDING:
            yield draw.quota


def _closed(snapshot: Snapshot, job: Job, nodes: Collection[str]) -> Job:
    open_ = job.form.nodes if job.form.nodes is not None else snapshot.node_names
    return replace(job, form=replace(job.form, nodes=frozenset(open_).difference(nodes)))


def _dropped(snapshot: Snapshot, plan: Plan, waits: dict[str, Wait]) -> Plan:
    """What is over after the last try waits, or stays where it is; so does who counted on GPUs of those who stay."""
    placements = {job_id: placement for job_id, placement in plan.placements.items() if job_id not in waits}
    refused = {r.job_id: r.words for r in refusals(snapshot, plan)}
    while refused:
        for job_id, words in refused.items():
            job = snapshot.job[job_id]
            if job.running:
                placements[job_id] = job.placement
            else:
                del placements[job_id]
                waits[job_id] = Wait(Tier.TRANSIENT, words)
        left = replace(plan, placements=placements)
        refused = {r.job_id: r.words for r in refusals(snapshot, left)}
        refused |= dict.fromkeys(_crowded_out(snapshot, left), _TAKEN_BACK)
    return replace(plan, placements=placements)


def _crowded_out(snapshot: Snapshot, plan: Plan) -> list[str]:
    """The jobs with new places that have no room beside all who stay where they are and who goes before them."""
    arena, placements = Arena.of(snapshot), plan.placements
    ledger = Ledger(arena, arena.capacity)
    for job in snapshot.steerable_jobs:
        if not job.running or placements.get(job.job_id) == job.placement:
            ledger.take(arena.gang(job.held))  # one on its way out still holds it
    new = [(snapshot.job[j], p) for j, p in placements.items() if j in snapshot.job and p != snapshot.job[j].placement]
    found = []
    for job, placement in sorted(new, key=lambda pair: _rank(pair[0], pair[1], plan)):
        if ledger.has_room(placement):
            ledger.take(arena.gang(placement))
        else:
            found.append(job.job_id)
    return found
