"""Where the workers of a training meet: PyTorch's master address and port."""

from __future__ import annotations

import os
import re
import socket
import zlib
from collections.abc import Mapping

from slurm_hadar import messages
from slurm_hadar.runtime.launch.slurmctld import ask
from slurm_hadar.runtime.tasks import nodelist

__all__ = ["address_of", "first_node_address", "free_port"]

PORT_LOW, PORT_COUNT = 12000, 18000


def first_node_address(environ: Mapping[str, str]) -> str:
    """What Slurm itself uses to reach the job's first node: names of nodes need not be known to DNS."""
    try:
        names = nodelist.expand(environ.get("SLURM_JOB_NODELIST", ""))
    except ValueError:
        names = []
    return "127.0.0.1" if len(names) <= 1 else address_of(names[0])


def address_of(node: str) -> str:
    """By which Slurm reaches the node; its name, where Slurm does not tell."""
    shown = ask(["scontrol", "--oneliner", "show", "node", node])
    match = re.search(r"\bNodeAddr=(\S+)", shown or "")
    return match[1] if match else node


def free_port(environ: Mapping[str, str]) -> int:
    """A port that other jobs on the node do not use: from the job id and the restart, and free on this node. From the
    cluster's name and configuration too, since small clusters on one machine begin their ids alike; and from this
    process, since a job may start several steps at once."""
    cluster = zlib.crc32("".join(environ.get(name, "") for name in ("SLURM_CLUSTER_NAME", "SLURM_CONF")).encode())
    job, restart = int(environ.get("SLURM_JOB_ID", "0")), messages.restart_count(environ)
    for attempt in range(50):
        port = PORT_LOW + (cluster + job * 7 + restart * 3001 + os.getpid() * 31 + attempt * 101) % PORT_COUNT
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    return port
