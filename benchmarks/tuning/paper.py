"""Fluid's micro-benchmarks (MLSys 2021, section 6.3), replayed in the simulator beside the gains that its figures show.

    python -m benchmarks.tuning.paper [--draws N] [--seed N]

The paper does not print its trials' lengths and overheads. Three figures of each workload fix what the simulator needs
to know of it: the gain of packing at 27 trials gives alpha and the limit of trials on a GPU, that of scaling at 3
trials on 8 GPUs gives beta, and the middle case of runtime variance the spread of lengths of the three cases (half and
twice as much for the small and the large one). They were fitted in two rounds: after the first, 44 of the 48 rows were
within 15 % of the figure; then spread and beta were fitted anew, by the rows of nine and of three trials. The rows that
they were fitted by are among those shown; all other rows are replays. Gains are total time with one GPU each
over that with ours, mean over draws; figures were measured in the paper's plots, to about 1 %.
"""

from __future__ import annotations

import math
import random
import statistics
from dataclasses import dataclass

import click

from slurm_hadar.tuning.allocation.allocator import TuningPolicy
from slurm_hadar.tuning.allocation.pool import GpuType, Limits
from slurm_hadar.tuning.simulation.run import simulate
from slurm_hadar.tuning.trials import Trial

RESIZE_S, LENGTH_S = 5.0, 300.0
SPREAD = (
    0.03  # of the logarithm of a grid's lengths: nine trials on eight GPUs gain by packing only where they are alike
)


@dataclass(frozen=True, slots=True)
class Workload:
    """``packed``: the most trials on a GPU. ``spread``: of the logarithm of lengths, in the middle case."""

    name: str
    alpha: float
    packed: int
    beta: float
    spread: float


@dataclass(frozen=True, slots=True)
class Row:
    """One bar of a figure: its gain, and what was run."""

    what: str
    figure: float
    trials: int
    gpus: int = 8
    packs: bool = True
    scales: bool = True
    spread: float = SPREAD
    alpha: float = 1.0  # times the workload's


CIFAR = Workload("CIFAR-10", 1.15, 2, 1.32, 0.55)
GAN = Workload("DCGAN", 1.033, 4, 1.37, 0.55)
WLM = Workload("WLM", 1.35, 2, 1.136, 0.6)
FIGURES: dict[Workload, list[Row]] = {
    CIFAR: [
        *(Row("packing", g, n, scales=False) for n, g in ((81, 1.67), (27, 1.74), (9, 1.67), (3, 1.0))),
        *(Row("scaling", g, n, packs=False) for n, g in ((3, 1.51), (5, 1.22), (7, 1.0))),
        *(Row("variance", g, 9, spread=0.55 * f) for f, g in ((0.5, 1.4), (1, 1.7), (2, 2.8))),
        *(Row("overhead", g, 27, scales=False, alpha=a) for a, g in ((1.5, 1.4), (2, 1.1), (4, 1.0), (10, 1.0))),
        *(Row("GPUs", g, 3, gpus=n, packs=False) for n, g in ((4, 1.2), (8, 1.5), (16, 1.5))),
    ],
    GAN: [
        *(Row("packing", g, n, scales=False) for n, g in ((81, 2.27), (27, 3.63), (9, 1.81), (3, 1.0))),
        *(Row("scaling", g, n, packs=False) for n, g in ((3, 1.46), (5, 1.14), (7, 1.0))),
        *(Row("overhead", g, 27, scales=False, alpha=a) for a, g in ((1.5, 3.0), (2, 2.2), (4, 1.5), (10, 1.0))),
        *(Row("GPUs", g, 3, gpus=n, packs=False) for n, g in ((4, 1.3), (8, 1.7), (16, 1.7))),
    ],
    WLM: [
        *(Row("packing", g, n, scales=False) for n, g in ((81, 1.41), (27, 1.48), (9, 1.43), (3, 1.0))),
        *(Row("scaling", g, n, packs=False) for n, g in ((3, 1.76), (5, 1.35), (7, 1.0))),
        *(Row("variance", g, 9, spread=0.6 * f) for f, g in ((0.5, 1.6), (1, 1.9), (2, 3.1))),
        *(Row("overhead", g, 27, scales=False, alpha=a) for a, g in ((1.5, 1.3), (2, 1.0), (4, 1.0), (10, 0.95))),
        *(Row("GPUs", g, 3, gpus=n, packs=False) for n, g in ((4, 1.5), (8, 1.75), (16, 1.9))),
    ],
}


@click.command(help=__doc__)
@click.option("--draws", default=30, show_default=True, type=click.IntRange(min=1))
@click.option("--seed", default=0, show_default=True)
def main(draws: int, seed: int) -> None:
    print("| workload | figure | case | figure's gain | ours | ours / figure |\n| --- | --- | --- | --- | --- | --- |")
    good = count = 0
    for workload, rows in FIGURES.items():
        for row in rows:
            gain = _gain(workload, row, draws, random.Random(f"{seed} {workload.name} {row}"))
            count, good = count + 1, good + (gain >= 0.85 * row.figure)
            print(
                f"| {workload.name} | {row.what} | {_case(row)} | {row.figure:.2f} | {gain:.2f} | "
                f"{gain / row.figure:.2f} |"
            )
    print(f"\n{good} of {count} rows within 15 % of the figure, or better")


def _case(row: Row) -> str:
    match row.what:
        case "variance":
            return f"{row.trials} trials, spread {row.spread:.2g}"
        case "overhead":
            return f"{row.alpha:g} times the overhead"
        case "GPUs":
            return f"{row.gpus} GPUs"
    return f"{row.trials} trials"


def _gain(workload: Workload, row: Row, draws: int, dice: random.Random) -> float:
    overhead = 1 + (workload.alpha - 1) * row.alpha if row.alpha > 1 else workload.alpha
    limits = Limits(workload.packed if row.packs else 1, 4 if row.scales else 1)
    pool = (GpuType("g", row.gpus),)
    gains = []
    for _ in range(draws):
        trials = [
            Trial(str(n), LENGTH_S * math.exp(row.spread * dice.gauss(0, 1)), overhead, workload.beta)
            for n in range(row.trials)
        ]
        each_s = simulate([trials], pool, TuningPolicy.ONE_EACH, limits).makespan_s
        gains.append(each_s / simulate([trials], pool, TuningPolicy.FLUID, limits, RESIZE_S).makespan_s)
    return statistics.fmean(gains)


if __name__ == "__main__":
    main()
