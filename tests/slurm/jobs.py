"""Jobs on a private cluster, and how a backend sees them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_hadar.cluster import PrivateCluster
from slurm_hadar.model import JobState
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.state import GpuRequest, SlurmJob

Poll = Callable[..., Any]


def submit(cluster: PrivateCluster, *options: str, script: str = "sleep 600") -> str:
    """sbatch; returns the job's id."""
    common = ["--parsable", "-o", "/dev/null", "--requeue", "--open-mode=append"]
    return cluster.run(["sbatch", *common, *options, "--wrap", script], cwd=Path("/tmp")).stdout.strip()


def read(backend: Backend) -> dict[str, SlurmJob]:
    return {j.job_id: j for j in backend.read_jobs()}


def in_state(backend: Backend, job: str, state: JobState) -> Callable[[], SlurmJob | None]:
    """A condition for poll: the job's record once it is in that state."""

    def look() -> SlurmJob | None:
        found = read(backend).get(job)
        return found if found is not None and found.state is state else None

    return look


def held(cluster: PrivateCluster, job: str) -> dict[str, int]:
    """{node: GPUs} that scontrol shows for a running job."""
    text = cluster.run(["scontrol", "-d", "show", "job", job]).stdout
    return {n: int(c) for n, c in re.findall(r"Nodes=(\S+) CPU_IDs=\S+ Mem=\d+ GRES=gpu:\w+:(\d+)\(IDX", text)}


def untyped(count: int, per: str = "node") -> tuple[GpuRequest, ...]:
    return (GpuRequest(per, (("", count),)),)


def shape(gpus: int, *nodes: str, start: str = "now") -> tuple[tuple[str, str], ...]:
    """The fields that give a pending job ``gpus`` GPUs on each of these nodes."""
    n = str(len(nodes))
    return (("TresPerNode", f"gres:gpu:{gpus}"), ("NumNodes", f"{n}-{n}"), ("NumTasks", n), ("NumCPUs", n),
            ("NodeList", ",".join(nodes)), ("StartTime", start))  # fmt: skip
