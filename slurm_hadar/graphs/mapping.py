"""Which server each bundle of a job goes to, and in which order the ranks of the job stand on the servers.

:func:`map_graph` tries a few placements on the servers that are free and keeps the one with the shortest iteration:
Heavy-Edge and two that suit plain pipelines better, each refined by Kernighan and Lin's exchanges. The selection of
servers is our definition: the fewest that will do, the last one the smallest that will do; below one switch if that is
better. O(E log E + V^2) for each try without the refinement, which is bounded by a fixed amount of work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from slurm_hadar.errors import GraphError
from slurm_hadar.graphs.alpha import Counts, alpha, cut
from slurm_hadar.graphs.graph import JobGraph
from slurm_hadar.graphs.greedy import Held, fits, heavy_edge, pack, pick_servers, pipe_by_pipe, stage_by_stage
from slurm_hadar.graphs.refine import refine
from slurm_hadar.graphs.topology import Topology

__all__ = ["GpuMap", "arrange", "map_graph"]

_MOST_STARTS = 6  # are timed and refined
_MOST_SEEDS = 8  # stages to begin with

_Servers = list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class GpuMap:
    """Where a job goes.

    ``servers[v]``: the server of each vertex of the graph, by its number in the topology. ``counts``: replicas of each
    stage per server. ``cut_bytes``: between servers, per iteration; ``alpha_s``: seconds of an iteration. ``order``:
    servers by name with the ranks of the job that run there; rank 0 is the first GPU of the first replica of the first
    stage, tensor-parallel GPUs next to each other, then the replicas of a stage, then the stages.
    """

    servers: tuple[int, ...]
    counts: Counts
    cut_bytes: float
    alpha_s: float
    order: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def hosts(self) -> tuple[str, ...]:
        """The server of every rank, as a file for ``srun --distribution=arbitrary`` (SLURM_HOSTFILE) lists them."""
        by_rank = sorted((rank, name) for name, ranks in self.order for rank in ranks)
        return tuple(name for _, name in by_rank)


def map_graph(
    graph: JobGraph,
    topology: Topology,
    free: Sequence[int] | None = None,
    *,
    kernighan_lin: bool = True,
    least: Literal["time", "bytes"] = "time",
    speed: float = 1.0,
) -> GpuMap | None:
    """The best placement found on ``free[m]`` GPUs of every server (default: all of them); None if the job does not
    fit.

    Bundles are never split. Where the widths of bundles do not divide each other a tight fit may be missed. ``speed``
    of the gang's slowest GPU relative to the reference GPU. ``least``: what to minimise, seconds of an iteration or
    bytes between servers; the other breaks ties. Deterministic. Raises GraphError if ``free`` is not one count per
    server within its GPUs.
    """
    servers = _servers_of(graph, topology, free)
    if not fits(graph, [s.replicas for s in graph.stages], [f for _, f in servers]):
        return None
    placements: list[Held] = []
    for region in _regions(graph, topology, servers):
        placements += _placements(graph, region, kernighan_lin)
    if not placements:
        return None

    def rank(held: Counts) -> tuple[float, float, int]:
        seconds, sent = _rounded(alpha(graph, held, topology, speed)), _rounded(cut(graph, held))
        return (sent, seconds, len(held)) if least == "bytes" else (seconds, sent, len(held))

    return arrange(graph, topology, min(placements, key=rank), speed)


def _rounded(value: float) -> float:
    """So that figures which differ by rounding only are the same."""
    return float(f"{value:.9g}")


def _servers_of(graph: JobGraph, topology: Topology, free: Sequence[int] | None) -> _Servers:
    """Free servers, those first that hold most; of equals the one that wastes least, then the one with the faster
    NIC."""
    given = topology.gpus if free is None else free
    if len(given) != len(topology):
        raise GraphError(f"{len(given)} counts of free GPUs for {len(topology)} servers")
    for name, have, count in zip(topology.names, topology.gpus, given, strict=True):
        if not 0 <= count <= have:
            raise GraphError(f"server {name}: {count} free GPUs of {have}")
    unit = graph.widths[-1]
    found = [(m, int(f)) for m, f in enumerate(given) if f >= unit]
    return sorted(found, key=lambda r: (-(r[1] - r[1] % unit), r[1], -topology.outside[r[0]], r[0]))


def _placements(graph: JobGraph, region: _Servers, kernighan_lin: bool) -> list[Held]:
    """Placements worth timing: the starts with the smallest cuts, plain Heavy-Edge among them, and each refined."""
    chosen = pick_servers(graph, region)
    if chosen is None:
        return []
    if len(graph.stages) == 1:
        return [_plain(graph, chosen)]
    if len(chosen) == 1:
        return list(filter(None, [heavy_edge(graph, chosen)]))
    # the smallest last server leaves no choice: so also with larger ones, and with one more
    regions = [chosen, region[: len(chosen)], region[: len(chosen) + 1]]
    starts = _unlike(start for servers in regions for start in _starts(graph, servers))
    if not starts:
        packed = pack(graph, region)
        starts = [packed] if packed else []
    kept = starts[:1] + sorted(starts[1:], key=lambda h: _rounded(cut(graph, h)))[: _MOST_STARTS - 1]
    kept = _unlike(kept + list(filter(None, (pipe_by_pipe(graph, _even(graph, servers)) for servers in regions))))
    if kernighan_lin:
        free = dict(region)
        kept += [refine(graph, start, free) for start in kept]
    return _unlike(kept)


def _even(graph: JobGraph, servers: _Servers) -> _Servers:
    """The same share of the job for each server: with little to compute, the NIC with the most traffic sets the
    pace."""
    share = -(-graph.gpus // len(servers))
    return [(m, min(free, share)) for m, free in servers]


def _starts(graph: JobGraph, servers: _Servers) -> Iterator[Held]:
    found = [heavy_edge(graph, servers), pipe_by_pipe(graph, servers)]
    found += [
        stage_by_stage(graph, servers, order, whole=w) for order in _orders(len(graph.stages)) for w in (True, False)
    ]
    return filter(None, found)


def _orders(stages: int) -> Iterator[list[int]]:
    """Orders of the stages that keep neighbours together: from some of them to one end, then to the other."""
    for first in range(0, stages, -(-stages // _MOST_SEEDS)):
        up, down = [*range(first, stages)], [*range(first - 1, -1, -1)]
        yield up + down
        if down:
            yield [first, *down, *up[1:]]


def _unlike(placements: Iterable[Held]) -> list[Held]:
    """Each once, in the order of their first appearance."""
    return list({tuple(sorted((m, tuple(h)) for m, h in held.items())): held for held in placements}.values())


def _plain(graph: JobGraph, servers: _Servers) -> Held:
    """A single stage: only the number of servers counts, so they are filled up. The same as Heavy-Edge, without its
    steps."""
    left, width, held = graph.stages[0].replicas, graph.stages[0].width, {}
    for server, free in servers:
        here = min(left, free // width)
        left -= here
        if here:
            held[server] = [here]
    return held


def _regions(graph: JobGraph, topology: Topology, servers: _Servers) -> Iterator[_Servers]:
    """Servers to choose from: all; those below the one switch that suits best; all, switch by switch."""
    yield servers
    if not topology.groups:
        return
    below = [
        [r for r in servers if r[0] in members] for members in map(frozenset, (g.servers for g in topology.groups))
    ]
    enough = [
        (len(chosen), sum(f for _, f in region), i)
        for i, region in enumerate(below)
        if (chosen := pick_servers(graph, region) if region else None)
    ]
    if enough:
        yield below[min(enough)[2]]
    else:
        yield _switch_by_switch(topology, servers)


def _switch_by_switch(topology: Topology, servers: _Servers) -> _Servers:
    """All servers, next to each other those that share the smallest switch; the switch with most free GPUs first."""
    leaf: dict[int, int] = {}
    for i, group in enumerate(topology.groups):
        for m in group.servers:
            leaf.setdefault(m, i)
    total: dict[int, int] = {}
    for m, free in servers:
        total[leaf.get(m, -1)] = total.get(leaf.get(m, -1), 0) + free
    return sorted(servers, key=lambda r: (-total[leaf.get(r[0], -1)], leaf.get(r[0], -1)))


def arrange(graph: JobGraph, topology: Topology, held: Counts, speed: float = 1.0) -> GpuMap:
    """Bundles and ranks for a placement by counts: the replicas of a stage go to the servers in the order of the
    cluster, those below one switch together, so that a ring crosses nothing twice."""
    above: dict[int, list[int]] = {m: [] for m in held}
    for i in range(len(topology.groups) - 1, -1, -1):
        for m in above.keys() & set(topology.groups[i].servers):
            above[m].append(i)
    order = sorted(held, key=lambda m: (above[m], m))
    servers: list[int] = []
    ranks: dict[int, list[int]] = {m: [] for m in order}
    next_rank = 0
    for s, stage in enumerate(graph.stages):
        for m in order:
            count = held[m][s]
            servers += [m] * count
            ranks[m] += range(next_rank, next_rank + count * stage.width)
            next_rank += count * stage.width
    named = tuple((topology.names[m], tuple(ranks[m])) for m in order)
    counts = {m: tuple(held[m]) for m in order}
    return GpuMap(tuple(servers), counts, cut(graph, counts), alpha(graph, counts, topology, speed), named)
