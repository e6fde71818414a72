"""Traces drawn over the workloads that Salus was measured with."""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib import resources

from slurm_hadar.fields import positive, rows
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.simulation.trace import NS, ShareJob

__all__ = ["GAP_S", "MEAN_S", "Workload", "draw_trace", "workloads"]

#: Mean time that a job takes alone: FIFO's makespan of 303.4 min for 100 jobs (Salus, table 1).
MEAN_S = 182.0
#: Mean time between arrivals: ours.
GAP_S = 25.0
# Persistent memory is published as a range only, and whose its ends are (Salus, section 2.1). In between: on a straight
# line over the peak, which is ours.
_LEAST_MB, _LEAST_NAME = 110.9, "googlenet_25"
_MOST_MB, _MOST_NAME = 822.2, "resnet152_75"
_MB = 10**6
# Gavel's job generator (Narayanan et al., OSDI 2020, scheduler/utils.py), after Microsoft's Philly trace: 10^U(1.5, 3)
# minutes for 4 of 5 jobs, else 10^U(3, 4); its mean is 1,006 minutes.
_SHORT, _LONG, _LONG_SHARE = (1.5, 3.0), (3.0, 4.0), 0.2
_GENERATOR_MEAN = 1006.0


@dataclass(frozen=True, slots=True)
class Workload:
    """A network with a batch size: what an iteration takes, and what it needs."""

    name: str
    iteration_ns: int
    demand: Demand


def workloads() -> tuple[Workload, ...]:
    """Those of workloads.csv."""
    text = (resources.files("slurm_hadar.sharing.simulation") / "workloads.csv").read_text(encoding="utf-8")
    table = [
        (row["name"], positive(row["peak_mb"], where, "peak_mb"), positive(row["iter_ms"], where, "iter_ms"))
        for where, row in rows(text.splitlines(), "workloads.csv", ("name", "peak_mb", "iter_ms"), ())
    ]
    peaks = {name: peak for name, peak, _ in table}
    slope = (_MOST_MB - _LEAST_MB) / (peaks[_MOST_NAME] - peaks[_LEAST_NAME])
    found = []
    for name, peak, iter_ms in table:
        persistent = round(_MB * max(_LEAST_MB, _LEAST_MB + slope * (peak - peaks[_LEAST_NAME])))
        found.append(Workload(name, round(iter_ms * NS / 1000), Demand(persistent, round(_MB * peak) - persistent)))
    return tuple(found)


def draw_trace(jobs: int, seed: int, gap_s: float = GAP_S) -> tuple[ShareJob, ...]:
    """``jobs`` jobs whose workloads are drawn evenly, with exponential gaps of mean ``gap_s`` between their arrivals.

    Salus' own trace is not published; it has 100 jobs, "after" a production trace. Lengths here are those of Gavel's
    generator, shortened to a mean of :data:`MEAN_S`: most jobs are short, and a fifth has four fifths of the work. Same
    seed, same trace.
    """
    rng = random.Random(seed)
    table = workloads()
    drawn, now_s = [], 0.0
    for number in range(jobs):
        low, high = _LONG if rng.random() < _LONG_SHARE else _SHORT
        length_s = 10 ** rng.uniform(low, high) * MEAN_S / _GENERATOR_MEAN
        workload = rng.choice(table)
        iterations = max(1, round(length_s * NS / workload.iteration_ns))
        name = f"{number}-{workload.name}"
        drawn.append(ShareJob(name, round(now_s * NS), iterations, workload.iteration_ns, workload.demand))
        now_s += rng.expovariate(1 / gap_s) if gap_s > 0 else 0.0
    return tuple(drawn)
