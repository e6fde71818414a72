"""Nodes that Slurm keeps for waiting jobs that are left to it.

Its backfill scheduler plans when and where each waiting job will start, and starts a job behind it there only if that
ends before. It keeps whole nodes, even of which one GPU is wanted (seen in 22.05). What is placed there in vain costs a
round, and others their turn.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from slurm_hadar.controller.steering.lessons import keeps_back
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import SlurmJob

__all__ = ["Promises"]

_OUTDATED_S = 120.0  # a plan whose start has passed is made anew every bf_interval, 30 s if nothing is set


@dataclass
class Promises:
    """What the backfill scheduler has planned at ``now`` for ``jobs``, those that are left to Slurm."""

    jobs: Iterable[SlurmJob]
    now: float
    _known: dict[tuple[str, int, float], Mapping[str, SlurmJob]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._planned = sorted((job for job in self.jobs if self._is_planned(job)), key=_rank)
        self._ranks = [_rank(job) for job in self._planned]

    def __bool__(self) -> bool:
        return bool(self._planned)

    def closed(self, job: SlurmJob) -> Mapping[str, SlurmJob]:
        """The nodes where this job would not be started now, each with the job that it is kept for: one ahead of it in
        its partition, which is to start before this one's time limit ends. (Which of two partitions goes first is not
        known here.) Where the job runs it may stay."""
        limit_s = math.inf if job.time_limit_s is None else job.time_limit_s
        ahead = bisect_left(self._ranks, _rank(job))
        key = (job.partition, ahead, limit_s)
        if key not in self._known:
            partitions = set(job.partition.split(","))
            self._known[key] = {
                node: other
                for other in reversed(self._planned[:ahead])
                if (other.start or 0.0) - self.now < limit_s and not partitions.isdisjoint(other.partition.split(","))
                for node in other.sched_nodes
            }
        return {n: other for n, other in self._known[key].items() if n not in job.nodes} if self._known[key] else {}

    def _is_planned(self, job: SlurmJob) -> bool:
        waits = job.state is JobState.PENDING and not job.held and not keeps_back(job.reason)
        return waits and bool(job.sched_nodes) and job.start is not None and job.start > self.now - _OUTDATED_S


def _rank(job: SlurmJob) -> tuple[int, float, int]:
    """Slurm's order, least first: by priority, which is 1 for all with priority/basic since 24.11; then by submission,
    then by number."""
    return -job.priority, job.submit or 0.0, int(job.array_id or job.raw_id)
