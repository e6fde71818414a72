"""How much slower a job is on several nodes than on one, from its graph.

The factor for n nodes is ``alpha`` on one node over ``alpha`` of the best map on n alike nodes that hold the same
number of GPUs each: with the bandwidths of that GPU type, and with compute times by its speed. A job that is wider than
any node of the cluster has no such node, so the one node is an ideal one with as many GPUs as the job needs and the
links of that type. Factors are at most 1. All of it is our definition.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from slurm_hadar.graphs.alpha import alpha
from slurm_hadar.graphs.bounds import scattered
from slurm_hadar.graphs.graph import JobGraph
from slurm_hadar.graphs.mapping import map_graph
from slurm_hadar.graphs.network import Network
from slurm_hadar.graphs.topology import Topology

__all__ = ["Fleet", "factor_on"]

_MOST_NODES = 64  # factors for more nodes are not worked out one by one: the last of them holds


class Fleet:
    """The nodes of a cluster with their links, and what they make of job graphs.

    Parameters
    ----------
    network: the links. nodes: GPU type and number of GPUs of each node.
    """

    def __init__(self, network: Network, nodes: Mapping[str, tuple[str, int]]) -> None:
        self.network, self.nodes = network, dict(nodes)
        self._types = {name: gpu_type for name, (gpu_type, _) in nodes.items()}
        self._known: dict[tuple[JobGraph, str, float, int], tuple[float, ...]] = {}
        self._on_nodes: dict[tuple[JobGraph, str, float, int], float] = {}

    def factors(self, graph: JobGraph, gpu_type: str, speed: float = 1.0, most_nodes: int = 1) -> tuple[float, ...]:
        """What is left of the rate on one node when the job is on 1, 2, ... nodes of ``gpu_type``; the last factor is
        that with all bundles on nodes of their own.

        ``most_nodes``: of a gang. ``speed``: of the type relative to the reference GPU. Numbers of nodes that do not
        divide the gang, or need larger nodes than there are, have the factor of the next one that can be.
        """
        most = max(1, min(most_nodes, graph.gpus, max(1, len(self.nodes)), _MOST_NODES))
        key = (graph, gpu_type, speed, most)
        if key not in self._known:
            self._known[key] = self._factors(graph, gpu_type, speed, most)
        return self._known[key]

    def _factors(self, graph: JobGraph, gpu_type: str, speed: float, most: int) -> tuple[float, ...]:
        alike = self._alike(gpu_type)
        inside, outside = self._slowest(alike, gpu_type)
        whole = Topology((graph.gpus,), (inside,), (outside,))
        largest = max((self.nodes[n][1] for n in alike), default=graph.gpus)
        apart = factor_on(graph, *scattered(graph, self._topology(alike or [""], graph.gpus, gpu_type)), whole, speed)
        found = [apart]
        for count in range(most, 1, -1):
            each, rest = divmod(graph.gpus, count)
            possible = not rest and each <= largest
            if possible and (graph, gpu_type, speed, count) not in self._on_nodes:
                self._on_nodes[graph, gpu_type, speed, count] = self._on(graph, alike, gpu_type, count, whole, speed)
            found.append(self._on_nodes[graph, gpu_type, speed, count] if possible else found[-1])
        return (1.0, *reversed(found)) if graph.gpus > 1 else (1.0,)

    def _on(
        self, graph: JobGraph, alike: Sequence[str], gpu_type: str, count: int, whole: Topology, speed: float
    ) -> float:
        """The factor on ``count`` nodes, those below as few switches as possible."""
        each = graph.gpus // count
        servers = self._topology(self._near(alike, count), each, gpu_type)
        mapped = map_graph(graph, servers, speed=speed)
        if mapped is not None:
            return factor_on(graph, servers, mapped.counts, whole, speed)
        # bundles are cut: as if all their links were NICs, shared by the bundles that have GPUs on one node
        nic = min(servers.outside) / -(-each // graph.widths[0])
        cut = Topology((graph.gpus,), (nic,), (nic,))
        return factor_on(graph, cut, {0: [s.replicas for s in graph.stages]}, whole, speed)

    def _topology(self, names: Sequence[str], each: int, gpu_type: str) -> Topology:
        """Nodes of one type with ``each`` GPUs and the slowest links that any such node has."""
        inside, outside = self._slowest(self._alike(gpu_type), gpu_type)
        types = dict.fromkeys(names, gpu_type)
        drawn = self.network.topology(dict.fromkeys(names, each), types, self._types)
        return Topology(drawn.gpus, (inside,) * len(drawn), (outside,) * len(drawn), drawn.groups)

    def _slowest(self, alike: Sequence[str], gpu_type: str) -> tuple[float, float]:
        links = [self.network.links(gpu_type, node) for node in alike] or [self.network.links(gpu_type)]
        return min(inside for inside, _ in links), min(outside for _, outside in links)

    def _alike(self, gpu_type: str) -> list[str]:
        return [name for name, (of, _) in self.nodes.items() if of == gpu_type]

    def _near(self, alike: Sequence[str], count: int) -> list[str]:
        """``count`` nodes below as few switches as possible; made-up ones where there are not so many of the type."""
        below = sorted(
            ([n for n in alike if n in members] for members in map(frozenset, self.network.switches.values())), key=len
        )
        enough = next((nodes for nodes in below if len(nodes) >= count), None)
        order = enough or [n for nodes in reversed(below) for n in nodes] + list(alike)
        chosen = list(dict.fromkeys(order))[:count]
        return chosen + [f"?{i}" for i in range(count - len(chosen))]


def factor_on(
    graph: JobGraph, servers: Topology, counts: Mapping[int, Sequence[int]], whole: Topology, speed: float
) -> float:
    """``alpha`` on the one server of ``whole`` over that of the placement ``counts`` on ``servers``; at most 1."""
    least = _together(graph, whole, speed)
    return min(1.0, least / alpha(graph, counts, servers, speed))


@functools.lru_cache(maxsize=4096)
def _together(graph: JobGraph, whole: Topology, speed: float) -> float:
    return alpha(graph, {0: [s.replicas for s in graph.stages]}, whole, speed)
