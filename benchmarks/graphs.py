"""What it is worth to know the job graphs: policies that see what being spread costs, and the same ones that do not.

    python -m benchmarks.graphs [--draws 5] [--jobs 300] [--json FILE]

Traces as Philly's, in which every gang has the graph of a known model, drawn at random. What happens follows the
graphs in both cases; a policy that does not know them takes every gang to keep 0.8 of its speed on several nodes.
Prints the average JCT in hours, and the change, in Markdown.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import click

from slurm_hadar.graphs.network import Network
from slurm_hadar.model import Job, Plan, Snapshot, Speed
from slurm_hadar.policies import get
from slurm_hadar.policies.base import Policy
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces import read_trace
from slurm_hadar.simulator.traces.model import Trace
from slurm_hadar.throughput.table import reference

CLUSTERS = ("v100:16x4", "v100:8x4,p100:8x4")
NETWORKS = {"100 Gbit/s": 12.5e9, "10 Gbit/s": 1.25e9}
MODELS = ("vgg16", "resnet50", "transformer", "lm", "gpt2", "bert-base")
POLICIES = ("hadar", "asrpt")


class Blind(Policy):
    """A policy that is not told the factors of graphs."""

    forks = True

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self.name = policy.name  # type: ignore[misc]

    def allocate(self, snapshot: Snapshot) -> Plan:
        return self._policy.allocate(snapshot.with_jobs(map(_without_graph, snapshot.jobs)))


def _without_graph(job: Job) -> Job:
    def plain(speed: Speed) -> Speed:
        return replace(speed, by_nodes=())

    speeds = {t: plain(s) for t, s in job.speeds.items()}
    scaled = {n: {t: plain(s) for t, s in at.items()} for n, at in job.scaled.items()}
    return replace(job, graph="", speeds=speeds, scaled=scaled)


def drawn(jobs: int, seed: int) -> Trace:
    """A trace whose gangs have graphs."""
    trace, dice = read_trace(f"philly:jobs={jobs},seed={seed}", reference()), random.Random(seed)
    graphs = [replace(job, graph=dice.choice(MODELS) if job.workers > 1 else "") for job in trace.jobs]
    return replace(trace, jobs=tuple(graphs))


def figures(jobs: int, draws: int) -> Iterator[dict[str, Any]]:
    """One entry for each cluster, network and policy: average JCT by draw, in hours, without and with the graphs."""
    for cluster in CLUSTERS:
        for network, outside in NETWORKS.items():
            options = SimOptions(cluster, network=Network(outside=outside))
            for name in POLICIES:
                found: dict[str, list[float]] = {"blind_h": [], "aware_h": []}
                for seed in range(draws):
                    trace = drawn(jobs, seed)
                    for key, policy in (("blind_h", Blind(get(name))), ("aware_h", get(name))):
                        found[key].append(simulate(trace, policy, options).summary()["avg_jct_s"] / 3600)
                yield {"cluster": cluster, "network": network, "policy": name, "jobs": jobs, **found}


@click.command()
@click.option("--draws", default=5, show_default=True, help="Traces.")
@click.option("--jobs", default=300, show_default=True, help="Jobs in each.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write all figures.")
def main(draws: int, jobs: int, file: Path | None) -> None:
    """Compare average JCT with and without knowledge of the graphs."""
    print("| cluster | links out of a node | policy | without | with the graphs | change | best and worst trace |")
    print("| --- " * 7 + "|")
    rows = []
    for row in figures(jobs, draws):
        rows.append(row)
        without, with_ = fmean(row["blind_h"]), fmean(row["aware_h"])
        changes = [100 * (a / b - 1) for a, b in zip(row["aware_h"], row["blind_h"], strict=True)]
        where = f"| {row['cluster']} | {row['network']} | `{row['policy']}` | {without:.2f} h | {with_:.2f} h"
        change = f"{100 * (with_ / without - 1):+.1f} % | {min(changes):+.1f} to {max(changes):+.1f} % |"
        print(f"{where} | {change}", flush=True)
    if file is not None:
        file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
