"""The null policy: steers nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slurm_hadar.model import JobState, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import Policy

__all__ = ["NoPolicy"]


@dataclass(frozen=True)
class NoPolicy(Policy):
    """Leaves every decision to Slurm; the plan only mirrors what runs.

    For watching a cluster, and as the baseline that shows what the scheduler itself costs.
    """

    name: ClassVar[str] = "none"
    forks: ClassVar[bool] = True  # Slurm starts what it likes, copies too

    def allocate(self, snapshot: Snapshot) -> Plan:
        """A plan that abstains: running jobs as they are, all others left to Slurm."""
        placements, waits = {}, {}
        for job in snapshot.steerable_jobs:
            if job.state is JobState.RUNNING and job.placement:
                placements[job.job_id] = job.placement
            else:
                why = "left to Slurm" + (f" ({job.reason})" if job.reason else "")
                waits[job.job_id] = Wait(Tier.TRANSIENT, why)
        return Plan(self.name, placements, waits, abstains=True)
