"""The words of the project as frozen dataclasses: what a cluster and its jobs are at one instant, and what is planned.

This room imports nothing of ours. A :class:`Snapshot` is the only input of a policy and a :class:`Plan` its only
output, so the simulator, the live controller and the tests exchange exactly these objects.

Units: seconds, bytes, steps; times are UTC epoch seconds.
"""

from __future__ import annotations

from slurm_hadar.model.gpus import EMPTY, Basis, GpuType, Node, Partition, Placement, Speed, Tenant, in_steps
from slurm_hadar.model.job import (
    LEAST_DUTY,
    MOST_RAISED,
    MOST_SLOW_DOWN,
    NO_NEEDS,
    Draw,
    Fork,
    Form,
    Job,
    JobState,
    Mix,
    Needs,
    Quota,
    outruns,
)
from slurm_hadar.model.round import Company, Kept, Pairing, Plan, Snapshot, Tier, Wait

__all__ = [
    "Basis", "Company", "Draw", "EMPTY", "Fork", "Form", "GpuType", "Job", "JobState", "Kept", "LEAST_DUTY",
    "MOST_RAISED", "MOST_SLOW_DOWN", "Mix", "NO_NEEDS", "Needs", "Node", "Pairing", "Partition", "Placement", "Plan",
    "Quota", "Snapshot", "Speed", "Tenant", "Tier", "Wait", "in_steps", "outruns",
]  # fmt: skip
