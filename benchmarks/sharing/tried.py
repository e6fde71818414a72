"""How many jobs FAIR and PACK do well with on a crowded GPU, and how patient PACK is: what else was tried.

    python -m benchmarks.sharing.tried [--seeds 20]

Ratios to FIFO on the same traces as ``python -m benchmarks.sharing``: mean, and greatest in brackets.
"""

from __future__ import annotations

from unittest.mock import patch

import click

from benchmarks.sharing.__main__ import OPTIONS, RATIOS, beside_fifo
from slurm_hadar.sharing import entry
from slurm_hadar.sharing.simulation.run import simulate
from slurm_hadar.sharing.simulation.workloads import draw_trace
from slurm_hadar.sharing.turns import Policy

MANY = 10**9
TRIED = (
    *((Policy.FAIR, crowd, entry.PATIENCE) for crowd in (3, 4, 6, 8, 10, MANY)),
    *((Policy.PACK, crowd, patience) for crowd in (2, 3, MANY) for patience in (0, 5, 20, MANY)),
)


@click.command()
@click.option("--seeds", default=20, show_default=True, type=click.IntRange(min=1), help="Traces.")
def main(seeds: int) -> None:
    """A line for each of :data:`TRIED`."""
    traces = [draw_trace(100, seed) for seed in range(1, seeds + 1)]
    fifo = [simulate(jobs, Policy.FIFO, OPTIONS).summary() for jobs in traces]
    print("| policy | jobs when crowded | passed by | makespan | average JCT | 95 % JCT |")
    print("| --- | --- | --- | --- | --- | --- |")
    for policy, crowd, patience in TRIED:
        with patch.dict(entry.CROWD, {policy: crowd}), patch.object(entry, "PATIENCE", patience):
            runs = [simulate(jobs, policy, OPTIONS).summary() for jobs in traces]
        ratios = beside_fifo(fifo, runs)
        found = (f"{r['mean']:.3f} ({r['greatest']:.3f})" for r in (ratios[key] for key in RATIOS[:3]))
        passed_by = _many(patience) if policy is Policy.PACK else "-"
        print("|", " | ".join((policy, _many(crowd), passed_by, *found)), "|")


def _many(number: int) -> str:
    return "no limit" if number == MANY else str(number)


if __name__ == "__main__":
    main()
