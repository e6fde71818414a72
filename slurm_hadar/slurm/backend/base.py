"""How Slurm is read and told: what each backend can do, by commands, by pyslurm, or in memory for tests."""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence

from slurm_hadar.slurm.state import ClusterState, Daemon, SlurmJob, Write, WriteResult

__all__ = ["Backend"]


class Backend(abc.ABC):
    """How to read a cluster and change its jobs. Every method raises SlurmUnavailable when there is no answer."""

    name: str = "backend"

    @abc.abstractmethod
    def version(self) -> str:
        """The Slurm version that answers, such as ``22.05.8``."""

    @abc.abstractmethod
    def cluster_name(self) -> str:
        """ClusterName of the Slurm configuration."""

    def identity(self) -> str:
        """Tells this cluster from others, which may have the same name."""
        return self.cluster_name()

    @abc.abstractmethod
    def read(self) -> ClusterState:
        """All jobs, nodes and partitions, and what Slurm would refuse, in few reads. Raises SlurmParseError for an
        answer cut short."""

    @abc.abstractmethod
    def topology(self) -> str:
        """What ``scontrol show topology`` says; empty where the site has told Slurm of no switches."""

    def daemons(self) -> tuple[Daemon, ...]:
        """Every slurmctld, in the order in which they act: the first that is up does. Empty where nobody can tell."""
        return ()

    @abc.abstractmethod
    def each_job(self) -> Iterator[SlurmJob]:
        """All jobs, of one read that is over when this returns, one after the other: who needs few of a long queue does
        not pay for the memory of all."""

    def read_jobs(self) -> tuple[SlurmJob, ...]:
        """All jobs of :meth:`each_job`."""
        return tuple(self.each_job())

    @abc.abstractmethod
    def next_job_id(self) -> int | None:
        """The number of the job that is submitted next; None where nobody can tell. A small request."""

    @abc.abstractmethod
    def comments_since(self, first: int, end: int) -> tuple[str, ...]:
        """How the comments begin, to the first blank, of the jobs numbered from ``first`` to below ``end`` that wait or
        run, without the tasks of older arrays."""

    def gpus_in_use(self) -> dict[str, int]:
        """How many GPUs are held on each node, whole or in part. A request that does not grow with the queue. Empty
        where nobody can tell."""
        return {}

    @abc.abstractmethod
    def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        """Carry out all of ``writes``, in order, in one batch; one result per write and job.

        A refusal is a result with ``error``; it does not stop the others.
        """

    @abc.abstractmethod
    def signal(self, steps: Sequence[str], signal: str) -> None:
        """Send ``signal`` (such as USR2) to job steps, named as ``123.0``. A step that has ended is no error."""

    @abc.abstractmethod
    def cancel(self, job_ids: Sequence[str]) -> list[WriteResult]:
        """End jobs, or take them out of the queue; a result for each. One that is over is no error."""

    @abc.abstractmethod
    def clock_ahead_s(self) -> tuple[float, float] | None:
        """How far slurmctld's clock is ahead of this host's: at least and at most so many seconds. None: it does not
        tell. Raises SlurmError if it may not be asked."""

    def close(self) -> None:
        """Let go of helper processes."""
        return
