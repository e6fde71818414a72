"""How many deadlines are missed, and what keeping them costs, in regimes beyond the map.

    python -m benchmarks.deadlines
    python -m benchmarks.deadlines --regimes 3000-3039 --policies hadar,hadar:objective=deadline,srtf

Seven jobs in ten have a deadline: so many times after they came as they take in the fastest way there is, a start
included, drawn from 1.2 to 3, 5 or 16 by regime. Of regimes with 4 to 24 GPUs and a load from 0.7 on, or all at once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import repeat
from statistics import geometric_mean

import click

from benchmarks.regimes.beyond import draw, regime
from benchmarks.regimes.draw import Scene
from slurm_hadar.policies import registry
from slurm_hadar.simulator.compare import Contender, read_contenders
from slurm_hadar.simulator.run import simulate

_SHARE = 0.7  # of the jobs have a deadline
_TIGHTEST, _LOOSEST = 1.2, (3.0, 5.0, 16.0)  # times what a job takes alone
_GPUS, _LOAD = (4, 24), 0.7
_NOTICED_S = 60.0  # a deadline leaves at least so long for the job to be noticed


@click.command(help=__doc__)
@click.option("--regimes", "span", default="3000-3059", show_default=True, metavar="A-B")
@click.option("--policies", default="hadar,hadar:objective=deadline,srtf", show_default=True)
@click.option("--workers", default=1, show_default=True, type=click.IntRange(min=1), help="Processes.")
def main(span: str, policies: str, workers: int) -> None:
    low, high = map(int, span.split("-"))
    numbers, contenders = list(_fit(low, high)), read_contenders(policies)
    with ProcessPoolExecutor(workers) as pool:
        runs = [list(pool.map(_play, numbers, repeat(contender))) for contender in contenders]
    asked = sum(sum(job.deadline_s is not None for job in _with_deadlines(number).trace.jobs) for number in numbers)
    click.echo(f"{len(numbers)} regimes, {asked} deadlines\n")
    click.echo("| policy | missed | average JCT | 95 % JCT |\n| --- | --- | --- | --- |")
    for contender, own in zip(contenders, runs, strict=True):
        jct, p95 = (
            geometric_mean(mine[i] / first[i] for mine, first in zip(own, runs[0], strict=True)) for i in (1, 2)
        )
        click.echo(f"| `{contender.label}` | {sum(run[0] for run in own):.0f} | {jct:.3f} | {p95:.3f} |")


def _fit(low: int, high: int) -> Iterator[int]:
    for number in range(low, high + 1):
        of = regime(number)
        if _GPUS[0] <= of.gpus <= _GPUS[1] and (of.load is None or of.load >= _LOAD):
            yield number


def _with_deadlines(number: int) -> Scene:
    scene, dice = draw(number), random.Random(f"beyond {number}, deadlines")
    loosest = dice.choice(_LOOSEST)
    jobs = []
    for job in scene.trace.jobs:
        alone_s = scene.alone_s[job.job_id] + (job.start_s or 0.0) + _NOTICED_S
        due_s = alone_s * dice.uniform(_TIGHTEST, loosest) if dice.random() < _SHARE else None
        jobs.append(replace(job, deadline_s=due_s))
    return replace(scene, trace=replace(scene.trace, jobs=tuple(jobs)))


def _play(number: int, contender: Contender) -> tuple[float, float, float]:
    """(deadlines missed, average and 95th percentile of JCT)."""
    scene, policy = _with_deadlines(number), registry.get(contender.name, **contender.params)
    found = simulate(scene.trace, policy, scene.options_of(contender.name)).summary()
    return found["deadlines_missed"], found["avg_jct_s"], found["p95_jct_s"]


if __name__ == "__main__":
    main()
