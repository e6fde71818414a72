"""HadarE on a private Slurm cluster against Hadar and Gavel, and the quality of forked trainings.

python -m benchmarks.hadare mixes   [--out DIR] [--jobs 1 --jobs 3 ...] [--sizes long-tailed|equal]
python -m benchmarks.hadare quality [--out DIR] [--seeds 3] [--part 0.25]
python -m benchmarks.hadare page    [--out DIR]     # tables and plots of what is in DIR, into docs/results
"""

from __future__ import annotations

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import click

from benchmarks.hadare import page as results_page
from benchmarks.hadare import quality as trainings
from benchmarks.hadare.cluster import MIXES, MixRun, jobs_of, run_mix
from slurm_hadar.cli.main import run

OUT = click.option("--out", type=click.Path(path_type=Path), default=Path("hadare-results"), show_default=True)


@click.group()
def main() -> None:
    """Measure HadarE."""


@main.command()
@OUT
@click.option("--jobs", type=int, multiple=True, default=MIXES, show_default=True)
@click.option("--sizes", type=click.Choice(["long-tailed", "equal"]), default="long-tailed", show_default=True)
@click.option("--baseline", "baselines", multiple=True, default=("hadar", "gavel_las"), show_default=True)
@click.option("--seed", default=0, show_default=True)
def mixes(out: Path, jobs: tuple[int, ...], sizes: str, baselines: tuple[str, ...], seed: int) -> None:
    """The same mixes of real trainings under HadarE, and under the baselines side by side on clusters of their own."""
    out = out.resolve()

    def one(policy: str, count: int) -> MixRun:
        folder = out / f"{sizes}-{count}-{policy}"
        run = run_mix(policy, jobs_of(count, sizes, seed), sizes, folder, click.echo)
        (folder / "run.json").write_text(json.dumps({**asdict(run), "cru": run.cru}, indent=1) + "\n")
        return run

    for count in jobs:
        one("hadare", count)
        with ThreadPoolExecutor(len(baselines) or 1) as side_by_side:
            list(side_by_side.map(lambda policy, n=count: one(policy, n), baselines))


@main.command()
@OUT
@click.option("--seeds", default=3, show_default=True)
@click.option("--family", "families", multiple=True, help="Default: all.")
@click.option("--part", type=click.FloatRange(0, 1, min_open=True), default=1.0, help="Of the steps to convergence.")
def quality(out: Path, seeds: int, families: tuple[str, ...], part: float) -> None:
    """Each family trained by one worker and by five copies, at equal total steps."""
    trainings.measure(out.resolve(), seeds, families, part, click.echo)


@main.command()
@OUT
def page(out: Path) -> None:
    """Write docs/results/hadare.md, its data and its pictures from the runs in DIR."""
    results_page.write(out.resolve())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit takes the cluster down, a kill would not
    run(main, "hadare")
