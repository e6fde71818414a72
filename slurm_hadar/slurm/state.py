"""What Slurm said, as plain records: no interpretation, no policy, no memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurm_hadar.model import JobState, Partition

__all__ = ["ClusterState", "Daemon", "GpuRequest", "SlurmJob", "SlurmNode", "Write", "WriteResult"]


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs a job asks for: ``per`` node, job or task; ``types`` maps type to count, with "" for untyped GPUs."""

    per: str = "node"
    types: tuple[tuple[str, int], ...] = ()

    @property
    def count(self) -> int:
        return sum(n for _, n in self.types)

    @property
    def typed(self) -> bool:
        return any(name for name, _ in self.types)


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One record of the queue. ``job_id`` is ``123``, ``123_4`` for an array task, ``123+1`` for a component of a
    heterogeneous job; it is what scontrol is told. Times are epoch seconds, None where Slurm has none; ``end`` of
    a job that runs is when its time limit ends it."""

    job_id: str
    raw_id: int
    state: JobState
    state_text: str
    reason: str
    user: str
    account: str
    qos: str
    partition: str
    nodes: tuple[str, ...]
    req_nodes: tuple[str, ...]
    features: str
    gpus: tuple[GpuRequest, ...]
    num_nodes: int
    max_nodes: int
    num_tasks: int
    num_cpus: int
    time_limit_s: float | None
    submit: float | None
    eligible: float | None
    start: float | None
    end: float | None
    requeue: bool
    restarts: int
    batch: bool
    priority: int
    dependency: str
    array_id: str | None
    het_id: str | None
    work_dir: str = ""
    name: str = ""
    comment: str = ""

    @property
    def held(self) -> bool:
        return self.state is JobState.PENDING and self.priority == 0


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node. ``used`` counts GPUs held per type; ``available`` is False for drained, down and unresponsive nodes."""

    name: str
    gpus: tuple[tuple[str, int], ...] = ()
    used: tuple[tuple[str, int], ...] = ()
    state: str = "idle"
    available: bool = True
    reason: str = ""
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    cpus: int = 0
    cpus_used: int = 0


@dataclass(frozen=True)
class ClusterState:
    """Everything one pair of reads gives. ``read_s`` is how long the reads took."""

    time: float
    jobs: tuple[SlurmJob, ...] = ()
    nodes: tuple[SlurmNode, ...] = ()
    partitions: tuple[Partition, ...] = ()
    read_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Daemon:
    """One slurmctld as ``scontrol ping`` shows it: ``role`` is primary, backup or backupN."""

    role: str
    host: str
    up: bool


@dataclass(frozen=True, slots=True)
class Write:
    """One change to ask of Slurm: ``verb`` is update, requeue (of a job that is not over), restart (of one that is) or
    release.

    ``fields`` are scontrol's own names and values, in the order to be given; a write without values that differ
    between jobs may name many jobs.
    """

    verb: str
    job_ids: tuple[str, ...]
    fields: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        pairs = "".join(f" {k}={v}" for k, v in self.fields)
        return f"{self.verb} {','.join(self.job_ids)}{pairs}"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What Slurm answered to a write about one job; ``error`` is None if it did not refuse."""

    job_id: str
    write: Write
    error: str | None = field(default=None)
