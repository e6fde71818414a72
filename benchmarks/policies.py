"""What ``hadar`` reaches on Gavel's traces, against the peers and against what no policy can beat.

    python -m benchmarks.policies TRACES --throughputs TABLE [--section static]... [--out docs/results] [--processes 2]

TRACES is a folder of Gavel traces (``*.trace``), TABLE the throughput table (Gavel's JSON or our CSV). Each section's
runs are written to ``OUT/policies.json``, in which the other sections stay as they are; then ``OUT/policies.md`` and
``OUT/frontier.png`` are made from that file. Without ``--section`` all are run, with ``--section none`` only the page
and the picture are made anew. The figures of Gavel's own simulator are in ``benchmarks/data/runs_gavel.csv``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click

from benchmarks import policies_page
from slurm_hadar.policies import registry
from slurm_hadar.simulator.bench import growth_exponent, measure, sweep
from slurm_hadar.simulator.run import SimOptions, bounds_of, simulate
from slurm_hadar.simulator.throughputs import Rates, load_table
from slurm_hadar.simulator.traces import read_trace
from slurm_hadar.simulator.traces.model import Trace
from slurm_hadar.throughput.table import ReferenceTable

SEEDS = (0, 1, 2)
FRONTIER = (0.0, 0.1, 0.25, 0.5, 0.6, 0.75, 0.9, 1.0)
WINDOW = (700, 1200)
VARIABLES = 300_000  # of the programme that bounds the jobs in the window: half a minute each
SECTIONS = ("static", "nodes", "poisson", "decisions")
SIZES = ((2048, 512, 128), (100_000, 10_000, 1_250))  # jobs, GPUs, nodes

STATIC = tuple(f"static_480_{gangs}_seed{seed}" for gangs in ("multi", "single") for seed in SEEDS)
POISSON = tuple(f"poisson_{load}_3000_seed{seed}" for load in ("multi_rate2.5", "single_rate5.0") for seed in (0, 1))
KEPT = (
    "avg_jct_s",
    "ttd_s",
    "ftf_max",
    "moves_per_job",
    "restarts_per_job",
    "rounds",
    "decide_total_s",
    "decide_max_s",
)


@dataclass(frozen=True)
class Case:
    """One simulation: policy ``name`` with ``params`` on ``trace``, a cluster as in ``hadar simulate``."""

    trace: str
    name: str
    params: Mapping[str, Any]
    cluster: str
    model: str
    measure: tuple[int, int] | None = None

    @property
    def options(self) -> SimOptions:
        return SimOptions(self.cluster, self.model, measure=self.measure)  # type: ignore[arg-type]


def static_cases() -> Iterator[Case]:
    """All jobs at once on 20 GPUs of each type: the whole curve on seed 0, five points of it on the others."""
    for trace in STATIC:
        first = trace.endswith("seed0")
        for frontier in FRONTIER if first else (0.0, 0.25, 0.5, 0.75, 1.0):
            yield Case(trace, "hadar", {"frontier": frontier}, "v100:1x20,p100:1x20,k80:1x20", "gavel")
        if first:
            yield Case(trace, "gavel_las", {}, "v100:1x20,p100:1x20,k80:1x20", "gavel")


def nodes_cases() -> Iterator[Case]:
    """The same jobs where nodes have boundaries and every restart costs what was published for its model."""
    for trace in (STATIC[0], STATIC[len(SEEDS)]):
        for name in ("hadar", "gavel_las", "allox", "srtf", "tiresias", "fifo"):
            yield Case(trace, name, {}, "v100:5x4,p100:5x4,k80:5x4", "nodes")
        yield Case(trace, "hadar", {"frontier": 0.5}, "v100:5x4,p100:5x4,k80:5x4", "nodes")


def poisson_cases() -> Iterator[Case]:
    """Jobs keep arriving on 36 GPUs of each type; 500 of them are measured."""
    for trace in POISSON:
        for name in ("hadar", "gavel_las"):
            yield Case(trace, name, {}, "v100:1x36,p100:1x36,k80:1x36", "gavel", WINDOW)


CASES = {"static": static_cases, "nodes": nodes_cases, "poisson": poisson_cases}


@cache
def _table(path: Path) -> ReferenceTable:
    return load_table(path)


def run_case(case: Case, traces: Path, table_path: Path) -> dict[str, Any]:
    """One run's figures; ``cpu_s`` is what the simulation took as a whole."""
    table, began = _table(table_path), time.process_time()
    trace = read_trace(traces / f"{case.trace}.trace", table)
    result = simulate(trace, registry.get(case.name, **case.params), case.options, table, case.params)
    figures = result.summary()
    if result.unfinished:
        raise click.ClickException(f"{case.trace}, {case.name}: {len(result.unfinished)} jobs were not done")
    told = {"trace": case.trace, "policy": case.name, "params": dict(case.params), "model": case.model}
    return {**told, **{key: figures[key] for key in KEPT}, "cpu_s": time.process_time() - began}


