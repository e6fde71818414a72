"""How much a job's placement matters: its shortest iteration, that with all replicas apart, and their ratio.

``alpha_min``: the best placement on the empty cluster: by exhaustive search for small jobs, else the best found.
``alpha_max``: every replica on a server of its own, on the slowest NICs, dealt round-robin to the switches. Both are
our definition of the quantities that A-SRPT's rule for waiting compares. A placement can be slower than ``alpha_max``,
where rings of several stages share one NIC; replicas that are all apart do not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence

from slurm_hadar.errors import GraphError
from slurm_hadar.graphs.alpha import Counts, alpha
from slurm_hadar.graphs.graph import JobGraph
from slurm_hadar.graphs.mapping import map_graph
from slurm_hadar.graphs.topology import Group, Topology

__all__ = ["alpha_max", "alpha_min", "every_placement", "rho", "scattered"]

_SMALL = 8  # bundles
_MOST_PLACEMENTS = 6_000  # about 0.4 s; all of 8 bundles on servers of one kind are 4,140


@functools.lru_cache(maxsize=4096)
def alpha_min(graph: JobGraph, topology: Topology, speed: float = 1.0) -> float:
    """Seconds of an iteration in the best placement on the empty cluster; remembered per graph, topology and speed.

    Raises GraphError if the job does not fit the cluster at all.
    """
    found = map_graph(graph, topology, speed=speed)
    if found is None:
        wide = graph.widths[0]
        raise GraphError(
            f"the job's {graph.gpus} GPUs, in pieces of up to {wide} on one server, are more than the cluster has"
        )
    least = found.alpha_s
    if len(graph.stages) > 1 and graph.bundles <= _SMALL and not topology.groups:
        for counts in itertools.islice(_unlike_placements(graph, topology), _MOST_PLACEMENTS):
            least = min(least, alpha(graph, counts, topology, speed))
    return least


@functools.lru_cache(maxsize=4096)
def alpha_max(graph: JobGraph, topology: Topology, speed: float = 1.0) -> float:
    """Seconds of an iteration with every replica on a server of its own, whether or not there are so many servers;
    never below :func:`alpha_min`."""
    spread, apart = scattered(graph, topology)
    return max(alpha(graph, apart, spread, speed), alpha_min(graph, topology, speed))


def rho(graph: JobGraph, topology: Topology) -> float:
    """``alpha_max / alpha_min``, at least 1: how much longer an iteration takes when the job is scattered."""
    return alpha_max(graph, topology) / alpha_min(graph, topology)


def scattered(graph: JobGraph, topology: Topology) -> tuple[Topology, Counts]:
    """A cluster with a server for every bundle, on the slowest links of ``topology``, and the job on it."""
    size = graph.bundles
    usable = [m for m, count in enumerate(topology.gpus) if count] or [0]
    leaves: list[Group] = []
    for group in topology.groups:  # small ones first
        if not any(set(group.servers) & set(leaf.servers) for leaf in leaves):
            leaves.append(group)
    groups = []
    for group in topology.groups:
        below = [i for i in range(size) if leaves[i % len(leaves)].servers[0] in group.servers]
        if 0 < len(below) < size:
            groups.append(Group(tuple(below), group.uplink))
    inside = min(topology.inside[m] for m in usable)
    outside = min(topology.outside[m] for m in usable)
    widest = graph.widths[0]
    spread = Topology((widest,) * size, (inside,) * size, (outside,) * size, tuple(groups))
    apart = {v: tuple(int(s == b.stage) for s in range(len(graph.stages))) for v, b in enumerate(graph.vertices)}
    return spread, apart


def _unlike_placements(graph: JobGraph, topology: Topology) -> Iterator[Counts]:
    """Every placement on the empty cluster, one of each set that differs in the names of like servers only."""
    kinds: dict[tuple[int, float, float], list[int]] = {}
    for m, kind in enumerate(zip(topology.gpus, topology.inside, topology.outside, strict=True)):
        members = kinds.setdefault(kind, [])
        if kind[0] and len(members) < graph.bundles:
            members.append(m)
    servers = [m for members in kinds.values() for m in members]
    like = {b for members in kinds.values() for b in members[1:]}
    return every_placement(graph, [(m, topology.gpus[m]) for m in servers], like)


def every_placement(
    graph: JobGraph, servers: Sequence[tuple[int, int]], like: frozenset[int] | set[int] = frozenset()
) -> Iterator[Counts]:
    """Every way to place the job on ``servers`` (pairs of a server and its free GPUs), exhaustively.

    A server in ``like`` equals the one before it, and holds no more than that one (in the order of tuples).
    """
    widths = [s.width for s in graph.stages]
    later = [sum(free for _, free in servers[i:]) for i in range(len(servers) + 1)]

    def place(i: int, left: tuple[int, ...], above: tuple[int, ...] | None) -> Iterator[dict[int, tuple[int, ...]]]:
        if not any(left):
            yield {}
            return
        if sum(n * w for n, w in zip(left, widths, strict=True)) > later[i]:
            return
        server, free = servers[i]
        for here in _fillings(left, widths, free):
            if server in like and above is not None and here > above:
                continue
            rest = tuple(a - b for a, b in zip(left, here, strict=True))
            for others in place(i + 1, rest, here):
                yield {server: here, **others} if any(here) else others

    return place(0, tuple(s.replicas for s in graph.stages), None)


def _fillings(left: tuple[int, ...], widths: Sequence[int], free: int) -> Iterator[tuple[int, ...]]:
    """What one server may hold: counts per stage, the largest first."""
    if not left:
        yield ()
        return
    for count in range(min(left[0], free // widths[0]), -1, -1):
        for rest in _fillings(left[1:], widths[1:], free - count * widths[0]):
            yield (count, *rest)
