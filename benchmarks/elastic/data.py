"""Sia's traces as ours: what each application does per second with each number of GPUs of each type."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.simulator.nodes import cluster_nodes
from slurm_hadar.simulator.traces import Trace, TraceJob
from slurm_hadar.throughput.inference import SPREAD

__all__ = ["CLUSTER", "Peer", "read_peers", "read_trace"]

#: The cluster of Sia's simulations, as in ``hadar simulate``.
CLUSTER = "t4:6x4,rtx:3x8,a100:2x8"

#: Fields of :class:`Peer`, and the columns of ``results/runs.csv``.
_FIGURES = {
    "avg_jct_h": "avg_jct_h",
    "p50_jct_h": "p50_jct_h",
    "p99_jct_h": "p99_jct_h",
    "makespan_h": "makespan_h",
    "gpu_h": "gpu_h_per_job",
    "restart_gpu_h": "restart_gpu_h_per_job",
    "restarts": "restarts_per_job",
}


@dataclass(frozen=True)
class Peer:
    """What another simulator gave on a trace. ``restarts`` are those per job, first starts apart; ``by_application``
    has the mean of them and of the completion time in seconds, and is empty where no figures per job are at hand."""

    trace: str
    label: str
    avg_jct_h: float
    p50_jct_h: float
    p99_jct_h: float
    makespan_h: float
    gpu_h: float
    restart_gpu_h: float
    restarts: float
    by_application: Mapping[str, tuple[float, float]]


def read_trace(data: Path, name: str) -> Trace:
    """The trace ``data/traces/name.csv``: all jobs start with one GPU or any other number that was measured.

    A step is Sia's iteration worth one at the batch that was tuned for (``progress_total`` of them), at the mean speed
    over the job's life with the best batch of each epoch; a first start costs what a restart does.
    """
    types = {row["application"]: row for row in _rows(data / "job_types.csv")}
    speeds = _speeds(data, {name: float(row["progress_total"]) for name, row in types.items()})
    jobs = []
    for row in _rows(data / "traces" / f"{name}.csv"):
        application = row["application"]
        own, kind = speeds[application], types[application]
        smallest, *larger = sorted(own)
        restart_s = float(kind["restart_s"])
        jobs.append(
            TraceJob(
                row["name"], float(row["time"]), application, None, smallest, float(kind["progress_total"]),
                (smallest, *larger), restart_s=restart_s, start_s=restart_s, steps_per_s=own[smallest],
                scaled={size: own[size] for size in larger},
            )
        )  # fmt: skip
    return Trace(name, "sia", tuple(jobs))


def _speeds(data: Path, steps: Mapping[str, float]) -> dict[str, dict[int, dict[str, float]]]:
    """Steps per second by application, GPUs and type, as a trace tells them: on one node. What was measured of gangs
    that are wider than a node is what is left of that on several."""
    room = {gpu_type: count for node in cluster_nodes(CLUSTER) for gpu_type, count in node.gpus.items()}
    found: dict[str, dict[int, dict[str, float]]] = {}
    for row in _rows(data / "isolated_runtimes.csv"):
        application, gpu_type, gpus = row["application"], row["gpu"], int(row["gpus"])
        if application in steps and gpu_type in room:
            rate = steps[application] / float(row["runtime_s"]) / (SPREAD if gpus > room[gpu_type] else 1.0)
            found.setdefault(application, {}).setdefault(gpus, {})[gpu_type] = rate
    return found


def read_peers(data: Path, trace: str) -> list[Peer]:
    """What Sia's simulator gave on this trace of its own policies (``data/results``): as published, Sia without any
    knowledge before a job's first start; and with all speeds known, where that was run."""
    found = []
    for row in _rows(data / "results" / "runs.csv"):
        if row["trace"] != trace or row["variant"] not in ("base", "throughput_known"):
            continue
        label = row["policy"] + (", all speeds known" if row["variant"] != "base" else "")
        jobs = data / "results" / "jobs" / f"{trace}_{row['policy']}.csv"
        told = _by_application(jobs) if row["variant"] == "base" and jobs.exists() else {}
        figures = {ours: float(row[theirs]) for ours, theirs in _FIGURES.items()}
        found.append(Peer(trace, label, by_application=told, **figures))
    return found


def _by_application(path: Path) -> dict[str, tuple[float, float]]:
    told: dict[str, list[tuple[float, float]]] = {}
    for row in _rows(path):
        told.setdefault(row["application"], []).append((float(row["jct_s"]), float(row["restarts"])))
    return {
        name: (statistics.fmean(jct for jct, _ in own), statistics.fmean(n for _, n in own))
        for name, own in told.items()
    }


def _rows(path: Path) -> Iterator[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        yield from csv.DictReader(file)
