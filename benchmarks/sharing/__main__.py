"""One GPU of 16 GB that 100 jobs share, under every policy; random events on its memory; equal shares.

    python -m benchmarks.sharing [--seeds 20] [--events 1000000] [--json docs/results/sharing.json]

The traces are those of ``hadar share trace --jobs 100 --seed N``; ratios are to FIFO on the same trace. ``--first`` is
the first seed: constants of the policies were chosen on seeds 1 to 40, so that seeds from 1001 on are unseen ones.
Exits with 1 if a violation of the memory's condition, a job that is stuck or a share more than 3 % off is found, or if
fewer than nine of ten traces reach a goal (:func:`goals`).
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from dataclasses import asdict, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from benchmarks.sharing.events import play
from slurm_hadar.sharing.simulation.lane import LaneClock, Session
from slurm_hadar.sharing.simulation.run import ShareOptions, simulate
from slurm_hadar.sharing.simulation.trace import NS
from slurm_hadar.sharing.simulation.workloads import draw_trace, workloads
from slurm_hadar.sharing.turns import Policy, Standing

OPTIONS = ShareOptions(16 * 10**9)
RATIOS = ("makespan_s", "avg_jct_s", "p95_jct_s", "avg_queueing_s")


def trace_of(seed: int, options: ShareOptions) -> dict[str, dict[str, Any]]:
    """All policies on one trace."""
    jobs = draw_trace(100, seed)
    return {str(policy): simulate(jobs, policy, options).summary() for policy in Policy}


def beside_fifo(fifo: list[dict[str, Any]], runs: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The mean, least and greatest ratio to FIFO on the same traces."""
    ratios = {key: [run[key] / base[key] for base, run in zip(fifo, runs, strict=True)] for key in RATIOS}
    return {
        key: {
            "mean": round(statistics.fmean(values), 3),
            "least": round(min(values), 3),
            "greatest": round(max(values), 3),
        }
        for key, values in ratios.items()
    }


def of_all(runs: list[dict[str, dict[str, Any]]]) -> dict[str, dict[str, dict[str, float]]]:
    """The same for each policy."""
    return {policy: beside_fifo([run["fifo"] for run in runs], [run[policy] for run in runs]) for policy in runs[0]}


def equal_shares() -> list[list[float]]:
    """Shares of the GPU's time of three equal jobs (inception3_50) that join at 0, 15 and 30 s and go on to 615 s:
    for each span between two of these moments, those of all who are there."""
    workload = next(w for w in workloads() if w.name == "inception3_50")
    lane = LaneClock(Policy.FAIR)
    sessions = [Session(str(i), workload.iteration_ns, 10**6, Standing(i)) for i in range(3)]
    shares = []
    for joined, span_s in enumerate((15, 15, 585), 1):
        lane.join(sessions[joined - 1])
        before = [s.left for s in sessions]
        lane.advance(span_s * NS)
        done = [b - s.left for b, s in zip(before, sessions, strict=True)]
        shares.append([round(n / sum(done), 4) for n in done[:joined]])
    return shares


def goals(run: dict[str, dict[str, Any]]) -> dict[str, bool]:
    """Which goals are reached on a trace."""
    fifo, srtf, pack, fair = (run[name] for name in ("fifo", "srtf", "pack", "fair"))
    return {
        "SRTF: average JCT 3.2 times below FIFO's": fifo["avg_jct_s"] >= 3.2 * srtf["avg_jct_s"],
        "SRTF: less than 1 % more makespan": srtf["makespan_s"] < 1.01 * fifo["makespan_s"],
        "PACK: makespan 5 % below FIFO's": pack["makespan_s"] <= 0.95 * fifo["makespan_s"],
        "FAIR: 95 % JCT no higher than FIFO's": fair["p95_jct_s"] <= fifo["p95_jct_s"],
        "PACK: 95 % JCT no higher than FIFO's": pack["p95_jct_s"] <= fifo["p95_jct_s"],
        "no violations": not any(result["violations"] for result in run.values()),
    }


@click.command()
@click.option("--seeds", default=20, show_default=True, type=click.IntRange(min=1), help="Traces.")
@click.option("--first", default=1, show_default=True, help="The first seed.")
@click.option("--events", default=1_000_000, show_default=True, help="Random events on the memory; 0: none.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there too.")
def main(seeds: int, first: int, events: int, file: Path | None) -> None:
    """Measure what sharing one GPU gives."""
    runs = [trace_of(seed, OPTIONS) for seed in range(first, first + seeds)]
    conserved = [trace_of(seed, replace(OPTIONS, parallel_gain=Fraction(1))) for seed in range(first, first + seeds)]
    shares = equal_shares()
    began = time.process_time()
    tally = play(events, seed=first)
    found: dict[str, Any] = {
        "memory_bytes": OPTIONS.memory_bytes,
        "parallel_gain": float(OPTIONS.parallel_gain),
        "seeds": [first, first + seeds - 1],
        "first_trace": runs[0],
        "beside_fifo": of_all(runs),
        "pack_beside_fifo_with_time_conserved": of_all(conserved)["pack"],
        "equal_shares": shares,
        "random_events": {**asdict(tally), "cpu_s": round(time.process_time() - began, 1)},
        "traces_that_reach": {goal: sum(goals(run)[goal] for run in runs) for goal in goals(runs[0])},
    }
    text = json.dumps(found, indent=1)
    click.echo(text)
    if file is not None:
        file.write_text(text + "\n")
    unequal = any(abs(share * len(row) - 1) > 0.03 for row in shares for share in row)
    rare = min(found["traces_that_reach"].values()) < 0.9 * seeds
    sys.exit(bool(unequal or rare or tally.violations or tally.stuck))


if __name__ == "__main__":
    main()
