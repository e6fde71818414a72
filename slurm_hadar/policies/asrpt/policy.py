"""A-SRPT: gangs in the order in which a virtual machine ends them; and the list schedules it is compared with."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import ClassVar

from slurm_hadar.errors import ConfigError
from slurm_hadar.model import Form, Job, Mix, Plan, Snapshot, Speed, Tier, Wait
from slurm_hadar.policies.asrpt.virtual_machine import Arrival, VirtualMachine
from slurm_hadar.policies.base import UNKNOWN_RUNTIME_S, Policy
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.gangs import Gang, find_on_type
from slurm_hadar.policies.toolkit.plan_builder import PlanBuilder
from slurm_hadar.units import span

__all__ = ["Asrpt", "Spjf", "Spwf", "WcsDuration", "WcsSubTime", "WcsWorkload"]

_ORDERS = ("srpt", "duration", "workload", "submission")


@dataclass(frozen=True)
class Asrpt(Policy):
    """Prediction-assisted shortest remaining processing time, for gangs that are not preempted.

    After "Prediction-Assisted Online Distributed Deep Learning Workload Scheduling in GPU Clusters" (INFOCOM 2025);
    what its abstract leaves open is our definition. A virtual machine of the whole cluster's speed serves the jobs by
    predicted work, shortest remaining first. A job joins the real queue when the virtual machine has ended it, so the
    queue is in the order of virtual completions. Real gangs are started from its head and never stopped.

    A job's work is the time that it would take if every GPU that it can use worked for it at its own speed there:
    ``steps * workers / sum over types of (GPUs * steps per second of the gang)``. On equal GPUs that is the paper's
    ``iterations * time per iteration * workers / GPUs``; with unequal ones it is our extension. Steps are those that
    the job states, else the mean of what is predicted (our definition: the expected work orders jobs that are not
    stopped best).

    A gang whose speed depends much on where it is put waits a while for a good place: for few nodes and, among unequal
    GPUs, for a fast type. How much it depends on that is, for a job with a graph, ``alpha_max / alpha_min``: the time
    of an iteration with all its parts on nodes of their own over that of its best place on the empty cluster.

    Parameters
    ----------
    strict: nobody overtakes the head of the queue and nobody starts before the virtual machine has ended it, as the
        proof needs it (docs/policies.md). Otherwise whoever fits starts, in the order of virtual completions, those to
        come included.
    pace: how fast the virtual machine is, all GPUs together being 1. A real cluster is slower: gangs leave gaps, wait
        and are slowed down by being spread. A virtual machine that is ahead of it orders jobs by submission more than
        by size (docs/results/asrpt.md). The strict variant has 1, as the proof needs it.
    order: ``srpt``, or for comparison ``duration`` (predicted run time), ``workload`` (run time times GPUs) or
        ``submission``.
    kappa: jobs whose slowest place is at least so many times slower than their best one wait for a good one; 0 = none.
    theta: for at most this part of the time that the place at hand would cost them over their best one, by prediction
        (our definition: who would be ten times slower waits longer than who would be a fifth slower).
    epsilon: a place is good if it is at most this much slower than the best one.
    reserve: for so many jobs at the head that wait, a good place is reserved at the time when running jobs are expected
        to have left it; who overtakes them must be expected to be gone by then, or go elsewhere (our extension, as EASY
        backfilling; 0 = none). The strict variant needs none.
    unknown_runtime_s: the run time on the best type that is assumed of a job whose steps nobody knows or predicts.

    Complexity: O(jobs log jobs + starts * nodes log nodes).
    """

    name: ClassVar[str] = "asrpt"

    strict: bool = False
    pace: float = 0.5
    order: str = "srpt"
    kappa: float = 1.2
    theta: float = 0.5
    epsilon: float = 0.1
    reserve: int = 2
    unknown_runtime_s: float = UNKNOWN_RUNTIME_S

    def __post_init__(self) -> None:
        if self.order not in _ORDERS:
            raise ConfigError(f"policy {self.name}: order={self.order!r} must be one of {', '.join(_ORDERS)}")
        if not 0.0 < self.pace <= 1.0:
            raise ConfigError(f"policy {self.name}: pace={self.pace} must be above 0 and at most 1")
        self.require_at_least(kappa=0.0, theta=0.0, epsilon=0.0, reserve=0, unknown_runtime_s=1.0)

    def allocate(self, snapshot: Snapshot) -> Plan:
        """The plan for the coming round."""
        builder = PlanBuilder(Arena.of(snapshot))
        dispatcher = _Dispatcher(self, builder)
        for job in builder.arena.movers:
            if job.running:
                builder.keep(job)
        machine = self._virtual(snapshot, dispatcher) if self.order == "srpt" else None
        waits = dispatcher.serve(self._queue(dispatcher, machine))
        dispatcher.mix_the_rest()
        memory = {"offered": dict(sorted(dispatcher.offered.items()))}
        if machine is not None:
            memory["virtual"] = machine.memory()
        return builder.plan(self.name, lambda job: waits.get(job.job_id) or dispatcher.not_yet(job), memory=memory)

    def _virtual(self, snapshot: Snapshot, dispatcher: _Dispatcher) -> VirtualMachine:
        """The virtual machine at the time of the snapshot."""
        started = min((job.arrival for job in snapshot.steerable_jobs), default=snapshot.time)
        machine = VirtualMachine.read(snapshot.memory.get("virtual", {}), min(started, snapshot.time))
        present = {job.job_id for job in snapshot.steerable_jobs}
        machine.forget([job for job in (*machine.left_s, *machine.done_at) if job not in present])
        new = [
            job for job in snapshot.steerable_jobs if not machine.knows(job.job_id) and job.job_id in dispatcher.sizes
        ]
        pace = 1.0 if self.strict else self.pace
        machine.advance(
            (Arrival(j.arrival, j.job_id, dispatcher.sizes[j.job_id].work_s / pace) for j in new), snapshot.time
        )
        return machine

    def _queue(self, dispatcher: _Dispatcher, machine: VirtualMachine | None) -> list[Job]:
        """Those who may start, in order."""
        waiting = [j for j in dispatcher.builder.arena.movers if not j.running and j.job_id in dispatcher.sizes]
        if self.order == "submission":
            return waiting
        if machine is not None:
            key = machine.done_at if self.strict else machine.ends()
            waiting = [j for j in waiting if j.job_id in key]
        else:
            by_work = self.order == "workload"
            key = {j.job_id: dispatcher.sizes[j.job_id].best_s * (j.form.workers if by_work else 1) for j in waiting}
        return sorted(waiting, key=lambda j: (key[j.job_id], j.arrival, j.job_id))


@dataclass(frozen=True, slots=True)
class _Place:
    """A free place, if there is one, and how many times slower it is than the best; who would be there longer than
    until ``until`` keeps others from what they have reserved."""

    gang: Gang | None = None
    slower: float = math.inf
    until: float = math.inf


@dataclass
class _Kind:
    """Jobs that differ in nothing but their length.

    ``nodes``: on how many nodes each GPU type would take the gang if nobody else were there. ``best_rate``: steps per
    second on the best place; ``sensitivity``: how many times slower the worst one is; ``work_s``: seconds of the whole
    cluster that a step is. ``free`` and ``unreserved`` are the best free places, with and without what is reserved, as
    they were at ``seen``.
    """

    nodes: dict[str, int]
    best_rate: float
    sensitivity: float
    work_s: float
    free: _Place | None = None
    unreserved: _Place | None = None
    seen: int = -1


@dataclass(frozen=True, slots=True)
class _Size:
    """What is known of a job: its kind, the seconds that it takes on its best place, and its work in seconds of the
    whole cluster."""

    kind: _Kind
    best_s: float
    work_s: float


@dataclass(frozen=True, slots=True)
class _Reservation:
    """A place for a job at the head, to be had at ``at`` if of the GPUs that are free now ``hold[slot]`` are free
    then."""

    at: float
    hold: dict[int, int]


@dataclass
class _Dispatcher:
    """The waiting gangs of one round, and who of them starts.

    ``offered[job]``: since when a job could have started, but for its wish for a better place.
    """

    rules: Asrpt
    builder: PlanBuilder
    sizes: dict[str, _Size] = field(default_factory=dict)
    offered: dict[str, float] = field(default_factory=dict)
    reserved: list[_Reservation] = field(default_factory=list)
    _kinds: dict[tuple[tuple[tuple[str, Speed], ...], str, Form], _Kind | None] = field(default_factory=dict)
    _changes: int = 0

    def __post_init__(self) -> None:
        for job in self.builder.arena.snapshot.steerable_jobs:
            kind = self._kind_of(job)
            if kind is not None:
                steps = job.steps_to_go(kind.best_rate, self.rules.unknown_runtime_s, mean=True)  # nobody is stopped
                self.sizes[job.job_id] = _Size(kind, steps / kind.best_rate, steps * kind.work_s)

    def _kind_of(self, job: Job) -> _Kind | None:
        """None for a job that no single type could take."""
        key = (tuple(job.speeds.items()), job.partition, job.form)
        if key not in self._kinds:
            by_type = self.builder.arena.reach(job).by_type
            places = self._places(job, by_type, self.builder.arena.capacity)
            self._kinds[key] = self._make_kind(job, {t: len(gang) for t, gang in places.items()}) if places else None
        return self._kinds[key]

    def _make_kind(self, job: Job, nodes: dict[str, int]) -> _Kind:
        spreads = job.form.max_nodes > 1 and job.form.workers > 1
        best, worst, together = 0.0, math.inf, 0.0
        gpus = self.builder.arena.gpus
        for gpu_type, count in nodes.items():
            speed = job.speeds[gpu_type]
            best, worst = max(best, speed.on(count)), min(worst, speed.steps_per_s * (speed.apart if spreads else 1.0))
            together += gpus[gpu_type] * speed.steps_per_s
        return _Kind(nodes, best, best / worst, job.form.workers / together)

    def serve(self, queue: Iterable[Job]) -> dict[str, Wait]:
        """Start whom there is room for; why the others wait."""
        waits: dict[str, Wait] = {}
        head: Job | None = None
        for job in queue:
            if head is not None and self.rules.strict:
                waits[job.job_id] = Wait(Tier.POLICY, f"is behind job {head.job_id}, which nobody may overtake")
                continue
            size = self.sizes[job.job_id]
            place = self._place_for(job, size)
            wait = self._no_room(job, size) if place.gang is None else self._patience(job, size, place.slower)
            if wait is None:
                self._start(job, place.gang)
            else:
                waits[job.job_id] = wait
                head = head or job
                if not self.rules.strict and len(self.reserved) < self.rules.reserve:
                    self._reserve(job)
        return waits

    def _start(self, job: Job, gang: Gang | None) -> None:
        self.builder.give(job, gang)
        self._changes += 1

    def _place_for(self, job: Job, size: _Size) -> _Place:
        """The best place that the job may have; looked for once for all jobs of its kind until something changes."""
        kind = size.kind
        if kind.seen != self._changes:
            kind.free, kind.unreserved, kind.seen = self._best(job, kind, self.builder.ledger.free), None, self._changes
        if kind.free is None or self.builder.arena.snapshot.time + size.best_s * kind.free.slower > kind.free.until:
            if kind.unreserved is None:
                kind.unreserved = self._best(job, kind, self._less_reserved())
            return kind.unreserved
        return kind.free

    def _best(self, job: Job, kind: _Kind, free: list[int]) -> _Place:
        best, chosen = 0.0, None
        for gpu_type, gang in self._places(job, kind.nodes, free).items():
            rate = job.speeds[gpu_type].on(len(gang))
            if rate > best:
                best, chosen = rate, gang
        return _Place() if chosen is None else _Place(chosen, kind.best_rate / best, self._harmless_until(chosen))

    def _harmless_until(self, gang: Gang) -> float:
        """The earliest reservation for which too little would be left."""
        free = self.builder.ledger.free
        harmed = (
            reservation.at
            for reservation in self.reserved
            if any(free[slot] - count < reservation.hold.get(slot, 0) for slot, count in gang)
        )
        return min(harmed, default=math.inf)

    def _less_reserved(self) -> list[int]:
        free = list(self.builder.ledger.free)
        for reservation in self.reserved:
            for slot, count in reservation.hold.items():
                free[slot] = max(0, free[slot] - count)
        return free

    def _places(
        self, job: Job, types: Iterable[str], free: list[int], most: dict[str, int] | None = None
    ) -> dict[str, Gang]:
        """A place on each of ``types`` that has one, on at most ``most[type]`` nodes."""
        by_type, found = self.builder.arena.reach(job).by_type, {}
        for gpu_type in types:
            form = job.form if most is None else replace(job.form, max_nodes=most[gpu_type])
            gang = find_on_type(form, by_type[gpu_type], free)
            if gang:
                found[gpu_type] = gang
        return found

    # Reservations

    def _reserve(self, job: Job) -> None:
        """Reserve a good place for the job at the earliest time at which there is one, by what is expected."""
        kind = self.sizes[job.job_id].kind
        near = 1.0 + self.rules.epsilon
        good = {t: count for t, count in kind.nodes.items() if job.speeds[t].on(count) * near >= kind.best_rate}
        now_free = self._less_reserved()
        first, last = 0, len(self._leaving) - 1
        found: tuple[float, Gang, list[int]] | None = None
        while first <= last:  # what is free only grows with time
            middle = (first + last) // 2
            free = self._free_after(now_free, middle)
            places = self._places(job, good, free, good)
            if places:
                found, last = (self._leaving[middle][0], next(iter(places.values())), free), middle - 1
            else:
                first = middle + 1
        if found is not None:
            at, gang, free = found
            hold = {slot: max(0, count - (free[slot] - now_free[slot])) for slot, count in gang}
            self.reserved.append(_Reservation(at, {slot: count for slot, count in hold.items() if count}))
            self._changes += 1

    def _free_after(self, free: list[int], index: int) -> list[int]:
        free = list(free)
        for _, gang in self._leaving[: index + 1]:
            for slot, count in gang:
                free[slot] += count
        return free

    @functools.cached_property
    def _leaving(self) -> list[tuple[float, Gang]]:
        """When jobs that run are expected to end, and what they hold; at once, if they are overdue."""
        arena, leaving = self.builder.arena, []
        now = arena.snapshot.time
        for job in arena.snapshot.steerable_jobs:
            rate = job.rate(job.placement)
            size = self.sizes.get(job.job_id)
            if rate > 0 and size is not None:
                leaving.append((now + size.best_s * size.kind.best_rate / rate, arena.gang(job.placement)))
        return sorted(leaving)

    # Patience

    def _patience(self, job: Job, size: _Size, slower: float) -> Wait | None:
        """Why the job rather waits than to take a place so many times slower than its best, if it does."""
        rules = self.rules
        if not rules.kappa or size.kind.sensitivity < rules.kappa or slower <= 1.0 + rules.epsilon:
            return None
        snapshot = self.builder.arena.snapshot
        since = snapshot.memory.get("offered", {}).get(job.job_id, snapshot.time)
        left_s = since + rules.theta * (slower - 1.0) * size.best_s - snapshot.time
        if left_s <= 0:
            return None
        self.offered[job.job_id] = since
        what = f"what is free would make it {slower:.1f} times slower than its best place"
        return Wait(Tier.POLICY, f"{what}; waits for a better one for another {left_s / 60:.0f} min at most")

    def _no_room(self, job: Job, size: _Size) -> Wait:
        gpus = f"{job.form.workers} GPUs that suit it"
        return Wait(Tier.POLICY, f"jobs before it hold the {gpus}; it needs them for about {span(size.best_s)}")

    def mix_the_rest(self) -> None:
        """A gang for which no single type has room gets what is left, by submission, if it harms no reservation."""
        builder = self.builder
        for job in builder.arena.movers:
            if job.running or job.job_id in self.sizes or job.form.mix is Mix.NEVER:
                continue
            gang = builder.ledger.find_mixed(job.form, builder.arena.reach(job).nodes)
            if gang is not None and math.isinf(self._harmless_until(gang)):
                builder.give(job, gang)

    def not_yet(self, job: Job) -> Wait:
        """Why a job waits that is not in the queue yet."""
        if job.job_id not in self.sizes:
            gang = f"{job.form.workers} GPUs of several types"
            return Wait(Tier.CAPACITY, f"needs {gang}, and gets what jobs on one type leave over")
        return Wait(Tier.POLICY, "its turn has not come: jobs with less predicted work go first")


@dataclass(frozen=True)
class _ListSchedule(Asrpt):
    """A schedule to compare with: takes any place that it finds, and reserves none."""

    theta: float = 0.0
    reserve: int = 0


@dataclass(frozen=True)
class Spjf(_ListSchedule):
    """Shortest predicted job first; nobody overtakes the head of the queue."""

    name: ClassVar[str] = "spjf"
    strict: bool = True
    order: str = "duration"


@dataclass(frozen=True)
class Spwf(_ListSchedule):
    """Least predicted work (run time times GPUs) first; nobody overtakes the head of the queue."""

    name: ClassVar[str] = "spwf"
    strict: bool = True
    order: str = "workload"


@dataclass(frozen=True)
class WcsDuration(_ListSchedule):
    """Work-conserving list scheduling: whoever fits starts, the shortest predicted run times first."""

    name: ClassVar[str] = "wcs_duration"
    order: str = "duration"


@dataclass(frozen=True)
class WcsWorkload(_ListSchedule):
    """Work-conserving list scheduling: whoever fits starts, the least predicted work first."""

    name: ClassVar[str] = "wcs_workload"
    order: str = "workload"


@dataclass(frozen=True)
class WcsSubTime(_ListSchedule):
    """Work-conserving list scheduling: whoever fits starts, in the order of submission."""

    name: ClassVar[str] = "wcs_subtime"
    order: str = "submission"
