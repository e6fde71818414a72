"""``hadare`` against policies that do not fork, on mixes of a few jobs and five unequal nodes, simulated.

    python -m benchmarks.mixes [--draws 5]

Each mix has N single-GPU jobs of the five workloads of the shipped throughput table, of 0.25 to 4 hours on a V100, all
there at once; the restarts cost what the simulator takes for the model. Hadar's policies have rounds of 360 s that the
end of a job brings forward (30 s); Gavel's have fixed rounds, as in its own simulator. Prints a table in Markdown.
"""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import click

from slurm_hadar.model import Fork
from slurm_hadar.policies import get
from slurm_hadar.simulator.run import SimOptions, bounds_of, simulate
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.throughput.table import reference

CLUSTER = "v100:2x1,p100:2x1,k80:1x1"
SIZES = (1, 3, 4, 5, 8, 10, 12)
WORKLOADS = (("resnet18", 128), ("resnet50", 64), ("transformer", 64), ("lm", 20), ("recommendation", 2048))
POLICIES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("gavel_las", {}),
    ("gavel_ttd", {}),
    ("hadar", {}),
    ("hadare", {}),
    ("hadar", {"objective": "ttd"}),
    ("hadare", {"objective": "ttd"}),
)


def mix(count: int, seed: int) -> Trace:
    """``count`` jobs at time 0."""
    dice, table, jobs = random.Random(f"{count} {seed}"), reference(), []
    for number in range(count):
        model, batch = dice.choice(WORKLOADS)
        rate = table.steps_per_s(model, batch, "v100")
        assert rate is not None
        jobs.append(TraceJob(str(number + 1), 0.0, model, batch, 1, rate * 3600 * 0.25 * 16 ** dice.random()))
    return Trace(f"mix of {count}", "drawn", tuple(jobs))


def figures(count: int, draws: int) -> tuple[list[list[dict[str, Any]]], list[float]]:
    """Summaries by policy and draw, and the lower bounds on the TTD by draw, with forks."""
    found: list[list[dict[str, Any]]] = [[] for _ in POLICIES]
    bounds = []
    for seed in range(draws):
        trace = mix(count, seed)
        for column, (name, params) in enumerate(POLICIES):
            events_s = 0.0 if name.startswith("gavel") else 30.0
            options = SimOptions(CLUSTER, event_round_s=events_s, fork=Fork.AUTO)
            found[column].append(simulate(trace, get(name, **params), options).summary())
        bounds.append(bounds_of(trace, options, jct=False)["ttd_s"])
    return found, bounds


@click.command()
@click.option("--draws", default=5, show_default=True, help="Mixes of each size.")
def main(draws: int) -> None:
    """Print TTD in hours and the share of nodes that are busy, means over the draws."""
    labels = [":".join([name, *(f"{k}={v}" for k, v in params.items())]) for name, params in POLICIES]
    print("| jobs | " + " | ".join(f"`{label}`" for label in labels) + " | bound | worst ratio, default | worst, ttd |")
    print("| --- " * (len(labels) + 4) + "|")
    for count in SIZES:
        found, bounds = figures(count, draws)
        cells = [f"{fmean(s['ttd_s'] for s in c) / 3600:.2f} ({100 * fmean(s['cru'] for s in c):.0f} %)" for c in found]
        ratios = [
            max(e["ttd_s"] / h["ttd_s"] for h, e in zip(found[plain], found[plain + 1], strict=True))
            for plain in (2, 4)
        ]
        worst = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        print(f"| {count} | " + " | ".join(cells) + f" | {fmean(bounds) / 3600:.2f} | {worst} |", flush=True)


if __name__ == "__main__":
    main()
