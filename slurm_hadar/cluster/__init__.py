"""A private, real Slurm cluster on this machine: for the demo, the tests and trying things out.

No root, no munge, no containers: one slurmd per virtual node, symlinks to /dev/null as GPUs, ports of its own.

>>> from slurm_hadar.cluster import ClusterSpec, up
>>> with up(ClusterSpec(nodes="v100:2x4,k80:1x2")) as cluster:   # doctest: +SKIP
...     print(cluster.run(["sinfo"]).stdout)
"""

from slurm_hadar.cluster.lifecycle import directory_of, down, exposure, find, up
from slurm_hadar.cluster.private import NodeState, PrivateCluster
from slurm_hadar.cluster.spec import DEFAULT_NODES, ClusterSpec, VirtualNode, parse_nodes

__all__ = [
    "DEFAULT_NODES",
    "ClusterSpec",
    "NodeState",
    "PrivateCluster",
    "VirtualNode",
    "directory_of",
    "down",
    "exposure",
    "find",
    "parse_nodes",
    "up",
]
