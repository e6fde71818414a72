"""A-SRPT measured.

python -m benchmarks.asrpt bound [--instances 20000]     # the proved bound, on random instances
python -m benchmarks.asrpt orders [--jobs 1000] [--seeds 5]     # against others, into docs/results/asrpt.md
"""

from __future__ import annotations

import sys

import click

from benchmarks.asrpt import page
from benchmarks.asrpt.bound import play, random_instance
from benchmarks.asrpt.orders import run


@click.group()
def main() -> None:
    """Measure A-SRPT."""


@main.command()
@click.option("--instances", default=20_000, show_default=True)
def bound(instances: int) -> None:
    """Play strict A-SRPT on random instances; exit with 1 if one costs more than the bound allows."""
    worst, broken = 0.0, []
    with click.progressbar(range(instances), file=sys.stderr) as seeds:
        for seed in seeds:
            used = play(random_instance(seed)).used
            worst = max(worst, used)
            broken += [seed] if used > 1.0 else []
    click.echo(f"{instances} instances: {len(broken)} above the bound; at most {worst:.2f} of it was used")
    if broken:
        click.echo(f"seeds above the bound: {', '.join(map(str, broken[:20]))}")
        sys.exit(1)


@main.command()
@click.option("--jobs", default=1000, show_default=True, help="Simulated.")
@click.option("--before", default=3000, show_default=True, help="Earlier jobs, that predictors have learned from.")
@click.option("--seeds", default=5, show_default=True)
def orders(jobs: int, before: int, seeds: int) -> None:
    """Simulate all orders and predictors at several loads, and write docs/results/asrpt.md."""
    runs = run(jobs, before, range(seeds), lambda line: click.echo(line, err=True))
    page.write({"jobs": jobs, "before": before, "runs": runs})


if __name__ == "__main__":
    main()
