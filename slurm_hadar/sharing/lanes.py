"""Which lane of a GPU's memory a job gets, so that whatever its members do, the memory is enough.

A job's memory is *persistent* (P bytes: parameters, optimizer state, book-keeping; there between iterations) and
*ephemeral* (E bytes: the peak of an iteration above P). Jobs of one *lane* take turns, so that a lane needs the largest
E of its members and not their sum; lanes run beside each other. What must always hold (Salus, section 3.3)::

    sum of P over all jobs  +  sum over lanes of the largest E of their members  <=  capacity

Amounts are counted, not addresses: jobs here are processes of their own, whose pages may lie anywhere.

A *keeper* (ours) does not give its ephemeral memory back at the end of its turn, since nobody needs it: its E counts
beside its P, and not in its lane. It becomes one only where the condition holds with that, and ceases to be one by its
word that it has given the memory back.

**No deadlock.** A job holds all that an iteration needs before its first one, and waits for nobody's memory while it
has the turn; a GPU without jobs takes in every job with P + E <= capacity.

**No exception for priority.** Salus also admits a job of higher priority that could run alone, whatever already runs
(section 4.2), and does not say where the memory is to come from. Here the condition above has no exception: such a job
waits until it fits. Policies by remaining time admit a job only when it is to run at once
(:func:`slurm_hadar.sharing.entry.let_in`), so that long jobs do not fill the memory before their first turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

__all__ = [
    "Demand", "GpuMemory", "Lane", "Place", "Step", "admit", "at_boundary", "find_lane", "is_safe", "keep",
    "keep_no_more", "release",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Demand:
    """What a job needs of a GPU's memory, in bytes."""

    persistent_bytes: int
    ephemeral_bytes: int

    @property
    def alone_bytes(self) -> int:
        """What the job needs if nobody else is there."""
        return self.persistent_bytes + self.ephemeral_bytes


@dataclass(frozen=True, slots=True)
class Lane:
    """The ephemeral memory that ``members`` use by turns. ``size_bytes`` is kept for them: at least the largest E of
    theirs who are no keepers, more where a member has left since the lane's last boundary."""

    number: int
    size_bytes: int
    members: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuMemory:
    """One GPU's memory: who is there, and in which lane. Numbers of lanes are not used again."""

    capacity_bytes: int
    demands: Mapping[str, Demand] = field(default_factory=dict)
    lanes: tuple[Lane, ...] = ()
    next_number: int = 0
    keepers: frozenset[str] = frozenset()

    @property
    def reserved_bytes(self) -> int:
        """Of all jobs' persistent memory, what keepers keep, and all lanes together."""
        persistent = sum(demand.persistent_bytes for demand in self.demands.values())
        kept = sum(self.demands[name].ephemeral_bytes for name in self.keepers)
        return persistent + kept + sum(lane.size_bytes for lane in self.lanes)

    def lane_of(self, name: str) -> Lane:
        """Raises KeyError if no such job is there."""
        for lane in self.lanes:
            if name in lane.members:
                return lane
        raise KeyError(name)


