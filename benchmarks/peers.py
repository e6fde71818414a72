"""Our policies against the same policies in Gavel's own simulator, on the same traces and throughput table.

    python -m benchmarks.peers TRACES --peers RESULTS --throughputs TABLE [--only static_480] [--policy gavel_las]...

TRACES is a folder of Gavel traces (``*.trace``). RESULTS is a folder of ``runs_*.csv`` with one line per run of Gavel's
simulator: at least the columns ``trace, policy_label, cluster, window, round_s, avg_jct_s, makespan_s``, the cluster as
``V100:P100:K80`` counts and the window as ``a:b`` or empty. TABLE is the throughput table (Gavel's JSON or our CSV).
Each trace that RESULTS knows is simulated with ``--model gavel`` on the same cluster, and a markdown table with the
ratios is printed: ours over theirs, below 1 where ours is shorter. Policies that Gavel lacks are there without a ratio.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from slurm_hadar.policies import registry
from slurm_hadar.simulator.outcome.result import SimResult
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.throughputs import load_table
from slurm_hadar.simulator.traces import read_trace
from slurm_hadar.throughput.table import ReferenceTable

HOUR = 3600.0
_ANY = 100.0  # the most that can be said: Gavel's jobs accept any slow-down by others
GPU_TYPES = ("v100", "p100", "k80")

#: Our policy, its parameters, and the label of the same in RESULTS (None: Gavel does not have it).
PAIRS: tuple[tuple[str, dict[str, Any], str | None], ...] = (
    ("gavel_las", {}, "max_min_fairness_perf"),
    ("gavel_las", {"aware": False}, "max_min_fairness"),
    ("gavel_las", {"packed": True}, "max_min_fairness_packed"),
    ("gavel_ftf", {}, "finish_time_fairness_perf"),
    ("gavel_ftf", {"aware": False}, "finish_time_fairness"),
    ("gavel_ttd", {}, "min_total_duration_perf"),
    ("gavel_ttd", {"aware": False}, "min_total_duration"),
    ("gavel_ttd", {"packed": True}, "min_total_duration_packed"),
    ("gavel_throughput", {}, "max_sum_throughput_perf"),
    ("gavel_throughput", {"normalised": True}, None),
    ("gavel_cost", {}, None),
    ("allox", {"reset_s": 1920}, "allox"),
    ("allox", {}, None),
    ("fifo", {}, "fifo_fixed"),
    ("tiresias", {}, None),
    ("srtf", {}, None),
    ("srtf", {"service": True}, None),
)


@dataclass(frozen=True)
class Peer:
    """One run of Gavel's simulator: seconds."""

    avg_jct_s: float
    ttd_s: float


@dataclass(frozen=True)
class Setting:
    """How a trace was run there."""

    cluster: str
    measure: tuple[int, int] | None
    round_s: float


def read_peers(folder: Path) -> tuple[dict[str, Setting], dict[tuple[str, str], Peer]]:
    """Settings by trace, and results by trace and label. Runs that did not end well are left out."""
    settings, runs = {}, {}
    for path in sorted(folder.glob("runs_*.csv")):
        with path.open(newline="") as file:
            for row in csv.DictReader(file):
                if row.get("status", "ok") != "ok":
                    continue
                counts = zip(GPU_TYPES, row["cluster"].split(":"), strict=True)
                first, _, last = row["window"].partition(":")
                settings[row["trace"]] = Setting(
                    ",".join(f"{t}:1x{n}" for t, n in counts),
                    (int(first), int(last)) if last else None,
                    float(row["round_s"]),
                )
                runs[row["trace"], row["policy_label"]] = Peer(float(row["avg_jct_s"]), float(row["makespan_s"]))
    if not settings:
        raise click.UsageError(f"{folder} has no runs_*.csv with a run in it")
    return settings, runs


def run(trace: Path, setting: Setting, name: str, params: dict[str, Any], table: ReferenceTable) -> SimResult:
    """One policy on one trace, under the assumptions of Gavel's simulator."""
    share: dict[str, Any] = {"share": "beside", "slow_down": _ANY} if params.get("packed") else {}
    options = SimOptions(setting.cluster, "gavel", setting.round_s, measure=setting.measure, **share)
    return simulate(read_trace(trace, table), registry.get(name, **params), options, table, params)


def line(trace: str, name: str, params: dict[str, Any], result: SimResult, peer: Peer | None, window: bool) -> str:
    """One row of the table. Over a window of a longer trace, a TTD means nothing."""
    figures = result.summary()
    told = " ".join([name, *(f"{key}={str(value).lower()}" for key, value in params.items())])
    cells = [trace, told, *_compared(figures["avg_jct_s"], peer.avg_jct_s if peer else None)]
    cells += ["", "", ""] if window else _compared(figures["ttd_s"], peer.ttd_s if peer else None)
    cells += [f"{figures['moves_per_job']:.1f}", f"{figures['decide_mean_s'] * 1e3:.2f}"]
    return f"| {' | '.join(cells)} |"


def _compared(ours_s: float, theirs_s: float | None) -> list[str]:
    if theirs_s is None:
        return [f"{ours_s / HOUR:.2f}", "", ""]
    return [f"{ours_s / HOUR:.2f}", f"{theirs_s / HOUR:.2f}", f"{ours_s / theirs_s:.3f}"]


HEADER = (
    "| trace | policy | avg JCT h | Gavel's | ratio | TTD h | Gavel's | ratio | moves per job | ms per decision |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
)


def rows(
    traces: Iterable[Path], folder: Path, table: ReferenceTable, policies: frozenset[str], all_peers: bool = True
) -> Iterator[str]:
    """The rows of the table, one at a time; with ``all_peers`` false only those that Gavel has, too."""
    settings, runs = read_peers(folder)
    for trace in traces:
        setting = settings.get(trace.name)
        for name, params, label in PAIRS if setting else ():
            peer = runs.get((trace.name, label)) if label else None
            if (not policies or name in policies) and (peer or all_peers) and setting:
                result = run(trace, setting, name, params, table)
                yield line(trace.stem, name, params, result, peer, setting.measure is not None)


@click.command(help=__doc__)
@click.argument("traces", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--peers", required=True, type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--throughputs", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--only", default="", help="only traces whose name begins so")
@click.option("--policy", "policies", multiple=True, help="only this policy; may be given several times")
@click.option("--counterparts", is_flag=True, help="only policies that Gavel has, too")
def main(
    traces: Path, peers: Path, throughputs: Path, only: str, policies: tuple[str, ...], counterparts: bool
) -> None:
    click.echo(HEADER)
    chosen = sorted(p for p in traces.glob("*.trace") if p.name.startswith(only))
    for row in rows(chosen, peers, load_table(throughputs), frozenset(policies), not counterparts):
        click.echo(row)


if __name__ == "__main__":
    main()
