"""A policy that does what a test says, and what a job's agent would say."""

from __future__ import annotations

import time
from typing import Any

from slurm_hadar.messages import Report
from slurm_hadar.model import Placement, Plan, Tier, Wait
from slurm_hadar.policies.base import Policy

__all__ = ["MODEL", "Scripted", "report"]

MODEL = "hadar:model=resnet18,batch=64,steps=20000"


class Scripted(Policy):
    """Places jobs where it is told; everything else waits."""

    name = "scripted"

    def __init__(self, **where: dict[str, Any]) -> None:
        self.where = {job.removeprefix("j"): Placement.of(p) for job, p in where.items()}

    def allocate(self, snapshot: Any) -> Any:
        jobs = {j.job_id for j in snapshot.steerable_jobs}
        placed = {j: p for j, p in self.where.items() if j in jobs}
        waits = {j: Wait(Tier.POLICY, "told to wait") for j in jobs - set(placed)}
        return Plan(self.name, placed, waits)


def report(bench: Any, job: str, kind: str = "report", restart: int = 0, **fields: Any) -> None:
    """Let the job's agent say something."""
    seq = time.time_ns() // 1000
    bench.slurm.vouch(job)
    bench.book.ingest(Report(kind, job, restart, seq, "a" * 64, time.time(), "v100-1", **fields))


def eligible_in(bench: Any, job: str) -> float:
    return bench.slurm.jobs[job].eligible - time.time()
