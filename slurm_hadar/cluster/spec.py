"""What a private cluster shall look like: its virtual nodes and its options."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_hadar.errors import ClusterError

__all__ = ["DEFAULT_NODES", "ClusterSpec", "VirtualNode", "parse_nodes"]

DEFAULT_NODES = "v100:2x4,p100:2x4,k80:2x4"
_GROUP = re.compile(r"(?P<types>[^:]+):(?P<nodes>\d+)x(?P<gpus>\d+)")
_TYPE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
MAX_NODES = 500
MAX_GPUS_PER_TYPE = 64
MAX_SHARDS = 64


@dataclass(frozen=True, slots=True)
class VirtualNode:
    """One slurmd that pretends to be a machine: its name and how many GPUs of which type it offers."""

    name: str
    gpus: Mapping[str, int]

    @property
    def features(self) -> tuple[str, ...]:
        """Slurm features of the node: its GPU types."""
        return tuple(self.gpus)


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """Everything ``up`` needs to know.

    nodes: ``type:nodesxGPUs`` groups joined by commas; ``v100+k80:1x2`` is one node with two GPUs of each type.
    name: tells clusters of one user apart; also the end of Slurm's ClusterName.
    directory: where the cluster lives; None is the default place for ``name``.
    accounting: also start a private MariaDB and slurmdbd.
    plugins: switch on ``job_submit.lua`` and the TaskProlog.
    partitions: one partition per GPU type beside ``all``.
    shards: how many jobs may share a GPU (``--gres=shard:N``); 0: none.
    fastest_steps_per_s: emulated rate of each workload on its fastest single GPU.
    kill_wait_s: Slurm's KillWait.
    slurm: ``auto`` (installed, else installed now), ``system`` (PATH only) or ``unpacked`` (never touches the system).
    start_deadline_s: how long all nodes together may take to become idle.
    extra_conf: lines appended to slurm.conf.
    """

    nodes: str = DEFAULT_NODES
    name: str = "hadar"
    directory: Path | None = None
    accounting: bool = False
    plugins: bool = False
    partitions: bool = False
    shards: int = 0
    fastest_steps_per_s: float = 20.0
    kill_wait_s: int = 5
    slurm: str | None = None
    start_deadline_s: float = 120.0
    extra_conf: tuple[str, ...] = ()
    virtual_nodes: tuple[VirtualNode, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ClusterError(
                f"cluster name {self.name!r}: use at most 32 lower-case letters, digits, '-' and '_', "
                "beginning with a letter or digit"
            )
        if not 0 < self.fastest_steps_per_s < 1e6:
            raise ClusterError(f"fastest rate {self.fastest_steps_per_s:g}: must be above 0 steps per second")
        if not 1 <= self.kill_wait_s <= 3600:
            raise ClusterError(f"kill wait {self.kill_wait_s}: must be 1 to 3600 seconds")
        if not 0 <= self.shards <= MAX_SHARDS:
            raise ClusterError(f"shards {self.shards}: must be 0 to {MAX_SHARDS} for each GPU")
        object.__setattr__(self, "virtual_nodes", parse_nodes(self.nodes))

    @property
    def cluster_name(self) -> str:
        """Slurm's ClusterName, which jobs see as SLURM_CLUSTER_NAME."""
        return f"hadar_{self.name}"

    @property
    def gpu_types(self) -> tuple[str, ...]:
        """All GPU types, in the order of their first mention."""
        return tuple(dict.fromkeys(t for node in self.virtual_nodes for t in node.gpus))


def parse_nodes(text: str, most_nodes: int = MAX_NODES) -> tuple[VirtualNode, ...]:
    """Read ``v100:2x4,p100:2x4,v100+k80:1x2`` (type:nodes x GPUs of each type) into nodes ``v100-1``, ``v100-2`` ...

    Raises ClusterError naming the group that is wrong and what would be right; ``most_nodes`` is the limit in all.
    """
    nodes: list[VirtualNode] = []
    numbered: Counter[str] = Counter()
    for group in text.split(","):
        types, count, gpus = _group(group.strip(), most_nodes)
        stem = "-".join(types)
        for _ in range(count):
            numbered[stem] += 1
            nodes.append(VirtualNode(f"{stem}-{numbered[stem]}", dict.fromkeys(types, gpus)))
    if len(nodes) > most_nodes:
        raise ClusterError(
            f"nodes {text!r}: {len(nodes)} nodes are more than one machine can play; at most {most_nodes}"
        )
    return tuple(nodes)


def _group(group: str, most_nodes: int) -> tuple[tuple[str, ...], int, int]:
    match = _GROUP.fullmatch(group)
    if not match:
        raise ClusterError(f"nodes {group!r}: must be type:nodesxGPUs, such as v100:2x4 (two nodes of four v100 each)")
    types = tuple(match["types"].split("+"))
    for name in types:
        if not _TYPE.fullmatch(name):
            raise ClusterError(
                f"nodes {group!r}: GPU type {name!r} must be lower-case letters, digits and '_', such as v100"
            )
    if len(set(types)) < len(types):
        raise ClusterError(f"nodes {group!r}: a GPU type stands twice on one node")
    count, gpus = int(match["nodes"]), int(match["gpus"])
    if count < 1 or gpus < 1:
        raise ClusterError(f"nodes {group!r}: needs at least one node and one GPU")
    if count > most_nodes or gpus > MAX_GPUS_PER_TYPE:
        raise ClusterError(
            f"nodes {group!r}: at most {most_nodes} nodes and {MAX_GPUS_PER_TYPE} GPUs of a type per node"
        )
    return types, count, gpus
