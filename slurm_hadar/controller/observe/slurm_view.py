"""What Slurm said in one round, and what is worked out of it once for all who need it."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slurm_hadar.comment import JobComment, read
from slurm_hadar.controller.observe.company import companies
from slurm_hadar.controller.steering.nodes import NodeBook, node_facts
from slurm_hadar.slurm.state import ClusterState, SlurmJob

__all__ = ["SlurmView"]


@dataclass(frozen=True)
class SlurmView:
    """``facts`` of the nodes and ``comments`` of all jobs; ``active`` are the jobs that are not over."""

    state: ClusterState
    facts: NodeBook
    comments: Mapping[str, JobComment]
    active: Mapping[str, SlurmJob]

    @functools.cached_property
    def alone(self) -> Mapping[str, Mapping[str, int]]:
        """The nodes on which one job is, and how many GPUs of each type it has there."""
        there = Counter(node for job in self.active.values() for node in job.nodes)
        return {node.name: dict(node.used) for node in self.state.nodes if there[node.name] == 1}

    @functools.cached_property
    def companies(self) -> Mapping[str, Mapping[str, Any]]:
        """Who has which GPU together with whom."""
        return companies(self.active.values())

    @classmethod
    def of(cls, state: ClusterState, memory_gb: Mapping[str, int] | None = None) -> SlurmView:
        """``memory_gb``: what the configuration says of GPU types."""
        comments = {job.job_id: read(job.comment)[0] for job in state.jobs}
        active = {job.job_id: job for job in state.jobs if job.state.active}
        return cls(state, node_facts(state.nodes, memory_gb, state.bounds), comments, active)
