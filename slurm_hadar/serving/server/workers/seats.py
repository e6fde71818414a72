"""Where workers may run: on the GPUs of this node, and on those that the job has on its other nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_hadar.runtime.allocation.gpus import NodeGpus, gpus_of_job, in_allocation
from slurm_hadar.sharing.gpus import visible

__all__ = ["Seat", "seats_here"]


@dataclass(frozen=True, slots=True)
class Seat:
    """A worker's GPU. Here (``node`` None) ``gpu`` is its name in CUDA_VISIBLE_DEVICES; on another node its place among
    the ``on_node`` GPUs that the job has there, of whose ``cpus`` the worker has its share."""

    gpu: str
    node: str | None = None
    on_node: int = 0
    cpus: int = 1


def seats_here(environ: Mapping[str, str] = os.environ) -> list[Seat]:
    """This node's first, as CUDA_VISIBLE_DEVICES has them; none where nothing says which GPUs there are. Raises
    ConfigError where Slurm does not tell of the other nodes, AllocationLost where they are not ours any more."""
    own = [Seat(gpu) for gpu in visible(environ)]
    nodes = environ.get("SLURM_JOB_NUM_NODES", "1")
    if not in_allocation(environ) or nodes in ("", "1"):
        return own
    found = gpus_of_job(environ)
    here = environ.get("SLURMD_NODENAME", "")
    own = own or [Seat(str(place)) for one in found if one.node == here for place in one.gpus]
    return [*own, *(seat for one in found if one.node != here for seat in _seats(one))]


def _seats(one: NodeGpus) -> list[Seat]:
    return [Seat(str(place), one.node, one.on_node, one.cpus) for place in one.gpus]
