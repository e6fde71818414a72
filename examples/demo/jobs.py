"""Which jobs the demo runs, and with which settings.

They are drawn once, from a published distribution, more than fit at once. Gangs and lengths are those of the workload
generator of Gavel's evaluation (Narayanan et al., OSDI 2020, section 7.1; ``utils.generate_job`` of its repository):
70, 10, 15 and 5 % of the jobs have 1, 2, 4 and 8 workers, as in Microsoft's Philly cluster; 80 % take 10^U(1.5, 3)
minutes on a V100, the others 10^U(3, 4). Here a gang of eight has four, since no node has more GPUs, and a minute takes
40 ms, within :data:`SHORTEST_S` and :data:`LONGEST_S`.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

__all__ = ["FASTEST_STEPS_PER_S", "LEASE_S", "NODES", "SEED", "SETTINGS", "DemoJob", "draw_jobs"]

NODES = "v100:1x4,p100:1x4,k80:1x4"
FASTEST_STEPS_PER_S = 10.0
SEED = 0
COUNT = 14
MINUTE_S = 0.04
SHORTEST_S, LONGEST_S = 5.0, 40.0
BETWEEN_S = 2.0  # submissions, on average
LEASE_S = 6  # new jobs wait for a round, as docs/admin.md advises
SETTINGS = (
    "controller.round_s=8",
    "controller.event_round_s=2",
    "guard.min_run_s=20",
    "jobs.restart_cost_s=6",
    "jobs.ack_timeout_s=15",
    "jobs.start_timeout_s=4",
)
FAMILIES = {
    "cnn": ("cnn.py", "resnet18", 128),
    "lm": ("charlm.py", "lm", 80),
    "rec": ("recommender.py", "recommendation", 2048),
}


@dataclass(frozen=True)
class DemoJob:
    """``script`` of examples/ for ``steps`` steps on ``workers`` GPUs, submitted ``arrival_s`` after the start.

    ``model`` and ``batch`` name the row of the throughput table whose speeds the job feels on this cluster.
    """

    name: str
    script: str
    model: str
    batch: int
    workers: int
    steps: int
    arrival_s: float

    @property
    def comment(self) -> str:
        return f"hadar:model={self.model},batch={self.batch},steps={self.steps},nodes=1"


def draw_jobs(seed: int) -> tuple[DemoJob, ...]:
    """The jobs of a seed, in the order of their submission."""
    dice = random.Random(seed)
    jobs: list[DemoJob] = []
    arrival_s = 0.0
    for _ in range(COUNT):
        family = dice.choice(tuple(FAMILIES))
        workers = dice.choices((1, 2, 4), (70, 10, 20))[0]
        minutes = 10 ** (dice.uniform(1.5, 3.0) if dice.random() < 0.8 else dice.uniform(3.0, 4.0))
        length_s = min(LONGEST_S, max(SHORTEST_S, minutes * MINUTE_S))
        letter = "abcdefghijklmnopqrstuvwxyz"[sum(job.name.startswith(family) for job in jobs)]
        steps = round(length_s * FASTEST_STEPS_PER_S)
        jobs.append(DemoJob(f"{family}-{letter}", *FAMILIES[family], workers, steps, round(arrival_s, 1)))
        arrival_s += dice.expovariate(1 / BETWEEN_S)
    return tuple(jobs)
