"""A-SRPT measured.

python -m benchmarks.asrpt bound [--instances 20000]     # the proved bound, on random instances
python -m benchmarks.asrpt orders [--jobs 1000] [--seeds 5]     # against others, into docs/results/asrpt.md
python -m benchmarks.asrpt larger [--nodes 64] [--seeds 3]      # on more GPUs, into the same page
python -m benchmarks.asrpt real F/fidelity.json                # a run of benchmarks.fidelity, into the same page
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from benchmarks.asrpt import page
from benchmarks.asrpt.bound import play, random_instance
from benchmarks.asrpt.orders import LARGER, VARIANTS, Setting, run


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
@click.argument("text")
def remark(text: str) -> None:
    """What readers of the page must know of its runs first, such as that the code has changed since."""
    page.write("asrpt.json", json.loads((page.RESULTS / "asrpt.json").read_text()) | {"remark": text})


@main.command()
@click.option("--jobs", default=1000, show_default=True, help="Simulated.")
@click.option("--before", default=3000, show_default=True, help="Earlier jobs, that predictors have learned from.")
@click.option("--seeds", default=5, show_default=True)
def orders(jobs: int, before: int, seeds: int) -> None:
    """Simulate all orders and predictors at several loads, and write docs/results/asrpt.md."""
    page.write("asrpt.json", _runs(Setting(8, jobs, before), VARIANTS, seeds))


@main.command()
@click.option("--nodes", default=64, show_default=True, help="Of 8 GPUs each.")
@click.option("--jobs", default=3000, show_default=True, help="Simulated.")
@click.option("--before", default=9000, show_default=True, help="Earlier jobs, that predictors have learned from.")
@click.option("--seeds", default=3, show_default=True)
def larger(nodes: int, jobs: int, before: int, seeds: int) -> None:
    """The orders and the forest on a larger cluster, into docs/results/asrpt.md."""
    page.write("asrpt_larger.json", _runs(Setting(nodes, jobs, before), LARGER, seeds))


def _runs(setting: Setting, variants: Iterable[str], seeds: int) -> dict[str, Any]:
    return asdict(setting) | {"runs": run(setting, variants, range(seeds), lambda line: click.echo(line, err=True))}


@main.command()
@click.argument("fidelity", type=click.Path(exists=True, dir_okay=False, path_type=Path))
def real(fidelity: Path) -> None:
    """Put a run of `python -m benchmarks.fidelity --policy asrpt` into docs/results/asrpt.md."""
    runs = [run for run in json.loads(fidelity.read_text()) if run["policy"] == "asrpt"]
    if not runs:
        raise click.ClickException(f"{fidelity}: has no run of asrpt; make one with --policy asrpt")
    # the command in it names files of the machine it ran on
    page.write("asrpt_real.json", {key: value for key, value in runs[0].items() if key != "command"})


if __name__ == "__main__":
    main()
