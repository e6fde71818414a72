"""GPUs and nodes: what there is, who has what of it, and how fast it is."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Basis", "EMPTY", "GpuType", "Node", "Partition", "Placement", "Speed", "Tenant", "in_steps"]


class Basis(enum.StrEnum):
    """How a speed is known: measured here by the owner's own jobs, on this type with this gang; estimated from what was
    measured or published; or unknown where nothing but data sheets is known."""

    MEASURED = "measured"
    ESTIMATED = "estimated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class GpuType:
    """A GPU model as the site's GRES names it.

    ``tflops`` is the sustained fp32/tensor rate in TFLOP/s and ``bandwidth_gb_s`` the memory bandwidth in GB/s; both
    serve the estimate for job and type pairs that were never measured. 0 means unknown.
    """

    name: str
    tflops: float = 0.0
    bandwidth_gb_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Placement:
    """Which GPUs a job holds: ``{node: {gpu type: count}}`` in canonical, hashable form. Empty = does not run."""

    shares: tuple[tuple[str, tuple[tuple[str, int], ...]], ...] = ()

    @classmethod
    def of(cls, mapping: Mapping[str, Mapping[str, int]]) -> Placement:
        """Build from a nested mapping, dropping zero counts. Raises ValueError on a negative count."""
        shares = []
        for node in sorted(mapping):
            counts = tuple(sorted((t, n) for t, n in mapping[node].items() if n))
            if any(n < 0 for _, n in counts):
                raise ValueError(f"negative GPU count on node {node}")
            if counts:
                shares.append((node, counts))
        return cls(tuple(shares))

    def __bool__(self) -> bool:
        return bool(self.shares)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The names of its nodes."""
        return tuple(node for node, _ in self.shares)

    @property
    def workers(self) -> int:
        """GPUs, over all nodes and types."""
        return sum(n for _, counts in self.shares for _, n in counts)

    @property
    def by_type(self) -> dict[str, int]:
        """GPUs per type, over all nodes."""
        total: dict[str, int] = {}
        for _, counts in self.shares:
            for gpu_type, n in counts:
                total[gpu_type] = total.get(gpu_type, 0) + n
        return total

    def as_dict(self) -> dict[str, dict[str, int]]:
        """``{node: {gpu type: count}}``, as JSON has it; :meth:`of` reads it back."""
        return {node: dict(counts) for node, counts in self.shares}

    def items(self) -> Iterable[tuple[str, str, int]]:
        """Every (node, gpu type, count)."""
        for node, counts in self.shares:
            for gpu_type, n in counts:
                yield node, gpu_type, n

    def __str__(self) -> str:
        if not self.shares:
            return "-"
        return "+".join(f"{node}({','.join(f'{t}:{n}' for t, n in counts)})" for node, counts in self.shares)


EMPTY = Placement()


@dataclass(frozen=True, slots=True)
class Speed:
    """Throughput of one job's whole gang with all its workers on one GPU type.

    ``steps_per_s`` holds on one node; ``spread`` in (0, 1] multiplies it when the gang spans several nodes (the
    communication factor phi of Hadar's model). Where a job graph says more, ``by_nodes`` has the factors on 1, 2, ...
    nodes instead, the last one that with all parts of the gang on nodes of their own, and on more nodes than are
    listed; a gang that is wider than any node then has its ``steps_per_s`` on a node of that type that would be large
    enough. ``source`` says in words how the speed is known; ``error`` is the expected relative error, or None if
    nothing is known about it. ``measured``: by the owner's own jobs, on this type with this gang.
    """

    steps_per_s: float
    spread: float = 1.0
    source: str = "default"
    error: float | None = None
    by_nodes: tuple[float, ...] = ()
    measured: bool = False

    @property
    def basis(self) -> Basis:
        """What the speed rests on."""
        if self.error is None:
            return Basis.UNKNOWN
        return Basis.MEASURED if self.measured else Basis.ESTIMATED

    def factor(self, nodes: int) -> float:
        """What is left of the rate on one node when the gang is on so many."""
        if self.by_nodes:
            return self.by_nodes[min(nodes, len(self.by_nodes)) - 1]
        return self.spread if nodes > 1 else 1.0

    @property
    def apart(self) -> float:
        """The same with all parts of the gang on nodes of their own."""
        return self.by_nodes[-1] if self.by_nodes else self.spread

    def on(self, nodes: int) -> float:
        """Steps per second of the gang on so many nodes."""
        return self.steps_per_s * self.factor(nodes)


def in_steps(count: float, step: int) -> float:
    """``count``, of which there are whole multiples of ``step`` only."""
    return count if step == 1 else math.ceil(count / step) * step


class Tenant(NamedTuple):
    """Whose job is on a node, as far as that matters to others there. ``by_user``: it shares its nodes with jobs of its
    ``user`` only; ``mcs``: with jobs of this label of Slurm's Multi-Category Security only, which say so, too."""

    user: str = ""
    by_user: bool = False
    mcs: str = ""

    def admits(self, other: Tenant) -> bool:
        """Whether the two may be on one node."""
        return self.mcs == other.mcs and (self.user == other.user or not (self.by_user or other.by_user))


@dataclass(frozen=True, slots=True)
class Node:
    """A compute node. ``gpus`` is what it has; ``taken`` what jobs hold there that are not ours to move.

    ``available`` is False for drained, draining, down and otherwise unusable nodes; ``reason`` then says why.
    ``cpus`` and ``memory_bytes`` are what a policy may hand out here beside GPUs, None where that is not counted;
    ``shared``: others' jobs are here, so that no job can have the whole node. ``partition_cpus``: by partition, where
    one limits it, the CPUs that a policy may hand out here to its jobs. ``tenants``: whose jobs are here that are not
    ours to move, where a job of the cluster minds. ``cpu_step``: CPUs are handed out in multiples of so many, as whole
    cores or sockets. ``boot_s``: seconds until it is up, of a node that is switched on for the job placed there; 0 = it
    is up.
    """

    name: str
    gpus: Mapping[str, int] = field(default_factory=dict)
    taken: Mapping[str, int] = field(default_factory=dict)
    available: bool = True
    state: str = "idle"
    reason: str = ""
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    cpus: int | None = None
    memory_bytes: int | None = None
    shared: bool = False
    partition_cpus: Mapping[str, int] = field(default_factory=dict)
    tenants: frozenset[Tenant] = frozenset()
    cpu_step: int = 1
    boot_s: float = 0.0

    def cpus_given(self, asked: float) -> float:
        """The CPUs that a job gets here which asks for so many."""
        return in_steps(asked, self.cpu_step)

    @property
    def steerable_gpus(self) -> dict[str, int]:
        """GPUs per type that a policy may hand out here; empty if the node is not available."""
        if not self.available:
            return {}
        free = {t: n - self.taken.get(t, 0) for t, n in self.gpus.items()}
        return {t: n for t, n in free.items() if n > 0}


@dataclass(frozen=True, slots=True)
class Partition:
    """A Slurm partition: its nodes, its longest time limit in seconds (None = unlimited) and whether it starts jobs.
    ``inactive``: it starts none, and Slurm refuses to change those that wait in it.
    ``tier``: its ``PriorityTier``; ``preemptible``: its jobs may be put back into the queue, or ended, by Slurm for
    those of a higher tier, where it goes by that."""

    name: str
    nodes: tuple[str, ...] = ()
    max_time_s: float | None = None
    up: bool = True
    tier: int = 1
    preemptible: bool = False
    inactive: bool = False
