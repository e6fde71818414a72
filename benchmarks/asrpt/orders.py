"""A-SRPT against list schedules with the same mapping and predictions, and with worse predictions, in simulation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from typing import Any

from slurm_hadar.policies import get
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces import read_trace
from slurm_hadar.throughput.table import reference

__all__ = ["BASELINES", "CLUSTER", "LOADS", "VARIANTS", "mean_jct", "run"]

CLUSTER, GPUS = "v100:8x8", 64
LOADS = (0.6, 0.8, 1.0, 1.2)
BASELINES = ("spjf", "spwf", "wcs_duration", "wcs_workload", "wcs_subtime")
#: name: (policy, its parameters, predictor)
VARIANTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "asrpt": ("asrpt", {}, "oracle"),
    **{name: (name, {}, "oracle") for name in BASELINES},
    "asrpt, 8 reservations": ("asrpt", {"reserve": 8}, "oracle"),
    "asrpt, no waiting": ("asrpt", {"theta": 0.0}, "oracle"),
    "asrpt, strict": ("asrpt", {"strict": True, "theta": 0.0}, "oracle"),
    "asrpt, forest": ("asrpt", {}, "forest"),
    "asrpt, group mean": ("asrpt", {}, "group_mean"),
    "asrpt, noise 2x": ("asrpt", {}, "noisy:2"),
    "asrpt, noise 4x": ("asrpt", {}, "noisy:4"),
}


def run(jobs: int, seeds: Iterable[int], say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Every variant at every load and seed: ``{variant, load, seed, avg_jct_s, ttd_s}``.

    Rounds come at every arrival and end, so no order suffers from the length of rounds.
    """
    found = []
    for seed in seeds:
        for load in LOADS:
            trace = read_trace(f"recurring:jobs={jobs},seed={seed},load={load}", reference(), None, {}, seed, GPUS)
            for name, (policy, params, predictor) in VARIANTS.items():
                options = SimOptions(CLUSTER, round_s=300.0, event_round_s=1.0, predictor=predictor, seed=seed)
                rows = simulate(trace, get(policy, **params), options).jobs
                jct_s = [row.jct_s for row in rows if row.jct_s is not None]
                if len(jct_s) != jobs:
                    raise RuntimeError(f"{name}, load {load}, seed {seed}: {jobs - len(jct_s)} jobs were not done")
                found.append({"variant": name, "load": load, "seed": seed, "avg_jct_s": statistics.fmean(jct_s)})
            say(f"seed {seed}, load {load}: asrpt {found[-len(VARIANTS)]['avg_jct_s']:.0f} s")
    return found


def mean_jct(rows: Iterable[dict[str, Any]], variant: str, load: float) -> float:
    """Mean over the seeds, in seconds."""
    return statistics.fmean(r["avg_jct_s"] for r in rows if r["variant"] == variant and r["load"] == load)
