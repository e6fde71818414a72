"""What a bound on stops (``guard.max_stretch``) or on waiting (``overdue``) costs, in cells of the map of regimes.

    python -m benchmarks.stretch --bounds 20,30,50 --seeds 3
    python -m benchmarks.stretch --bounds 30 --seeds 6 --cells 10min
    python -m benchmarks.stretch --of overdue --bounds 3,5,10 --seeds 3

Each bound against none, of cells of 12 GPUs; for stops, of those in which jobs can be moved. A run with other stops
goes another way altogether: single cells differ by several per cent either way, so that only the mean over many says
something.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click

from benchmarks.regimes.cells import Cell, chosen
from benchmarks.regimes.draw import draw
from benchmarks.regimes.play import figures
from slurm_hadar.policies import registry
from slurm_hadar.simulator.options import unlimited
from slurm_hadar.simulator.run import simulate

KEYS = ("avg_jct_s", "p95_jct_s", "ttd_s", "worst_stretch")


@click.command(help=__doc__)
@click.option("--of", "kind", type=click.Choice(("max_stretch", "overdue")), default="max_stretch", show_default=True)
@click.option("--bounds", default="30", show_default=True, metavar="N,...", help="Values of it.")
@click.option("--seeds", default=1, show_default=True, type=click.IntRange(min=1))
@click.option("--cells", "pattern", default="", metavar="REGEX", help="Only cells whose name it is found in.")
@click.option("--policy", default="hadar", show_default=True)
def main(kind: str, bounds: str, seeds: int, pattern: str, policy: str) -> None:
    wanted = [float(b) for b in bounds.split(",")]
    stops = kind == "max_stretch"
    cells = [c for c in chosen(quick=True) if not (stops and c["movable"] == "none") and re.search(pattern, c.name)]
    found: dict[float, list[dict[str, float]]] = {bound: [] for bound in wanted}
    for seed in range(seeds):
        for cell in cells:
            free = _figures(cell, seed, policy, kind, 0.0)
            for bound in wanted:
                bounded = _figures(cell, seed, policy, kind, bound)
                ratios = {key: bounded[key] / free[key] for key in KEYS}
                found[bound].append(ratios)
                click.echo(f"{cell.name} seed {seed} bound {bound:g}: {_row(ratios)}")
    for bound, runs in found.items():
        means = {key: math.exp(statistics.fmean(math.log(r[key]) for r in runs)) for key in KEYS}
        click.echo(f"bound {bound:g}, {len(runs)} runs: {_row(means)}; avg_jct_s +- {_error(runs):.4f}")


def _figures(cell: Cell, seed: int, policy: str, kind: str, bound: float) -> dict[str, Any]:
    scene, guard, params = draw(cell, seed), unlimited(), dict[str, float]()
    if kind == "overdue":
        params[kind] = bound
    else:
        guard = guard.model_copy(update={kind: bound})
    options = replace(scene.options_of(policy), guard=guard)
    return figures(simulate(scene.trace, registry.get(policy, **params), options), scene.alone_s)


def _row(ratios: dict[str, float]) -> str:
    return ", ".join(f"{key} {ratio:.4f}" for key, ratio in ratios.items())


def _error(runs: Sequence[dict[str, float]]) -> float:
    """Standard error of the mean logarithm of the ratio."""
    logs = [math.log(r["avg_jct_s"]) for r in runs]
    return statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.nan


if __name__ == "__main__":
    main()
