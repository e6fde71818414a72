"""Small traces with round figures, and a policy that does what it is told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from slurm_hadar.model import Placement, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import Policy
from slurm_hadar.simulator.traces import Trace, TraceJob


class Scripted(Policy):
    """In round i (from 0) each job is where ``rounds[i]`` says; after the last entry as in the last."""

    name = "scripted"
    forks = True

    def __init__(self, *rounds: Mapping[str, Mapping[str, Mapping[str, int]]]) -> None:
        self._rounds = rounds
        self.seen: list[Snapshot] = []

    def allocate(self, snapshot: Snapshot) -> Plan:
        self.seen.append(snapshot)
        wanted = self._rounds[min(len(self.seen), len(self._rounds)) - 1]
        here = {j.job_id for j in snapshot.steerable_jobs}
        placed = {j: Placement.of(p) for j, p in wanted.items() if j in here}
        waits = {j: Wait(Tier.POLICY, "told to wait") for j in here - placed.keys()}
        return Plan(self.name, placed, waits)


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture
def job() -> Callable[..., TraceJob]:
    """A trace's job: ``job("a", steps=3600, v100=10)`` runs 10 steps/s on a v100."""

    def make(job_id: str, arrival_s: float = 0.0, workers: int = 1, steps: float = 3600.0, **rest: Any) -> TraceJob:
        rates = {t: float(rest.pop(t)) for t in ("v100", "p100", "k80") if t in rest}
        return TraceJob(job_id, arrival_s, rest.pop("model", ""), None, workers, steps, steps_per_s=rates, **rest)

    return make


@pytest.fixture
def trace() -> Callable[..., Trace]:
    return lambda *jobs: Trace("test", "csv", jobs)
