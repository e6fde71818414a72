"""Which jobs the demo runs: three families, gangs of 1, 2 and 4, arriving over time, more than fit at once."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from slurm_hadar.throughput.table import ReferenceTable, reference

__all__ = ["FASTEST_STEPS_PER_S", "JOBS", "NODES", "DemoJob"]

NODES = "v100:1x4,p100:1x4,k80:1x4"
FASTEST_STEPS_PER_S = 10.0


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


FAMILIES = {
    "cnn": ("cnn.py", "resnet50", 64),
    "lm": ("charlm.py", "lm", 80),
    "rec": ("recommender.py", "recommendation", 2048),
}
GANGS, SHARES = (1, 2, 4), (0.6, 0.2, 0.2)
SHORTEST_S, LONGEST_S = 10.0, 30.0
MEAN_GAP_S = 0.8


def draw_jobs(count: int, seed: int) -> tuple[DemoJob, ...]:
    """A queue as clusters see it: most jobs small and short, a few large or long, in no order that favours anybody.

    Run times on a job's fastest GPU type are log-uniform, arrivals Poisson, and gangs mostly of one worker, as in the
    published generators of such traces; recommenders are single-GPU. All follows from ``seed``.
    """
    rng = random.Random(seed)
    table = reference()
    jobs, arrival_s, number = [], 0.0, dict.fromkeys(FAMILIES, 0)
    for _ in range(count):
        family = rng.choice(sorted(FAMILIES))
        script, model, batch = FAMILIES[family]
        workers = 1 if family == "rec" else rng.choices(GANGS, SHARES)[0]
        run_s = math.exp(rng.uniform(math.log(SHORTEST_S), math.log(LONGEST_S)))
        steps = max(20, 10 * round(run_s * _fastest(table, model, batch, workers) / 10))
        number[family] += 1
        jobs.append(DemoJob(f"{family}-{number[family]}", script, model, batch, workers, steps, arrival_s))
        arrival_s += rng.expovariate(1 / MEAN_GAP_S)
    return tuple(jobs)


def _fastest(table: ReferenceTable, model: str, batch: int, workers: int) -> float:
    """Emulated steps/s of a gang on its fastest type: as on the cluster, one GPU of it makes FASTEST_STEPS_PER_S."""
    single = {t: table.steps_per_s(model, batch, t) or 0.0 for t in table.gpu_types}
    gang = {t: table.steps_per_s(model, batch, t, workers) or 0.0 for t in table.gpu_types}
    scale = FASTEST_STEPS_PER_S / max(single.values())
    return scale * max(min(gang[t], single[t]) for t in table.gpu_types)


JOBS = draw_jobs(count=14, seed=0)
