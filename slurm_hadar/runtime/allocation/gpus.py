"""The GPUs of the job that this runs in, node by node, as Slurm has them now."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from slurm_hadar.errors import AllocationLost, ConfigError
from slurm_hadar.runtime.tasks import nodelist

__all__ = ["NodeGpus", "gpus_in", "gpus_of_job", "in_allocation"]

_CALL_S = 30.0
_DETAIL = re.compile(r"^\s+Nodes=(\S+) CPU_IDs=(\S+) .*?GRES=(\S*)", re.MULTILINE)
_GRES = re.compile(r"gpu(?::([^:(,]+))?:(\d+)")
_STATE = re.compile(r"\bJobState=(\S+)")
_RESTARTS = re.compile(r"\bRestarts=(\d+)")
_OVER = frozenset((
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PENDING", "PREEMPTED", "RECONFIG_FAIL", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "REVOKED", "SPECIAL_EXIT",
    "TIMEOUT",
))  # fmt: skip
#: By job: its restart count when this process first asked, which need not be in a step's environment.
_runs: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """GPUs of one type that the job has on one node: by their place among all that it has there, ``on_node`` of them.
    ``cpus``: of the job on that node."""

    node: str
    gpu_type: str
    gpus: tuple[int, ...]
    cpus: int = 1
    on_node: int = 0


def in_allocation(environ: Mapping[str, str]) -> bool:
    """Whether job steps can be started: this runs in a job of Slurm's, and there is an srun."""
    return bool(environ.get("SLURM_JOB_ID")) and shutil.which("srun") is not None


def gpus_of_job(environ: Mapping[str, str]) -> list[NodeGpus]:
    """As ``scontrol show job -d`` has them. Raises ConfigError where it does not say, AllocationLost where the job is
    not this process's any more: over, or started anew elsewhere."""
    job = environ["SLURM_JOB_ID"]
    try:
        done = subprocess.run(
            ["scontrol", "show", "job", "-d", job], capture_output=True, text=True, timeout=_CALL_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(f"scontrol does not say what job {job} has: {error}") from None
    restarts = _RESTARTS.search(done.stdout)
    check_ours(done.stdout, job, _runs.setdefault(job, int(restarts[1]) if restarts is not None else 0))
    return gpus_in(done.stdout)


def check_ours(text: str, job: str, run: int) -> None:
    """Raises AllocationLost where what ``scontrol show job`` prints is not of the job's ``run`` (its restart count). A
    process whose slurmd has died outlives its run: Slurm starts the job elsewhere and cannot end it."""
    state, restarts = _STATE.search(text), _RESTARTS.search(text)
    if restarts is not None and int(restarts[1]) > run:
        raise AllocationLost(f"Slurm has started job {job} anew: this is its run {run}, which is over")
    if state is not None and state[1] in _OVER:
        raise AllocationLost(f"job {job} is {state[1]}: what this has run in is over")


def gpus_in(text: str) -> list[NodeGpus]:
    """The GPUs in what ``scontrol show job -d`` prints."""
    found = []
    for nodes, cpu_ids, gres in _DETAIL.findall(text):
        for node in nodelist.expand(nodes):
            first, kinds = 0, _GRES.findall(re.sub(r"\(.*?\)", "", gres))
            on_node = sum(int(count) for _, count in kinds)
            for kind, count in kinds:
                places = tuple(range(first, first + int(count)))
                found.append(NodeGpus(node, kind or "gpu", places, _cpus(cpu_ids), on_node))
                first += int(count)
    return found


def _cpus(ids: str) -> int:
    total = 0
    for part in ids.split(","):
        low, _, high = part.partition("-")
        if low.isdecimal():
            total += int(high or low) - int(low) + 1
    return max(1, total)
