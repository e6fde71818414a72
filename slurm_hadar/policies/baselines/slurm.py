"""Slurm's own order: what the cluster would do if nobody steered it. The baseline of replays."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, field
from typing import ClassVar

from slurm_hadar.model import Job, Mix, Placement, Plan, Snapshot, Tier, Wait
from slurm_hadar.names import by_number
from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.toolkit.arena import Arena, open_nodes
from slurm_hadar.policies.toolkit.gangs import node_counts
from slurm_hadar.policies.toolkit.ledger import Ledger
from slurm_hadar.policies.toolkit.unsteered import NodeOption, gang_by_slurm, in_slurms_order, placement_on
from slurm_hadar.policies.toolkit.waits import Obstacles, holders, listing

__all__ = ["Slurm"]

_NO_LIMIT_S = 365 * 86400.0
_FIRST_WINDOW_S = 30.0


@dataclass(frozen=True)
class Slurm(Policy):
    """In order of submission with backfill, as slurmctld does it with ``sched/backfill`` and ``select/cons_tres``.

    * Running jobs stay where they are. Where GPUs are free, a job takes those that Slurm's own choice gives it
      (:func:`slurm_hadar.policies.toolkit.unsteered.slurms_choice`), blind to their speeds.
    * The main scheduler starts jobs in order; the first that does not fit closes the nodes of its partition to all
      later ones.
    * Backfill lets a later job go first where it delays nobody: each job that waits is promised the earliest nodes that
      come free if all jobs run to their time limits, whole nodes from then on until its own limit, and others get what
      is left. A job without a limit has one of a year.

    After slurmctld's ``plugins/sched/backfill`` (22.05). Not taken over: priorities other than the order of submission,
    preemption, reservations and limits of users. Complexity: O(depth² x nodes) at worst.

    Parameters
    ----------
    interval_s: how often backfill looks (``bf_interval``). depth: at how many jobs (``bf_max_job_test``).
    window_s: how far ahead it promises (``bf_window``). resolution_s: to what it rounds times (``bf_resolution``).
    """

    name: ClassVar[str] = "slurm"

    interval_s: float = 30.0
    depth: int = 500
    window_s: float = 86400.0
    resolution_s: float = 60.0

    def __post_init__(self) -> None:
        self.require_at_least(interval_s=1.0, depth=0, window_s=0.0, resolution_s=1.0)

    @property
    def at_once_s(self) -> float:
        return self.interval_s

    def allocate(self, snapshot: Snapshot) -> Plan:
        """The plan for the coming round."""
        timeline = _Timeline(snapshot)
        queue = sorted(
            (j for j in timeline.arena.movers if not j.running), key=lambda j: (j.arrival, by_number(j.job_id))
        )
        waiting = timeline.in_order(queue)
        # between two looks of its own, backfill does not know of what has happened
        if snapshot.round_s > self.interval_s or snapshot.time % self.interval_s == 0:
            waiting = timeline.backfill(waiting, self)
        waits = {job_id: Wait(Tier.TRANSIENT, why) for job_id, why in timeline.arena.odd.items()}
        return Plan(self.name, timeline.placements, {**waits, **timeline.reasons(waiting)})


@dataclass
class _Promises:
    """Nodes that are promised to jobs: ``spans`` are (from, to, nodes), sets of nodes are bits of a number."""

    spans: list[tuple[float, float, int]] = field(default_factory=list)
    edges: list[float] = field(default_factory=list)

    def taken(self, start: float, end: float) -> int:
        """The nodes that are promised to somebody at some time from ``start`` to ``end``."""
        nodes = 0
        for begin, until, promised in self.spans:
            if begin < end and until > start:
                nodes |= promised
        return nodes

    def next_edge(self, after: float) -> float:
        at = bisect.bisect_right(self.edges, after)
        return self.edges[at] if at < len(self.edges) else math.inf

    def add(self, start: float, end: float, nodes: int) -> None:
        self.spans.append((start, end, nodes))
        for edge in (start, end):
            bisect.insort(self.edges, edge)


class _Timeline:
    """The GPUs of one snapshot, when those in use come free, and what is given to whom.

    A node's position in Slurm's order is its bit.
    """

    def __init__(self, snapshot: Snapshot) -> None:
        self.arena = arena = Arena.of(snapshot)
        self.now = snapshot.time
        self.placements = dict(arena.kept)
        self._ledger = Ledger(arena)
        self._position = in_slurms_order(snapshot.nodes)
        self._order = list(self._position)
        self._ends: list[list[tuple[float, int]]] = [[] for _ in arena.slots]
        self._holders: list[tuple[float, int]] = []
        self._ahead: dict[str, str] = {}
        self._masks: dict[frozenset[str], int] = {}
        for job in arena.movers:
            if job.running:
                self.placements[job.job_id] = job.placement
                self._ledger.occupy(arena.gang(job.placement))
        for job_id, placement in (*self.placements.items(), *arena.bound.items()):
            self._hold(placement, _end(snapshot.job[job_id], self.now))

    def in_order(self, queue: list[Job]) -> list[Job]:
        """Start jobs up to the first in each partition that does not fit; returns those that wait."""
        obstacles, waiting = Obstacles(self.arena), []
        for job in queue:
            nodes = open_nodes(self.arena.snapshot, job)
            closed = not nodes.isdisjoint(self._ahead) and nodes <= self._ahead.keys()
            chosen = [] if closed else self._chosen(job, self.now, self._mask(nodes.difference(self._ahead)))
            if chosen:
                self._start(job, chosen)
                continue
            waiting.append(job)
            obstacle = obstacles.of(job)
            if obstacle is None or obstacle.tier is Tier.CAPACITY:
                for node in nodes:
                    self._ahead.setdefault(node, job.job_id)
        return waiting

    def backfill(self, queue: list[Job], policy: Slurm) -> list[Job]:
        """Start jobs out of their order where that delays nobody; returns those that wait."""
        promises, waiting = _Promises(), []
        for number, job in enumerate(queue):
            if number >= policy.depth or not self._tried(job, promises, policy):
                waiting.append(job)
        return waiting

    def _tried(self, job: Job, promises: _Promises, policy: Slurm) -> bool:
        """Whether the job was started; else it is promised a place, if there is one to promise."""
        limit_s = _limit_s(job)
        mine = self._mask(open_nodes(self.arena.snapshot, job))
        start = self.now
        for _ in range(2 * len(promises.edges) + 2):  # each turn looks later than the one before, or is the last
            later = promises.next_edge(start)
            nodes = mine & ~promises.taken(start, start + limit_s)
            begin = max(start, self._foreseen(self._earliest(job, nodes), nodes))
            if begin <= self.now:
                self._start(job, self._chosen(job, self.now, nodes))
                return True
            if begin > later:
                start = later
                continue
            if begin > self.now + policy.window_s:
                return False
            chosen = sum(1 << option.position for option in self._chosen(job, begin, nodes))
            if promises.taken(begin, begin + limit_s) & chosen and begin > start:
                start = begin
                continue
            whole = policy.resolution_s
            promises.add(begin // whole * whole, (begin + limit_s) // whole * whole, chosen)
            return False
        return False

    def reasons(self, waiting: list[Job]) -> dict[str, Wait]:
        """Why each of them waits."""
        obstacles = Obstacles(self.arena)
        return {job.job_id: obstacles.of(job) or self._reason(job) for job in waiting}

    def _reason(self, job: Job) -> Wait:
        nodes = open_nodes(self.arena.snapshot, job)
        ahead = [j for j in dict.fromkeys(self._ahead[n] for n in sorted(nodes) if n in self._ahead) if j != job.job_id]
        if ahead and any(self._ahead.get(n) != job.job_id for n in nodes):
            return Wait(Tier.POLICY, f"waits behind {listing(ahead)}, which came first and needs these nodes")
        held_by = listing(holders(self.placements.items(), nodes))
        return Wait(Tier.CAPACITY, f"first in line, but needs {job.form.workers} GPUs that {held_by or 'others'} hold")

    # Places

    def _mask(self, nodes: frozenset[str]) -> int:
        """A set of nodes as bits."""
        if nodes not in self._masks:
            self._masks[nodes] = sum(1 << self._position[n] for n in nodes if n in self._position)
        return self._masks[nodes]

    def _earliest(self, job: Job, nodes: int) -> float:
        """When a place on ``nodes`` comes free at the latest; infinite if none ever does."""
        best = math.inf
        usable, mixed = self.arena.reach(job).slots, job.form.mix is not Mix.NEVER
        for count in node_counts(job.form):
            each, rest = divmod(job.form.workers, count)
            if rest:
                continue
            times: dict[str, list[float]] = {}
            for position in _bits(nodes):
                for slot in self.arena.slots_of.get(self._order[position], ()):
                    if slot in usable and (when := self._free_from(slot, each)) < best:
                        times.setdefault("" if mixed else self.arena.type_of[slot], []).append(when)
                        if mixed:
                            break
            best = min([best, *(sorted(found)[count - 1] for found in times.values() if len(found) >= count)])
        return best

    def _foreseen(self, earliest: float, nodes: int) -> float:
        """When Slurm thinks that a place is free which is so at ``earliest``: it takes jobs on ``nodes`` away in
        batches that end within ever longer windows, and looks after each (``_will_run_test``)."""
        if earliest <= self.now or math.isinf(earliest):
            return earliest
        window_s, until, last = _FIRST_WINDOW_S / 2, -math.inf, -math.inf
        for end, there in self._holders:
            if not there & nodes:
                continue
            if end > until:  # a batch is complete
                if last >= earliest:
                    break
                window_s *= 2
                until = end + window_s
            last = end
        return last

    def _chosen(self, job: Job, when: float, nodes: int) -> list[NodeOption]:
        """Slurm's choice among ``nodes`` as they are at that time, unless others take them before."""
        usable, arena = self.arena.reach(job).slots, self.arena

        def options(each: int) -> list[NodeOption]:
            found = []
            for position in _bits(nodes):
                slots = arena.slots_of.get(self._order[position], ())
                slot = next((s for s in slots if s in usable and self._free_from(s, each) <= when), None)
                if slot is not None:
                    free = sum(self._free_at(s, when) for s in slots)
                    found.append(NodeOption(*arena.slots[slot], free, position))
            return found

        return gang_by_slurm(job.form, options)

    def _free_from(self, slot: int, count: int) -> float:
        """When so many of the slot's GPUs are free together."""
        there = self._ledger.free[slot]
        if there >= count:
            return self.now
        for end, released in self._ends[slot]:
            there += released
            if there >= count:
                return end
        return math.inf

    def _free_at(self, slot: int, when: float) -> int:
        return self._ledger.free[slot] + sum(count for end, count in self._ends[slot] if end <= when)

    def _start(self, job: Job, chosen: list[NodeOption]) -> None:
        placement = placement_on(chosen, job.form)
        self.placements[job.job_id] = placement
        self._ledger.take(self.arena.gang(placement))
        self._hold(placement, self.now + _limit_s(job))

    def _hold(self, placement: Placement, end: float) -> None:
        there = 0
        for slot, count in self.arena.gang(placement):
            bisect.insort(self._ends[slot], (end, count))
            there |= 1 << self._position[self.arena.slots[slot][0]]
        bisect.insort(self._holders, (end, there))


def _bits(nodes: int) -> list[int]:
    return [i for i in range(nodes.bit_length()) if nodes >> i & 1]


def _end(job: Job, now: float) -> float:
    """When a job that runs is over at the latest, as Slurm sees it; one that is beyond its limit, any moment."""
    return max(now + 1.0, (job.started if job.started is not None else now) + _limit_s(job))


def _limit_s(job: Job) -> float:
    return _NO_LIMIT_S if job.time_limit_s is None else min(job.time_limit_s, _NO_LIMIT_S)
