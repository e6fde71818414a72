"""The nodes of a cluster that is given in words."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_hadar.cluster.spec import parse_nodes
from slurm_hadar.model import Node

__all__ = ["cluster_nodes", "gpus_by_type"]

_MOST_NODES = 100_000


def cluster_nodes(text: str, *, by_node: bool = True) -> tuple[Node, ...]:
    """The nodes that ``type:nodesxGPUs,...`` stands for; without boundaries, one per type that has all its GPUs."""
    nodes = [Node(n.name, dict(n.gpus)) for n in parse_nodes(text, _MOST_NODES)]
    if by_node:
        return tuple(nodes)
    return tuple(Node(t, {t: n}) for t, n in gpus_by_type(nodes).items())


def gpus_by_type(nodes: Iterable[Node]) -> dict[str, int]:
    """GPUs of all nodes together, types in order of first appearance."""
    found: dict[str, int] = {}
    for node in nodes:
        for gpu_type, count in node.gpus.items():
            found[gpu_type] = found.get(gpu_type, 0) + count
    return found
