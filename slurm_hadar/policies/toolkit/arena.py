"""The GPUs of a snapshot as slots, and which job may use which of them.

A *slot* is one (node, GPU type) pair of an available node. All policies that place jobs work on lists with a number
per slot, so that trying a placement costs a list copy and no objects.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from slurm_hadar.model import EMPTY, Job, JobState, Placement, Snapshot
from slurm_hadar.policies.toolkit.gangs import Gang

__all__ = ["Arena", "Reach", "open_nodes"]


@dataclass(frozen=True)
class Reach:
    """The slots a job may use: its partition, its form and the types it is known to run on.

    ``by_type`` maps a GPU type to its slots, in node order; ``modest`` has them with the smallest nodes first, so that
    a job on one type leaves nodes with several types to those that can use them; ``nodes`` groups the slots by node.
    """

    by_type: dict[str, tuple[int, ...]]
    modest: dict[str, tuple[int, ...]]
    nodes: tuple[tuple[int, ...], ...]

    @functools.cached_property
    def slots(self) -> frozenset[int]:
        """All of them."""
        return frozenset(s for slots in self.nodes for s in slots)


@dataclass
class Arena:
    """What a policy may hand out this round.

    ``capacity`` and ``free`` are GPUs per slot; ``free`` is ``capacity`` less what ``kept`` (running jobs that must
    not move) and ``bound`` (jobs that are completing or suspended) hold. ``movers`` are the jobs to decide about, in
    order of arrival. ``odd`` are active jobs that can be neither kept nor placed, with the reason.
    """

    snapshot: Snapshot
    slots: tuple[tuple[str, str], ...] = ()
    capacity: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    kept: dict[str, Placement] = field(default_factory=dict)
    bound: dict[str, Placement] = field(default_factory=dict)
    odd: dict[str, str] = field(default_factory=dict)
    movers: tuple[Job, ...] = ()

    @classmethod
    def of(cls, snapshot: Snapshot) -> Arena:
        """Lay out the slots and sort the steerable jobs into kept, bound, odd and movers. Nodes that have to be
        switched on come last: of places that are equal the first is taken."""
        nodes = sorted(snapshot.nodes, key=lambda node: node.boot_s)
        pairs = [(node.name, t, n) for node in nodes for t, n in node.steerable_gpus.items()]
        capacity = [n for _, _, n in pairs]
        arena = cls(snapshot, tuple((node, t) for node, t, _ in pairs), capacity, capacity.copy())
        arena._sort_jobs()
        for job_id in (*arena.kept, *arena.bound):
            for slot, count in arena.gang(snapshot.job[job_id].held):
                arena.free[slot] = max(0, arena.free[slot] - count)
        return arena

    def _sort_jobs(self) -> None:
        movers = []
        for job in self.snapshot.steerable_jobs:
            if job.state is JobState.PENDING:
                movers.append(job)
            elif job.state is JobState.RUNNING and not job.placement:
                self.odd[job.job_id] = "runs, but on which GPUs is not known yet"
            elif job.state is JobState.RUNNING and job.unmovable is not None:
                self.kept[job.job_id] = job.placement
            elif job.state is JobState.RUNNING:
                movers.append(job)
            else:
                self.bound[job.job_id] = job.placement
                self.odd[job.job_id] = f"is {job.state}"
        self.movers = tuple(movers)

    @functools.cached_property
    def index(self) -> dict[tuple[str, str], int]:
        """The number of each (node, GPU type)."""
        return {pair: slot for slot, pair in enumerate(self.slots)}

    @functools.cached_property
    def slots_of(self) -> dict[str, list[int]]:
        """The slots of each node."""
        found: dict[str, list[int]] = {}
        for slot, (node, _) in enumerate(self.slots):
            found.setdefault(node, []).append(slot)
        return found

    @functools.cached_property
    def type_of(self) -> list[str]:
        """The GPU type of each slot."""
        return [t for _, t in self.slots]

    @functools.cached_property
    def types(self) -> tuple[str, ...]:
        """GPU types in order of first appearance."""
        return tuple(dict.fromkeys(self.type_of))

    @functools.cached_property
    def gpus(self) -> dict[str, int]:
        """GPUs per type."""
        found = dict.fromkeys(self.types, 0)
        for gpu_type, count in zip(self.type_of, self.capacity, strict=True):
            found[gpu_type] += count
        return found

    @functools.cached_property
    def _reaches(self) -> dict[tuple[str, frozenset[str] | None, frozenset[str]], Reach]:
        return {}

    def reach(self, job: Job) -> Reach:
        """The slots ``job`` may use; shared by all jobs with the same limits."""
        types = job.form.types
        usable = frozenset([t for t, s in job.speeds.items() if s.steps_per_s > 0 and (types is None or t in types)])
        key = (job.partition, job.form.nodes, usable)
        found = self._reaches.get(key)
        if found is None:
            found = self._reaches[key] = self._make_reach(job, usable)
        return found

    def _make_reach(self, job: Job, usable: frozenset[str]) -> Reach:
        nodes = open_nodes(self.snapshot, job)
        by_type: dict[str, list[int]] = {}
        by_node: dict[str, list[int]] = {}
        for slot, (node, gpu_type) in enumerate(self.slots):
            if gpu_type in usable and node in nodes:
                by_type.setdefault(gpu_type, []).append(slot)
                by_node.setdefault(node, []).append(slot)
        size = {slot: sum(self.capacity[s] for s in slots) for slots in by_node.values() for slot in slots}
        return Reach(
            {t: tuple(s) for t, s in by_type.items()},
            {t: tuple(sorted(s, key=lambda slot: (size[slot], slot))) for t, s in by_type.items()},
            tuple(tuple(s) for s in by_node.values()),
        )

    def gang(self, placement: Placement) -> Gang:
        """The part of ``placement`` that lies on slots; GPUs on unavailable nodes are nobody else's to take."""
        return tuple((self.index[n, t], c) for n, t, c in placement.items() if (n, t) in self.index)

    def placement(self, gang: Gang) -> Placement:
        """The placement that ``gang`` stands for."""
        mapping: dict[str, dict[str, int]] = {}
        for slot, count in gang:
            node, gpu_type = self.slots[slot]
            mapping.setdefault(node, {})[gpu_type] = count
        return Placement.of(mapping) if gang else EMPTY


def open_nodes(snapshot: Snapshot, job: Job) -> frozenset[str]:
    """The nodes, available or not, that the job's partitions and its form leave open to it.

    A partition that the snapshot does not list limits nothing; one that is down offers nothing. Slurm lets a pending
    job name several partitions, joined by commas.
    """
    listed = {p.name: p for p in snapshot.partitions}
    asked = [listed[name] for name in job.partition.split(",") if name in listed] if listed else []
    if asked:
        names = frozenset(node for p in asked if p.up for node in p.nodes)
    else:
        names = snapshot.node_names
    return names if job.form.nodes is None else names & job.form.nodes