class Step(StrEnum):
    """Which step of the search for a lane has found it."""

    NEW = "new"
    MATCH = "match"
    ENLARGE = "enlarge"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a job may go: a lane that is there, or None for a new one, and the size that the lane then has."""

    step: Step
    lane: int | None
    size_bytes: int


def find_lane(memory: GpuMemory, demand: Demand, most_lanes: int | None = None) -> Place | None:
    """A lane for a job, or None: it has to wait.

    Salus, Algorithm 1: (1) a new lane of the job's own size; (2) the smallest lane that is large enough; (3) the
    smallest of the smaller ones that can be enlarged; (4) none. Step 2 is printed without a check that the job's
    persistent memory fits beside the lanes; here it is checked, and step 3 leaves lanes alone that are larger than the
    job needs, which as printed it would shrink under their members. ``most_lanes`` bounds the number of lanes; with 1
    the whole GPU is one lane. An enlarged lane is larger from its next boundary on, before which the new member has no
    turn; the memory is reserved at once.
    """
    free = memory.capacity_bytes - memory.reserved_bytes - demand.persistent_bytes
    need = demand.ephemeral_bytes
    if need <= free and (most_lanes is None or len(memory.lanes) < most_lanes):
        return Place(Step.NEW, None, need)
    ascending = sorted(memory.lanes, key=lambda lane: (lane.size_bytes, lane.number))
    for lane in ascending:
        if lane.size_bytes >= need and free >= 0:
            return Place(Step.MATCH, lane.number, lane.size_bytes)
    for lane in ascending:
        if lane.size_bytes < need <= free + lane.size_bytes:
            return Place(Step.ENLARGE, lane.number, need)
    return None


def admit(memory: GpuMemory, name: str, demand: Demand, place: Place) -> GpuMemory:
    """The memory with one job more, where :func:`find_lane` has found place for it."""
    if name in memory.demands:
        raise ValueError(f"{name!r} is there already")
    demands = {**memory.demands, name: demand}
    if place.lane is None:
        lane = Lane(memory.next_number, place.size_bytes, (name,))
        return replace(memory, demands=demands, lanes=(*memory.lanes, lane), next_number=memory.next_number + 1)
    lanes = tuple(
        replace(lane, size_bytes=place.size_bytes, members=(*lane.members, name)) if lane.number == place.lane else lane
        for lane in memory.lanes
    )
    return replace(memory, demands=demands, lanes=lanes)


def release(memory: GpuMemory, name: str) -> GpuMemory:
    """The memory without a job that has ended or died. Its lane keeps its size until :func:`at_boundary`: another
    member's iteration may be under way in it; a lane that nobody is left in is gone."""
    demands = {other: demand for other, demand in memory.demands.items() if other != name}
    left = (replace(lane, members=tuple(m for m in lane.members if m != name)) for lane in memory.lanes)
    lanes = tuple(lane for lane in left if lane.members)
    return replace(memory, demands=demands, lanes=lanes, keepers=memory.keepers - {name})


def keep(memory: GpuMemory, names: Iterable[str]) -> GpuMemory | None:
    """The memory with these jobs as keepers, too; None where there is no room for what they would keep."""
    kept = replace(memory, keepers=memory.keepers.union(names))
    kept = _resized(kept, lambda lane: _largest(kept, lane))
    return kept if kept.reserved_bytes <= kept.capacity_bytes else None


def keep_no_more(memory: GpuMemory, names: Iterable[str]) -> GpuMemory:
    """The memory when these jobs have given back what they kept: each uses its lane again, which is as large as that
    needs. Never more than before is reserved."""
    left = replace(memory, keepers=memory.keepers.difference(names))
    return _resized(left, lambda lane: max(lane.size_bytes, _largest(left, lane)))


def at_boundary(memory: GpuMemory, number: int) -> GpuMemory:
    """The memory after a lane's boundary between two iterations, at which it holds nothing alive and is made as small
    as its members allow (Salus' defragmentation). What is not there any more changes nothing."""
    if all(lane.size_bytes == _largest(memory, lane) for lane in memory.lanes if lane.number == number):
        return memory
    return _resized(memory, lambda lane: _largest(memory, lane) if lane.number == number else lane.size_bytes)


def _resized(memory: GpuMemory, size: Callable[[Lane], int]) -> GpuMemory:
    return replace(memory, lanes=tuple(replace(lane, size_bytes=size(lane)) for lane in memory.lanes))


def _largest(memory: GpuMemory, lane: Lane) -> int:
    """Of who gives it back at the end of a turn."""
    sharers = (name for name in lane.members if name not in memory.keepers)
    return max((memory.demands[name].ephemeral_bytes for name in sharers), default=0)


def is_safe(memory: GpuMemory) -> bool:
    """Whether the condition holds, worked out from the members and not from what was reserved: each job in one lane,
    each lane large enough, and all together within the capacity."""
    placed = sorted(name for lane in memory.lanes for name in lane.members)
    return (
        placed == sorted(memory.demands)
        and memory.keepers <= memory.demands.keys()
        and all(lane.members and lane.size_bytes >= _largest(memory, lane) for lane in memory.lanes)
        and memory.reserved_bytes <= memory.capacity_bytes
    )
