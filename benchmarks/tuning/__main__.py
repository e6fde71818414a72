"""How near the widths of tuning's trials come to the best schedule, and what unlike GPUs are worth.

    python -m benchmarks.tuning [--groups N] [--seed N]

First, random groups of up to six trials on up to four GPUs against the shortest schedule without resizes, found
by trying everything. Then groups of 4 to 40 trials on GPUs of two types: ours against the paper's widths, which are
blind to types, and against one GPU for each trial.
"""

from __future__ import annotations

import math
import random
import statistics
import time
from fractions import Fraction

import click

from benchmarks.tuning.optimum import optimum_s
from slurm_hadar.tuning.allocation.allocator import Form, TuningPolicy
from slurm_hadar.tuning.allocation.pool import GpuType, Limits
from slurm_hadar.tuning.allocation.widths import water_level
from slurm_hadar.tuning.simulation.run import simulate
from slurm_hadar.tuning.trials import Trial

RESIZE_S = 5.0


@click.command(help=__doc__)
@click.option("--groups", default=100, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True)
def main(groups: int, seed: int) -> None:
    _against_optimum(groups, random.Random(f"optimum {seed}"))
    _unlike(groups, random.Random(f"unlike {seed}"))
    _decision(random.Random(f"decision {seed}"))


def _group(dice: random.Random, count: int) -> list[Trial]:
    """Budgets that spread as much as those of the paper's middle case do at most (a factor of ten), overheads alike."""
    alpha, beta = 1 + 0.5 * dice.random(), 1 + 0.15 * dice.random()
    return [Trial(str(n), 100 * math.exp(0.7 * dice.gauss(0, 1)), alpha, beta) for n in range(count)]


def _against_optimum(groups: int, dice: random.Random) -> None:
    ratios: dict[str, list[float]] = {"static": [], "static, the paper's": [], "fluid, no cost of resizes": []}
    for _ in range(groups):
        trials = _group(dice, dice.randint(2, 6))
        pool = (GpuType("g", dice.randint(2, 4)),)
        limits = Limits(2, 4)
        made = {
            "static": simulate([trials], pool, TuningPolicy.STATIC, limits).makespan_s,
            "static, the paper's": simulate([trials], pool, TuningPolicy.STATIC, limits, form=Form.PAPER).makespan_s,
            "fluid, no cost of resizes": simulate([trials], pool, TuningPolicy.FLUID, limits).makespan_s,
        }
        best_s = optimum_s(trials, pool, limits, min(made["static"], made["static, the paper's"]))
        for name, seconds in made.items():
            ratios[name].append(seconds / best_s)
    print(f"against the best schedule without resizes, {groups} groups of 2 to 6 trials on 2 to 4 GPUs:")
    for name, found in ratios.items():
        print(f"  {name}: mean {statistics.fmean(found):.3f}, worst {max(found):.3f}")


def _unlike(groups: int, dice: random.Random) -> None:
    gains: dict[str, list[float]] = {}
    for _ in range(groups):
        trials = _group(dice, dice.randint(4, 40))
        pool = (GpuType("fast", 4), GpuType("slow", 4, dice.uniform(0.2, 0.7)))
        limits = Limits(2, 4)
        ours_s = {
            p: simulate([trials], pool, p, limits, RESIZE_S).makespan_s
            for p in (TuningPolicy.STATIC, TuningPolicy.FLUID)
        }
        for policy, seconds in ours_s.items():
            blind_s = simulate([trials], pool, policy, limits, RESIZE_S, Form.PAPER).makespan_s
            gains.setdefault(f"{policy} against the type-blind {policy}", []).append(blind_s / seconds)
            each_s = simulate([trials], pool, TuningPolicy.ONE_EACH, limits).makespan_s
            gains.setdefault(f"{policy} against one GPU each", []).append(each_s / seconds)
    print(f"4 fast and 4 slower GPUs, {groups} groups of 4 to 40 trials, a resize takes {RESIZE_S:g} s:")
    for name, found in gains.items():
        print(f"  {name}: {statistics.geometric_mean(found):.2f} x, from {min(found):.2f} to {max(found):.2f}")


def _decision(dice: random.Random) -> None:
    trials = _group(dice, 1000)
    pool = (GpuType("fast", 32), GpuType("slow", 32, 0.3))
    took_ms = float("inf")
    for _ in range(5):  # the quickest: what others do on the machine is none of it
        began = time.process_time()
        level = water_level(trials, pool, Limits(2, 4))
        took_ms = min(took_ms, (time.process_time() - began) * 1e3)
    held = sum((grant.width for grant in level.grants if grant is not None), Fraction(0))
    print(f"1,000 trials on 64 GPUs: {took_ms:.1f} ms of CPU, {float(held):g} GPUs given")


if __name__ == "__main__":
    main()
