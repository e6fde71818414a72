"""The proved bound of strict A-SRPT, on random instances that make it as hard as the proof allows.

With perfect predictions and no waiting for good places, the sum of completion times is at most ``1 + rho * G / (G - g +
1) + rho`` times the optimum, ``rho`` being the largest ratio of a job's slowest to its best time per iteration, ``G``
the GPUs and ``g`` the largest gang; with predictions that are up to ``over`` times too long and up to ``under`` times
too short, ``over * (1 + under * rho * G / (G - g + 1)) + rho`` times (docs/policies.md has the proof).

The optimum is not known; what is compared with is a lower bound of it, so that a violation would be one indeed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from slurm_hadar.model import Form, Job, JobState, Node, Placement, Snapshot, Speed
from slurm_hadar.policies.asrpt.policy import Asrpt
from slurm_hadar.policies.asrpt.virtual_machine import Arrival, VirtualMachine

__all__ = ["Instance", "Outcome", "play", "random_instance"]

_TYPE = "v100"
_STEPS_PER_S = 1.0


@dataclass(frozen=True)
class Instance:
    """Nodes of one GPU each, so that every gang is spread and runs at its slowest.

    ``jobs``: (arrival, workers, seconds on the best place, predicted seconds, slowdown when spread).
    """

    gpus: int
    jobs: tuple[tuple[float, int, float, float, float], ...]


@dataclass(frozen=True)
class Outcome:
    """Sum of completion times, the lower bound of any schedule's, and the proved factor between the two."""

    cost: float
    least: float
    factor: float

    @property
    def used(self) -> float:
        """Which part of the proved factor was needed; above 1 would be a violation."""
        return self.cost / self.least / self.factor


def random_instance(seed: int) -> Instance:
    """2 to 8 jobs on 2 to 12 GPUs; half of the instances with predictions that are off by up to 2 either way."""
    draw = random.Random(seed)
    gpus = draw.randint(2, 12)
    wrong = 2.0 if draw.random() < 0.5 else 1.0
    jobs = []
    for _ in range(draw.randint(2, 8)):
        seconds = draw.choice((1.0, draw.uniform(0.1, 2.0), draw.paretovariate(1.1)))
        jobs.append(
            (
                draw.choice((0.0, draw.uniform(0.0, 5.0))),
                draw.randint(1, gpus),
                seconds,
                seconds * wrong ** draw.uniform(-1.0, 1.0),
                draw.choice((1.0, draw.uniform(1.0, 4.0))),
            )
        )
    return Instance(gpus, tuple(jobs))


def play(instance: Instance) -> Outcome:
    """Let strict A-SRPT schedule the instance, from event to event."""
    ends = _Play(instance).run()
    _, _, best, predicted, slower = zip(*instance.jobs, strict=True)
    rho = max(slower[i] if instance.jobs[i][1] > 1 else 1.0 for i in range(len(best)))
    over = max(1.0, *(p / b for p, b in zip(predicted, best, strict=True)))
    under = max(b / p for p, b in zip(predicted, best, strict=True))
    widest = max(job[1] for job in instance.jobs)
    crowd = max(1.0, under) * rho * instance.gpus / (instance.gpus - widest + 1)
    return Outcome(sum(ends), _least(instance), over * (1.0 + crowd) + rho)


def _least(instance: Instance) -> float:
    """Preemptive SRPT of the true work on one machine as fast as all GPUs; and each job alone on its best place."""
    machine = VirtualMachine(0.0)
    arrivals = [Arrival(r, str(i), s * w / instance.gpus) for i, (r, w, s, _, _) in enumerate(instance.jobs)]
    machine.advance(arrivals, 0.0 if not arrivals else max(a.time for a in arrivals) + sum(a.size_s for a in arrivals))
    return max(sum(machine.ends().values()), sum(r + s for r, _, s, _, _ in instance.jobs))


class _Play:
    def __init__(self, instance: Instance) -> None:
        self._policy = Asrpt(strict=True, theta=0.0)
        self._instance = instance
        self._nodes = tuple(Node(f"n{i:02d}", {_TYPE: 1}) for i in range(instance.gpus))
        self._jobs = {str(i): self._job(i) for i in range(len(instance.jobs))}
        self._end: dict[str, float] = {}
        self._memory: dict[str, Any] = {}

    def _job(self, number: int) -> Job:
        arrival, workers, _, predicted, slower = self._instance.jobs[number]
        speed = {_TYPE: Speed(_STEPS_PER_S, 1.0 / slower)}
        form = Form(workers, max_nodes=workers, uniform=False)
        return Job(str(number), form, arrival=arrival, predicted_steps=predicted * _STEPS_PER_S, speeds=speed)

    def run(self) -> list[float]:
        """When each job ends."""
        now = min(job.arrival for job in self._jobs.values())
        while len(self._end) < len(self._jobs) or any(end > now for end in self._end.values()):
            self._round(now)
            now = self._next(now)
        return list(self._end.values())

    def _round(self, now: float) -> None:
        """What the controller does at an event: whoever is done is gone, and whom the plan names starts."""
        there = [j for j in self._jobs.values() if j.arrival <= now and self._end.get(j.job_id, now + 1) > now]
        plan = self._policy.allocate(Snapshot(now, self._nodes, tuple(there), memory=self._memory))
        self._memory = dict(plan.memory)
        for job_id, placement in plan.placements.items():
            if job_id not in self._end:
                self._start(job_id, placement, now)

    def _start(self, job_id: str, placement: Placement, now: float) -> None:
        job = self._jobs[job_id]
        _, _, seconds, _, slower = self._instance.jobs[int(job_id)]
        self._end[job_id] = now + seconds * (slower if len(placement.nodes) > 1 else 1.0)
        self._jobs[job_id] = replace(
            job, state=JobState.RUNNING, placement=placement, started=now, unmovable="is never stopped"
        )

    def _next(self, now: float) -> float:
        """The next arrival, end or virtual end."""
        machine = VirtualMachine.read(self._memory["virtual"], now)
        times = [job.arrival for job in self._jobs.values()] + list(self._end.values()) + list(machine.ends().values())
        return min((t for t in times if t > now), default=now)
