"""What is run: jobs, GPUs, speeds, and the settings that the live controller and the simulator share."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

from examples.demo import jobs as demo
from examples.demo.simulated import gang_speeds, trace_of
from slurm_hadar.config import load
from slurm_hadar.simulator.traces.model import Trace, TraceJob

__all__ = ["FASTEST_STEPS_PER_S", "NODES", "Scene", "drawn", "of_demo"]

NODES = "v100:2x4,p100:2x4,k80:2x4"
FASTEST_STEPS_PER_S = 40.0
# ratios of 1 : 0.86 : 0.49, 1 : 0.75 : 0.21 and 1 : 0.65 : 0.10 on V100, P100 and K80
FAMILIES = (("transformer", 16), ("lm", 80), ("resnet18", 128))
GANGS, GANG_WEIGHTS = (1, 2, 4), (0.6, 0.25, 0.15)

_CONFIG = """\
[controller]
mode = "act"
round_s = {round_s:g}
event_round_s = {event_round_s:g}

[guard]
min_run_s = {min_run_s:g}

[jobs]
ack_timeout_s = 15
start_timeout_s = 4
"""


@dataclass(frozen=True)
class Scene:
    """Jobs, each with its own speeds, on a private cluster of ``nodes``.

    ``lease_s`` is how long Slurm leaves a new job to the controller, 0 = not at all; ``load_s`` how long each job's
    program takes before its first step, in each of its runs; ``restart_s`` what policies suppose that a move costs.
    """

    trace: Trace
    nodes: str
    fastest_steps_per_s: float
    round_s: float
    event_round_s: float
    min_run_s: float
    lease_s: int = 0
    load_s: float = 2.0
    restart_s: float = 3.5

    @property
    def config_toml(self) -> str:
        """The controller's configuration file, which ``hadar simulate --config`` reads as well."""
        return _CONFIG.format(round_s=self.round_s, event_round_s=self.event_round_s, min_run_s=self.min_run_s)


def drawn(jobs: int, over_s: float, seed: int, run_s: tuple[float, float] = (30.0, 120.0)) -> Trace:
    """Jobs of three families that arrive at random times within ``over_s`` seconds and take ``run_s`` seconds, drawn
    uniformly, on V100s."""
    rng = random.Random(seed)
    arrivals = sorted(round(rng.uniform(0.5, over_s), 1) for _ in range(jobs))
    found = []
    for index, arrival_s in enumerate(arrivals):
        model, batch = FAMILIES[index % len(FAMILIES)]
        (gpus,) = rng.choices(GANGS, GANG_WEIGHTS)
        speeds = gang_speeds(NODES, FASTEST_STEPS_PER_S, model, batch, gpus)
        steps = round(rng.uniform(*run_s) * speeds["v100"])
        found.append(
            TraceJob(f"j{index:02d}", arrival_s, model, batch, gpus, float(steps), nodes=(1, 1), steps_per_s=speeds)
        )
    return Trace(f"{jobs} jobs, seed {seed}", "csv", tuple(found))


def of_demo() -> Scene:
    """The queue of ``make demo`` on its cluster and with its settings, with programs that start in the same time."""
    site = load(None, demo.SETTINGS)
    trace = trace_of(demo.draw_jobs(demo.SEED), 0.0)
    jobs = tuple(replace(job, start_s=None, restart_s=None) for job in trace.jobs)  # what these cost is measured
    return Scene(
        replace(trace, jobs=jobs), demo.NODES, demo.FASTEST_STEPS_PER_S, site.controller.round_s,
        site.controller.event_round_s, site.guard.min_run_s, demo.LEASE_S, load_s=5.0, restart_s=6.0,
    )  # fmt: skip
