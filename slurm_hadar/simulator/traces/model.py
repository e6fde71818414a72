"""What every trace format is read into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_hadar.model import Fork, JobState, Mix

__all__ = ["MOST_DRAWN", "Trace", "TraceJob"]

#: Jobs of a trace that is drawn; and its users.
MOST_DRAWN = 10_000_000


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace.

    ``steps`` are those of the whole job with ``workers`` workers: one step moves all of them on. ``sizes`` are the gang
    sizes of an elastic job, ascending, ``workers`` among them; empty = just ``workers``. ``deadline_s`` counts from
    arrival. ``nodes`` limits the number of nodes (fewest, most). ``restart_s`` is what a restart costs, None = what the
    simulation takes for its model; ``start_s`` is what its first start costs, None = what the simulation takes. A job
    that is not ``movable`` keeps its place once it runs. ``steps_per_s`` are the job's own rates per GPU type with
    ``workers`` workers on one node, instead of those of the throughput table; ``scaled`` those of an elastic job's
    other sizes, by gang size. ``fork`` makes it a forked job, with a copy per node. ``wanted`` is the GPU type the job
    ran on, where the trace tells what really happened, ``ran_s`` how long, and ``waited_s`` how long it had to wait.
    ``group`` names the series of like jobs of its user that it belongs to, where the trace does;
    ``graph`` says what its workers exchange, as ``graph=`` of a comment does (a file with its whole path). ``asked`` is
    the GPU type it asked for, ``cpus`` and ``memory_gb`` what it asked for in all; "" and 0 = not told. ``types`` and
    ``open_to`` are the GPU types and the nodes of the simulated cluster to which it is bound (None = any);
    ``partition`` and ``limit_s`` (its time limit) are as Slurm knew them. ``slow_down`` is how many times as long it
    may take beside another job on its GPU, 1 = it shares with nobody, None = what the simulation takes. ``duty`` is the
    share of its time, above 0 to 1, in which it needs its GPU, on every type. ``state`` is how it really ended: one
    that was cut short does not tell how long its like will be.
    """

    job_id: str
    arrival_s: float
    model: str
    batch: int | None
    workers: int
    steps: float
    sizes: tuple[int, ...] = ()
    user: str = ""
    account: str = ""
    name: str = ""
    weight: float = 1.0
    deadline_s: float | None = None
    mix: Mix = Mix.NEVER
    nodes: tuple[int, int] | None = None
    restart_s: float | None = None
    steps_per_s: Mapping[str, float] = field(default_factory=dict)
    fork: Fork | None = None
    wanted: str = ""
    ran_s: float | None = None
    waited_s: float | None = None
    group: str = ""
    asked: str = ""
    cpus: float = 0.0
    memory_gb: float = 0.0
    graph: str = ""
    types: frozenset[str] | None = None
    open_to: frozenset[str] | None = None
    partition: str = ""
    limit_s: float | None = None
    slow_down: float | None = None
    start_s: float | None = None
    movable: bool = True
    scaled: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    duty: float = 1.0
    state: JobState = JobState.DONE


@dataclass(frozen=True)
class Trace:
    """A trace: jobs in order of arrival. ``assumptions`` are what had to be assumed to read and simulate it, a line
    each."""

    name: str
    format: str
    jobs: tuple[TraceJob, ...]
    assumptions: tuple[str, ...] = ()
