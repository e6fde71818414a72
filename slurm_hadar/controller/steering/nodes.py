"""The nodes of one look as steering needs them, and which of them a job's partitions and constraint leave open."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_hadar.controller.steering.elastic import NodeGroups, node_groups
from slurm_hadar.model import Mix
from slurm_hadar.slurm.state import NOTHING_MORE, Bounds, Fittings, SlurmJob, SlurmNode
from slurm_hadar.throughput.gpus import memory_gb

__all__ = ["NodeBook", "NodeFacts", "constraint_known", "groups_open", "node_facts", "nodes_counted"]

_NAME = r"[A-Za-z0-9_.:-]+"
_CONSTRAINT = re.compile(rf"{_NAME}(?:[&|]{_NAME})*|\[{_NAME}(?:\|{_NAME})*\]|{_NAME}\*([0-9]{{1,5}})")


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What steering needs of a node: its only GPU type (None if it has none or several), and its state. ``per_gpu``:
    how many shards each of its GPUs has, 0 where it has none or they are not alike. ``has``: what else there is."""

    name: str
    gpu_type: str | None
    gpus: int
    available: bool
    features: frozenset[str]
    partitions: frozenset[str]
    several_types: bool
    per_gpu: int = 0
    has: Fittings = NOTHING_MORE
    maintenance: bool = False


class NodeBook(dict[str, NodeFacts]):
    """The nodes of one look, by name; ``memory_gb`` is what the configuration says of GPU types, ``bounds`` has the
    terms of partitions. What many jobs ask alike is worked out once."""

    def __init__(self, memory_gb: Mapping[str, int] | None = None, bounds: Bounds | None = None) -> None:
        super().__init__()
        self.bounds = bounds or Bounds()
        self._memory_gb = memory_gb or {}

    @functools.cached_property
    def gpu_types(self) -> tuple[str, ...]:
        """Of the nodes that have one only."""
        return tuple(sorted({f.gpu_type for f in self.values() if f.gpu_type}))

    @functools.cached_property
    def _groups(self) -> dict[tuple[str, str, Fittings, tuple[str, ...], Mix], NodeGroups]:
        return {}

    @functools.cached_property
    def _alike(self) -> dict[tuple[str, str, Mix], bool]:
        return {}

    @functools.cached_property
    def _open(self) -> dict[tuple[str, str, Fittings], frozenset[str]]:
        return {}

    def memory_of(self, gpu_type: str) -> int | None:
        """Gigabytes of one GPU of this type; None where nobody knows."""
        return self._memory_gb.get(gpu_type, memory_gb(gpu_type))

    def small(self, least_gb: int) -> tuple[tuple[str, int | None], ...]:
        """The GPU types that have less memory than that, or nobody knows how much, with what they have in GB."""
        known = {t: self.memory_of(t) for t in self.gpu_types}
        return tuple((t, has) for t, has in known.items() if has is None or has < least_gb)

    def groups(self, job: SlurmJob, mix: Mix) -> NodeGroups:
        """The nodes that are open to a job, of whatever state, as one gang may use them together."""
        key = (job.partition, job.features, job.asks, job.exc_nodes, mix)
        if key not in self._groups:
            open_ = self.open_to(job.partition, job.features, job.asks)
            self._groups[key] = groups_open(self, open_.difference(job.exc_nodes), None, mix)
        return self._groups[key]

    def open_to(self, partition: str, constraint: str, asks: Fittings = NOTHING_MORE) -> frozenset[str]:
        """The nodes of a job's partitions that have the features and all else that it asks for."""
        key = (partition, constraint, asks)
        if key not in self._open:
            partitions = set(partition.split(","))
            self._open[key] = frozenset(
                name
                for name, node in self.items()
                if partitions & node.partitions and _features_fit(constraint, node.features) and node.has.cover(asks)
            )
        return self._open[key]

    def are_one(self, partition: str, constraint: str) -> bool:
        """Whether the nodes of a job's partitions are those of one of them."""
        whole = self.open_to(partition, constraint)
        return "," not in partition or any(self.open_to(one, constraint) == whole for one in partition.split(","))

    def alternatives_alike(self, partition: str, constraint: str, mix: Mix) -> bool:
        """Whether all nodes that one gang may use together have the same one of ``[a|b]``, as Slurm is asked for."""
        if not constraint.startswith("["):
            return True
        key = (partition, constraint, mix)
        if key not in self._alike:
            whole = self.open_to(partition, constraint)
            each = [self.open_to(partition, one) for one in constraint[1:-1].split("|")]
            of_type = [{n for n in whole if self[n].gpu_type == gpu_type} for gpu_type in self.gpu_types]
            together = of_type if mix is Mix.NEVER else [set().union(*of_type)]
            self._alike[key] = all(any(nodes <= have for have in each) for nodes in together)
        return self._alike[key]


def node_facts(
    nodes: Iterable[SlurmNode], memory_gb: Mapping[str, int] | None = None, bounds: Bounds | None = None
) -> NodeBook:
    """What steering needs to know of the nodes. ``memory_gb``: of one GPU by type, where the site says it; ``bounds``:
    of its partitions and reservations."""
    facts = NodeBook(memory_gb, bounds)
    for node in nodes:
        types = [t for t, _ in node.gpus]
        gpus = sum(n for _, n in node.gpus)
        facts[node.name] = NodeFacts(
            node.name,
            types[0] if len(types) == 1 else None,
            gpus,
            node.available,
            frozenset(node.features),
            frozenset(node.partitions),
            len(types) > 1,
            node.shards // gpus if len(types) == 1 and node.shards % gpus == 0 and node.whole is not None else 0,
            node.has,
            node.maintenance,
        )
    return facts


def groups_open(
    nodes: Mapping[str, NodeFacts], chosen: frozenset[str] | None, types: frozenset[str] | None, mix: Mix
) -> NodeGroups:
    """The nodes that are open to a job, those that one gang may use together in one group."""
    groups: dict[str, list[int]] = {}
    for name, node in nodes.items():
        if node.gpu_type and (chosen is None or name in chosen) and (types is None or node.gpu_type in types):
            groups.setdefault(node.gpu_type if mix is Mix.NEVER else "", []).append(node.gpus)
    return node_groups(groups.values())


def constraint_known(wanted: str) -> bool:
    """Whether a ``--constraint`` is one that can be followed: names joined by ``&`` and ``|``, ``[a|b]``, or one name
    with the number of nodes that are to have it (``a*2``, see :func:`nodes_counted`)."""
    return len(wanted) <= 1000 and _CONSTRAINT.fullmatch(wanted) is not None


def nodes_counted(wanted: str) -> int | None:
    """How many of a job's nodes are to have the feature that it asks for; None where all are."""
    found = _CONSTRAINT.fullmatch(wanted) if "*" in wanted else None
    return int(found[1]) if found is not None else None


def _features_fit(wanted: str, features: frozenset[str]) -> bool:
    """``a|b&c`` as Slurm reads it: OR of ANDs would be ambiguous, so & binds the way Slurm's left-to-right does."""
    if not wanted:
        return True
    result: bool | None = None
    for operator, name in re.findall(r"(^|[&|])([^&|]+)", wanted.strip("[]").partition("*")[0]):
        here = name in features
        result = here if result is None else (result or here if operator == "|" else result and here)
    return bool(result)
