"""A complete policy of one's own: docs/writing-policies.md explains it, tests/policies/test_example.py tests it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from slurm_hadar.model import Job, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies import Policy
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.plan_builder import PlanBuilder


@dataclass(frozen=True)
class WidestFirst(Policy):
    """Wide gangs before narrow ones, each on the fastest type that is free; whoever runs stays.

    Parameters
    ----------
    share: types slower than this share of the job's best type are refused (0 to 1).
    """

    name: ClassVar[str] = "widest_first"

    share: float = 0.0

    def __post_init__(self) -> None:
        self.require_at_least(share=0.0)

    def allocate(self, snapshot: Snapshot) -> Plan:
        """The plan for the coming round."""
        builder = PlanBuilder(Arena.of(snapshot))
        for job in builder.arena.movers:
            if job.running:
                builder.keep(job)
        waiting = [job for job in builder.arena.movers if not job.running]
        for job in sorted(waiting, key=lambda j: (-j.form.workers, j.arrival, j.job_id)):
            rates = builder.rates(job)
            fast = [t for t in rates if rates[t] >= self.share * max(rates.values())]
            # any() stops at the first type on which there was room
            if not any(builder.place(job, t) for t in sorted(fast, key=lambda t: (-rates[t], t))):
                builder.place_mixed(job)
        return builder.plan(self.name, _why)


def _why(job: Job) -> Wait:
    return Wait(Tier.POLICY, f"wider gangs and earlier jobs hold the GPUs that its {job.form.workers} workers need")
