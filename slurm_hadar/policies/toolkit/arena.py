"""The free GPUs of a snapshot as plain integers, and the search for a gang's place among them.

A *slot* is one (node, GPU type) pair of an available node. All policies that place jobs work on a list with the number
of free GPUs per slot, so that trying a placement costs a list copy and no objects.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slurm_hadar.model import EMPTY, Form, Job, JobState, Placement, Snapshot

__all__ = ["Arena", "Gang", "Reach", "find_gang", "node_counts", "open_nodes"]

#: Which slots a gang takes and how many GPUs of each: ``((slot, count), ...)``.
Gang = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Reach:
    """The slots a job may use: its partition, its form and the types it is known to run on.

    ``by_type`` maps a GPU type to its slots, in node order; ``modest`` has them with the smallest nodes first, so that
    a job on one type leaves nodes with several types to those that can use them; ``nodes`` groups the slots by node.
    """

    by_type: dict[str, tuple[int, ...]]
    modest: dict[str, tuple[int, ...]]
    nodes: tuple[tuple[int, ...], ...]


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
        """Lay out the slots and sort the steerable jobs into kept, bound, odd and movers."""
        pairs = [(node.name, t, n) for node in snapshot.nodes for t, n in node.steerable_gpus.items()]
        capacity = [n for _, _, n in pairs]
        arena = cls(snapshot, tuple((node, t) for node, t, _ in pairs), capacity, capacity.copy())
        arena._sort_jobs()
        for placement in (*arena.kept.values(), *arena.bound.values()):
            for slot, count in arena.gang(placement):
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
        return {pair: slot for slot, pair in enumerate(self.slots)}

    @functools.cached_property
    def type_of(self) -> list[str]:
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
    def _reaches(self) -> dict[tuple, Reach]:
        return {}

    @functools.cached_property
    def _reaches_alike(self) -> dict[tuple, Reach]:
        return {}

    def reach(self, job: Job) -> Reach:
        """The slots ``job`` may use; shared by all jobs with the same limits."""
        # jobs alike share their speeds, which the snapshot keeps: looking through those takes longer than the rest
        alike = (id(job.speeds), job.partition, job.form.nodes, job.form.types)
        found = self._reaches_alike.get(alike)
        if found is None:
            usable = frozenset(t for t, s in job.speeds.items() if s.steps_per_s > 0 and job.form.admits_type(t))
            key = (job.partition, job.form.nodes, usable)
            if key not in self._reaches:
                self._reaches[key] = self._make_reach(job, usable)
            found = self._reaches_alike[alike] = self._reaches[key]
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


@functools.lru_cache(maxsize=4096)
def node_counts(form: Form) -> tuple[int, ...]:
    """Over how many nodes the gang may lie, fewest first."""
    most = min(form.max_nodes, form.workers)
    return tuple(m for m in range(max(1, form.min_nodes), most + 1) if not form.uniform or form.workers % m == 0)


def find_gang(
    form: Form,
    nodes: Iterable[Sequence[int]],
    free: Sequence[int],
    held: Sequence[int] | None = None,
    speed: Sequence[float] | None = None,
) -> Gang | None:
    """A place for the gang: fewest nodes first, then the least disturbance, then the tightest fit.

    Parameters
    ----------
    nodes: for each node the slots that may be used there, in the order in which they shall be used up.
    free: free GPUs per slot.
    held: of those, how many are in the hands of running jobs that may lose them; taking them comes last.
    speed: of one worker on each slot; if given, the fastest nodes come before all else.

    Returns None if the gang does not fit. O(H log H) for H nodes and each admissible node count.
    """
    rooms = []
    for order, slots in enumerate(nodes):
        room = sum(free[s] for s in slots)
        if room > 0:
            rooms.append((room, room - sum(held[s] for s in slots) if held is not None else room, order, slots))
    if sum(room for room, _, _, _ in rooms) < form.workers:
        return None
    for count in node_counts(form):
        if len(rooms) >= count:
            if form.uniform or count == 1:
                gang = _even(form.workers, count, rooms, free, speed)
            else:
                gang = _uneven(form, count, rooms, free, speed)
            if gang:
                return gang
    return None


_Room = tuple[int, int, int, Sequence[int]]


def _even(
    workers: int, count: int, rooms: list[_Room], free: Sequence[int], speed: Sequence[float] | None
) -> Gang | None:
    per = workers // count
    fitting = [r for r in rooms if r[0] >= per]
    if len(fitting) < count:
        return None

    def rank(room: _Room) -> tuple:
        quickness = 0.0 if speed is None else sum(n * speed[s] for s, n in _take(per, room[3], free))
        return -quickness, max(0, per - room[1]), room[0], room[2]

    chosen = [min(fitting, key=rank)] if count == 1 else sorted(fitting, key=rank)[:count]
    return tuple(pair for room in chosen for pair in _take(per, room[3], free))


def _uneven(
    form: Form, count: int, rooms: list[_Room], free: Sequence[int], speed: Sequence[float] | None
) -> Gang | None:
    """Roomiest nodes first, or those with the fastest GPU; each of the ``count`` nodes gets at least one worker."""

    def rank(room: _Room) -> tuple:
        quickness = 0.0 if speed is None else max(speed[s] for s in room[3] if free[s] > 0)
        return -quickness, -room[1], -room[0], room[2]

    chosen = sorted(rooms, key=rank)[:count]
    if sum(r[0] for r in chosen) < form.workers:
        chosen = sorted(rooms, key=lambda r: (-r[0], r[2]))[:count]
    left, gang = form.workers, []
    for position, room in enumerate(chosen):
        here = min(room[0], left - (count - position - 1))
        gang.extend(_take(here, room[3], free))
        left -= here
    return tuple(gang) if left == 0 else None


def _take(count: int, slots: Sequence[int], free: Sequence[int]) -> list[tuple[int, int]]:
    taken = []
    for slot in slots:
        here = min(count, free[slot])
        if here > 0:
            taken.append((slot, here))
            count -= here
    return taken
