"""``hadar tune``: hyper-parameter tuning that fills the GPUs it has."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_hadar.cli.common import console, facts_table, write_json
from slurm_hadar.cluster.emulation import default_factors
from slurm_hadar.errors import ConfigError
from slurm_hadar.throughput.table import reference
from slurm_hadar.tuning.groups import read_groups
from slurm_hadar.tuning.pool import GpuType, Limits, parse_pool
from slurm_hadar.tuning.simulation.run import Form, TuningPolicy, TuningResult
from slurm_hadar.tuning.simulation.run import simulate as run_simulation
from slurm_hadar.units import lasting

__all__ = ["tune"]


@click.group()
def tune() -> None:
    """Trials of hyper-parameters on the GPUs of one allocation."""


@tune.command()
@click.option("--trials", "source", required=True, type=click.Path(path_type=Path), help="CSV, a line for each trial.")
@click.option("--gpus", required=True, metavar="TYPE:N,...", help="What there is, such as v100:4,p100:4.")
@click.option("--policy", required=True, type=click.Choice([str(p) for p in TuningPolicy]), help="How wide trials are.")
@click.option("--form", default="level", show_default=True, type=click.Choice([str(f) for f in Form]),
              help="Of fluid and static: the water level, or the widths as the paper prints them.")  # fmt: skip
@click.option("--packed", default=2, show_default=True, type=click.IntRange(1, 64), help="The most trials on a GPU.")
@click.option("--widest", default=4, show_default=True, type=click.IntRange(1, 1024), help="The most GPUs of a trial.")
@click.option("--resize-cost", "resize_s", default=0.0, show_default=True, type=click.FloatRange(0, 1e6),
              help="Seconds that a resize takes.")  # fmt: skip
@click.option("--speed", "speeds", multiple=True, metavar="TYPE=X", help="Of a GPU type; default: by the published "
              "table, the median over its workloads.")  # fmt: skip
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON; - prints it.")
def simulate(
    source: Path, gpus: str, policy: str, form: str, packed: int, widest: int, resize_s: float,
    speeds: tuple[str, ...], json_file: str | None,
) -> None:  # fmt: skip
    """Simulate groups of trials, one group after the other, on a pool of GPUs.

    Columns: group, trial, budget_s (at width 1 on the fastest type), and optional alpha, beta (overheads of packing and
    scaling, 1 = none).
    """
    groups, pool = read_groups(source), _pool(gpus, speeds)
    limits = Limits(packed, widest)
    result = run_simulation(groups, pool, TuningPolicy(policy), limits, resize_s, Form(form))
    if json_file is not None:
        write_json(json_file, result.summary())
        if json_file == "-":
            return
    console().print(facts_table(_rows(result)))
    click.echo("assumed: " + ", ".join(f"{t.name} {t.speed:.2f} times as fast as the fastest" for t in pool))


def _pool(gpus: str, speeds: tuple[str, ...]) -> tuple[GpuType, ...]:
    """With the published speeds of types for which none is given."""
    given = {}
    for text in speeds:
        name, equals, value = text.partition("=")
        try:
            given[name] = float(value)
        except ValueError:
            given[name] = 0.0
        if not equals or not 1e-6 <= given[name] <= 1e6:
            raise ConfigError(f"--speed {text!r} must read TYPE=X, a number above 0")
    types = [t.name for t in parse_pool(gpus, {})]
    published = default_factors(reference(), types)
    return parse_pool(gpus, {name: published[name] for name in types} | given)


def _rows(result: TuningResult) -> list[tuple[str, str, str]]:
    to_bound = result.makespan_s / result.lower_bound_s
    return [
        (
            "total time",
            lasting(result.makespan_s),
            f"{to_bound:.2f} times a lower bound of {lasting(result.lower_bound_s)}",
        ),
        ("GPU use", f"{result.gpu_use:.0%}", "of the time in which a GPU had a trial"),
        ("resizes", str(result.resizes), ""),
    ]
