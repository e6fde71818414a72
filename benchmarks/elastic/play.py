"""One policy on one of the traces, and what is kept of it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from benchmarks.elastic.data import CLUSTER, read_trace
from slurm_hadar.policies import registry
from slurm_hadar.simulator.compare import read_contenders
from slurm_hadar.simulator.outcome.result import SimResult
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces import Trace

__all__ = ["ROUND_S", "play"]

ROUND_S = 60.0
_HOUR = 3600.0


def play(data: Path, name: str, label: str) -> dict[str, Any]:
    """The figures of a policy, written ``name:key=value``, on a trace. Raises RuntimeError if jobs were not done."""
    contender = read_contenders(label)[0]
    policy, trace = registry.get(contender.name, **contender.params), read_trace(data, name)
    result = simulate(trace, policy, SimOptions(CLUSTER, round_s=ROUND_S))
    if result.unfinished:
        raise RuntimeError(f"{name}, {label}: not done: {', '.join(result.unfinished)}")
    return {"trace": name, "policy": label, **_figures(trace, result)}


def _figures(trace: Trace, result: SimResult) -> dict[str, Any]:
    """Times in hours. ``p99_jct_h`` is that of Sia's simulator: the job at place ``int(0.99 n)`` of n, from 0;
    ``makespan_h`` counts from the trace's zero, as there."""
    rows = result.counted
    jct_h = sorted((row.jct_s or 0.0) / _HOUR for row in rows)
    ends = [row.completion_s for row in rows if row.completion_s is not None]
    gpu_s = sum(sum(row.gpu_s.values()) for row in rows)
    told: dict[str, list[tuple[float, int]]] = {}
    for row in rows:
        told.setdefault(row.model, []).append((row.jct_s or 0.0, row.restarts))
    figures = {
        "avg_jct_h": statistics.fmean(jct_h),
        "p50_jct_h": statistics.median(jct_h),
        "p99_jct_h": jct_h[int(0.99 * len(jct_h))],
        "makespan_h": max(ends) / _HOUR,
        "gpu_h": gpu_s / _HOUR / len(rows),
        "restart_gpu_h": _restarting_s(trace, result) / _HOUR / len(rows),
        "restarts": statistics.fmean(row.restarts for row in rows),
        "decide_ms": 1000 * statistics.fmean(result.decide_s),
    }
    by_application = {
        name: [round(statistics.fmean(values), 2) for values in zip(*own, strict=True)]
        for name, own in sorted(told.items())
    }
    return {**{key: round(value, 4) for key, value in figures.items()}, "by_application": by_application}


def _restarting_s(trace: Trace, result: SimResult) -> float:
    """GPU-seconds that were held while jobs started, first starts included."""
    cost_s = {job.job_id: job.restart_s or 0.0 for job in trace.jobs}
    return sum(i.count * min(cost_s[i.job_id], i.end_s - i.start_s) for i in result.intervals)
