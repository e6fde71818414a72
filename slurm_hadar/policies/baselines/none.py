"""The null policy: steers nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slurm_hadar.model import Plan, Snapshot
from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.toolkit.contained import as_it_is

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
        return as_it_is(snapshot, self.name)
