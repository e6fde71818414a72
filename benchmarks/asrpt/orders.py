"""A-SRPT against list schedules with the same mapping and predictions, and with worse predictions, in simulation."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from typing import Any

from slurm_hadar.policies import get
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces import read_trace
from slurm_hadar.throughput.table import reference

__all__ = [
    "BASELINES", "LARGER", "LOADS", "PARTS", "PREDICTED", "REGULAR", "VARIANTS", "WAITING", "Setting",
    "Variant", "mean_jct", "run",
]  # fmt: skip

LOADS = (0.6, 0.8, 1.0, 1.2)


@dataclass(frozen=True)
class Variant:
    """A policy with its parameters, who predicts, and how much the runs of a script differ (``vary=`` of the trace)."""

    policy: str = "asrpt"
    params: dict[str, Any] = field(default_factory=dict)
    predictor: str = "oracle"
    vary: float = 1.0


@dataclass(frozen=True)
class Setting:
    """``nodes`` of 8 v100; ``jobs`` that are simulated, after ``before`` earlier ones of the same users and scripts."""

    nodes: int
    jobs: int
    before: int

    @property
    def cluster(self) -> str:
        return f"v100:{self.nodes}x8"

    def trace(self, load: float, vary: float) -> str:
        return f"recurring:jobs={self.before + self.jobs},load={load},vary={vary:g}"


BASELINES = ("spjf", "spwf", "wcs_duration", "wcs_workload", "wcs_subtime")
WAITING = {f"{name}, waiting": Variant(name, {"theta": 0.5}) for name in BASELINES}
PARTS = {
    "asrpt, pace 1": Variant(params={"pace": 1.0}),
    "asrpt, no reservations": Variant(params={"reserve": 0}),
    "asrpt, no waiting": Variant(params={"theta": 0.0}),
    "asrpt, strict": Variant(params={"strict": True, "theta": 0.0}),
}
PREDICTED = {
    "asrpt, forest": Variant(predictor="forest"),
    "asrpt, group mean": Variant(predictor="group_mean"),
    "asrpt, noise 2x": Variant(predictor="noisy:2"),
    "asrpt, noise 4x": Variant(predictor="noisy:4"),
    "asrpt, nothing known": Variant(predictor="none"),
}
REGULAR = (0.5, 0.0)
VARIANTS: dict[str, Variant] = {
    "asrpt": Variant(),
    **{name: Variant(name) for name in BASELINES},
    **WAITING,
    **PARTS,
    **PREDICTED,
    **{f"asrpt, vary {vary:g}": Variant(vary=vary) for vary in REGULAR},
    **{f"asrpt, forest, vary {vary:g}": Variant(predictor="forest", vary=vary) for vary in REGULAR},
}


#: On more GPUs, where it takes longer: the orders, and what predictions cost.
LARGER = ("asrpt", *BASELINES, "asrpt, forest")


def run(
    setting: Setting, variants: Iterable[str], seeds: Iterable[int], say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Each variant at every load and seed: ``{variant, load, seed, avg_jct_s}``.

    ``jobs`` jobs are simulated; predictors have learned from ``before`` earlier ones of the same users and scripts.
    Rounds come at every arrival and end, so no order suffers from the length of rounds.
    """
    wanted = [(name, load, seed, setting) for seed in seeds for load in LOADS for name in variants]
    found = []
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        for row in pool.map(_one, wanted):
            found.append(row)
            say(f"{len(found)}/{len(wanted)}: {row['variant']}, load {row['load']}: {row['avg_jct_s']:.0f} s")
    return found


def _one(wanted: tuple[str, float, int, Setting]) -> dict[str, Any]:
    name, load, seed, setting = wanted
    what, jobs, before = VARIANTS[name], setting.jobs, setting.before
    life = setting.trace(load, what.vary)
    past, trace = (
        read_trace(f"{life},part={a}:{b}", reference(), seed=seed, gpus=8 * setting.nodes)
        for a, b in ((0, before), (before, before + jobs))
    )
    # who looks at the truth has nothing to learn
    learns = not what.predictor.startswith(("oracle", "noisy", "none"))
    options = SimOptions(
        setting.cluster, round_s=300.0, event_round_s=1.0, predictor=what.predictor, seed=seed,
        history=past if learns else None,
    )  # fmt: skip
    rows = simulate(trace, get(what.policy, **what.params), options).jobs
    jct_s = [row.jct_s for row in rows if row.jct_s is not None]
    if len(jct_s) != jobs:
        raise RuntimeError(f"{name}, load {load}, seed {seed}: {jobs - len(jct_s)} jobs were not done")
    return {"variant": name, "load": load, "seed": seed, "avg_jct_s": round(statistics.fmean(jct_s), 1)}


def mean_jct(rows: Iterable[dict[str, Any]], variant: str, load: float) -> float:
    """Mean over the seeds, in seconds."""
    return statistics.fmean(r["avg_jct_s"] for r in rows if r["variant"] == variant and r["load"] == load)
