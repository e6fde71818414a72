"""Shortest remaining time first, preemptive, aware of what each GPU type makes of a job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from slurm_hadar.model import Job, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import UNKNOWN_RUNTIME_S, Policy
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.plan_builder import PlanBuilder
from slurm_hadar.units import span

__all__ = ["Srtf"]


@dataclass(frozen=True)
class Srtf(Policy):
    """Whoever would be done first goes first, on the free GPU type where that is.

    All pairs of a job and a GPU type are taken in the order of the remaining time; a job takes the first of its pairs
    for which there is room. Where it does not run now, the restart is added. On one type this is SRTF, which is optimal
    for the average completion time of single-GPU jobs that may be preempted for nothing.

    Parameters
    ----------
    service: order by remaining time times GPUs instead: shortest remaining service first (SRSF), the oracle that
        Tiresias (NSDI 2019) is compared with.
    unknown_runtime_s: the run time on the best type that is assumed of a job whose steps nobody states or predicts.

    Complexity: O(jobs * types * nodes log nodes).
    """

    name: ClassVar[str] = "srtf"

    service: bool = False
    unknown_runtime_s: float = UNKNOWN_RUNTIME_S

    def __post_init__(self) -> None:
        self.require_at_least(unknown_runtime_s=1.0)

    def allocate(self, snapshot: Snapshot) -> Plan:
        """The plan for the coming round."""
        builder = PlanBuilder(Arena.of(snapshot))
        least: dict[str, float] = {}
        choices: list[tuple[float, float, str, Job, str | None]] = []
        for job in builder.arena.movers:
            for seconds, gpu_type in self._choices(builder, job):
                least[job.job_id] = min(seconds, least.get(job.job_id, math.inf))
                cost = seconds * job.form.workers if self.service else seconds
                choices.append((cost, job.arrival, job.job_id, job, gpu_type))
        for _, _, job_id, job, gpu_type in sorted(choices, key=lambda c: (*c[:3], c[4] or "")):
            if job_id not in builder.placements:
                _ = builder.keep(job) if gpu_type is None else builder.place(job, gpu_type)
        for job in builder.arena.movers:
            if job.job_id not in builder.placements:
                builder.place_mixed(job)
        return builder.plan(self.name, lambda job: _why(job, least.get(job.job_id)))

    def _choices(self, builder: PlanBuilder, job: Job) -> list[tuple[float, str | None]]:
        """Seconds to the end on each type that the job could have, and where it is (None)."""
        rates = builder.rates(job)
        here = job.rate(job.placement) if job.running else 0.0
        steps = job.steps_to_go(max([*rates.values(), here], default=0.0), self.unknown_runtime_s)
        choices: list[tuple[float, str | None]] = [(steps / rate + job.restart_cost_s, t) for t, rate in rates.items()]
        if here > 0:
            choices.append((steps / here, None))
        return choices


def _why(job: Job, least_s: float | None) -> Wait:
    if least_s is None:
        gpus = f"{job.form.workers} GPUs of several types"
        return Wait(Tier.CAPACITY, f"needs {gpus}, which it gets when they are left over")
    return Wait(Tier.POLICY, f"has {span(least_s)} to go, and jobs with less hold the GPUs that suit it")