def bounds_case(case: Case, traces: Path, table_path: Path) -> dict[str, Any]:
    """What no policy can beat on the trace and cluster of ``case``, and what :func:`alone` says."""
    table = _table(table_path)
    trace = read_trace(traces / f"{case.trace}.trace", table)
    told = {"trace": case.trace, "model": case.model, **alone(trace, case, table)}
    return {**told, **bounds_of(trace, case.options, table, variables=VARIABLES if case.measure else None)}


def alone(trace: Trace, case: Case, table: ReferenceTable) -> dict[str, Any]:
    """The measured jobs as if each ran on its best type with nobody else there: ``floor_s``, their mean run time, and,
    where they do not all arrive at once, ``best_type_gpus``, how many of each type would be busy on average between the
    first and the last arrival. Only for the model ``gavel``, whose rates are summed over workers."""
    gpus = {part.split(":")[0]: int(part.split("x")[-1]) for part in case.cluster.split(",")}
    rates = Rates(table, gpus, summed=True)
    first, last = case.measure or (0, len(trace.jobs))
    jobs = sorted(trace.jobs, key=lambda j: j.arrival_s)[first:last]
    total_s, busy_s = 0.0, dict.fromkeys(gpus, 0.0)
    for job in jobs:
        speeds = rates.of(job, job.workers)
        best = max(speeds, key=lambda t: speeds[t].steps_per_s)
        run_s = job.steps * job.workers / speeds[best].steps_per_s
        total_s += run_s
        busy_s[best] += run_s * job.workers
    found: dict[str, Any] = {"floor_s": total_s / len(jobs)}
    span_s = jobs[-1].arrival_s - jobs[0].arrival_s
    return {**found, "best_type_gpus": {t: s / span_s for t, s in busy_s.items()}} if span_s else found


def run_section(name: str, traces: Path, table: Path, processes: int) -> dict[str, Any]:
    """All runs of a section and, where there is a bound, the bounds of its traces."""
    if name == "decisions":
        return decisions()
    cases = list(CASES[name]())
    bounded = {case.trace: case for case in cases if case.model == "gavel"}
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        runs = [pool.submit(run_case, case, traces, table) for case in cases]
        bounds = [pool.submit(bounds_case, case, traces, table) for case in bounded.values()]
        with click.progressbar(runs, label=name) as waiting:
            figures = [future.result() for future in waiting]
        return {"runs": figures, "bounds": [future.result() for future in bounds]}


def decisions() -> dict[str, Any]:
    """One decision on generated snapshots, as ``hadar bench`` makes them."""
    swept = sweep("hadar", {})
    results = [*swept, *(measure("hadar", {}, *size) for size in SIZES)]
    return {"results": [asdict(r) for r in results], "exponent": growth_exponent(swept), "swept": len(swept)}


def read_results(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return content


@click.command(help=__doc__)
@click.argument("traces", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--throughputs", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--section", "sections", multiple=True, type=click.Choice([*SECTIONS, "none"]), default=SECTIONS)
@click.option("--out", default="docs/results", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--processes", default=2, show_default=True, type=click.IntRange(min=1))
def main(traces: Path, throughputs: Path, sections: Sequence[str], out: Path, processes: int) -> None:
    path = out / "policies.json"
    for name in sections:
        if name != "none":
            found = run_section(name, traces, throughputs, processes)
            path.write_text(json.dumps({**read_results(path), name: found}, indent=1, sort_keys=True) + "\n")
    policies_page.write(read_results(path), out)


if __name__ == "__main__":
    main()
