"""``hadar bench``: what one decision costs."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

import click
from rich.table import Table

from slurm_hadar.cli.common import console, policy_settings, write_json
from slurm_hadar.policies import registry
from slurm_hadar.simulator.bench import SWEEP, BenchResult, growth_exponent, measure
from slurm_hadar.simulator.bench import sweep as run_sweep

__all__ = ["bench"]


@click.command()
@click.option("--policy", default="hadar", show_default=True, help="Who decides.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="A parameter of the policy.")
@click.option("--jobs", type=click.IntRange(min=1), help="Jobs in the queue; without it, a sweep.")
@click.option("--gpus", type=click.IntRange(min=1), help="GPUs in all; default one a job.")
@click.option("--nodes", type=click.IntRange(min=1), help="Nodes; default one for four GPUs.")
@click.option("--seed", default=0, show_default=True, help="Of the generated snapshot.")
@click.option("--json", "json_file", metavar="FILE", help="Write the result as JSON; - prints it.")
def bench(
    policy: str,
    settings: tuple[str, ...],
    jobs: int | None,
    gpus: int | None,
    nodes: int | None,
    seed: int,
    json_file: str | None,
) -> None:
    """Measure one decision on a generated snapshot, half of its GPUs held by running jobs.

    Each decision is made in a process of its own, so that its memory is known too. Without --jobs the queue is made
    longer and longer, and the growth of the CPU time is told as an exponent: 1 is linear in the number of jobs.
    """
    params = policy_settings(settings)
    registry.get(policy, **params)
    if jobs is not None:
        total = gpus or max(jobs, nodes or 1)
        results = [measure(policy, params, jobs, total, nodes or max(1, total // 4), seed)]
        content: dict[str, Any] = asdict(results[0])
    else:
        results = run_sweep(policy, params, SWEEP, gpus, nodes, seed, on_result=_tell if sys.stderr.isatty() else None)
        content = {"policy": policy, "params": params, "results": [asdict(r) for r in results],
                   "exponent": growth_exponent(results)}  # fmt: skip
    if json_file is not None:
        write_json(json_file, content)
    if json_file == "-":
        return
    console().print(_table(results))
    if jobs is None and content["exponent"] is not None:
        click.echo(f"CPU time grows with the number of jobs to the power of {content['exponent']:.2f}")


def _tell(result: BenchResult) -> None:
    click.echo(f"{result.policy}: {result.jobs} jobs: {result.decide_cpu_s:.3f} s", err=True)


def _table(results: list[BenchResult]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("JOBS", "GPUS", "NODES", "PLACED", "CPU", "WALL", "PEAK MEMORY"):
        table.add_column(title, justify="right")
    for r in results:
        table.add_row(
            str(r.jobs),
            str(r.gpus),
            str(r.nodes),
            str(r.placed),
            f"{1000 * r.decide_cpu_s:.1f} ms",
            f"{1000 * r.decide_wall_s:.1f} ms",
            f"{r.peak_memory_bytes / 2**20:.0f} MiB",
        )
    return table
