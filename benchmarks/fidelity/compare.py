"""The simulated side, and both sides beside each other."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.fidelity.real import RealRun
from benchmarks.fidelity.scene import Scene
from slurm_hadar.config import load
from slurm_hadar.controller.cluster import asked_every_s
from slurm_hadar.policies import registry
from slurm_hadar.simulator.outcome.metrics import JobRow
from slurm_hadar.simulator.outcome.result import SimResult
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces.model import Trace

__all__ = ["Costs", "Pair", "compare", "figures", "trace_as_run", "virtual"]


@dataclass(frozen=True)
class Costs:
    """What the simulator must be told of a cluster, in seconds (:class:`slurm_hadar.simulator.options.SimOptions`)."""

    self_start_s: float
    start_s: float
    report_s: float
    restart_s: float
    phase_s: float

    @classmethod
    def measured(cls, run: RealRun, otherwise_restart_s: float, lease_s: int = 0) -> Costs:
        """As they were in a run; a restart costs ``otherwise_restart_s`` if there was none. With a lease Slurm starts
        no job by itself before it has run out."""
        restart_s, self_start_s = run.restart_s(), lease_s or run.self_start_s()
        return cls(
            self_start_s,
            run.start_s(),
            run.report_s(),
            otherwise_restart_s if restart_s is None else restart_s,
            run.first_round - run.zero,
        )


@dataclass(frozen=True)
class Pair:
    """One job on both sides. ``error`` is (simulated - real) / real."""

    job: str
    model: str
    gpus: int
    arrival_s: float
    real_jct_s: float
    sim_jct_s: float
    real_moves: int
    sim_moves: int

    @property
    def error(self) -> float:
        return (self.sim_jct_s - self.real_jct_s) / self.real_jct_s


def trace_as_run(trace: Trace, run: RealRun) -> Trace:
    """The trace with the moments at which the jobs were really submitted, some hundredths of a second late."""
    arrivals = {j.trace.job_id: round(j.submit - run.zero, 2) for j in run.jobs}
    return replace(trace, jobs=tuple(replace(j, arrival_s=arrivals[j.job_id]) for j in trace.jobs))


def virtual(trace: Trace, policy: str, scene: Scene, config: Path, costs: Costs) -> SimResult:
    """The same in the simulator, with the controller's own settings."""
    site = load(config)
    options = SimOptions(
        scene.nodes, round_s=site.controller.round_s, event_round_s=site.controller.event_round_s, guard=site.guard,
        restart_s=costs.restart_s, start_s=costs.start_s, report_s=costs.report_s, self_start_s=costs.self_start_s,
        phase_s=costs.phase_s, asked_s=asked_every_s(site.controller.event_round_s),
    )  # fmt: skip
    return simulate(trace, registry.get(policy), options)


def compare(run: RealRun, result: SimResult) -> list[Pair]:
    """All jobs, in order of arrival. Raises KeyError if one was not simulated."""
    rows: dict[str, JobRow] = {r.job_id: r for r in result.jobs}
    pairs = []
    for job in run.jobs:
        row = rows[job.trace.job_id]
        pairs.append(
            Pair(row.job_id, row.model, row.gpus, row.arrival_s, job.jct_s, row.jct_s or float("nan"), job.moves,
                 row.moves + row.preemptions)
        )  # fmt: skip
    return pairs


def figures(run: RealRun, result: SimResult, costs: Costs) -> dict[str, Any]:
    """What is reported of one policy; errors are relative to the real JCT."""
    pairs = compare(run, result)
    worst = max(pairs, key=lambda p: abs(p.error))
    return {
        "policy": run.policy,
        "jobs": len(pairs),
        "mean_error": statistics.fmean(abs(p.error) for p in pairs),
        "median_error": statistics.median(abs(p.error) for p in pairs),
        "mean_signed_error": statistics.fmean(p.error for p in pairs),
        "worst_job": worst.job,
        "worst_error": worst.error,
        "real_avg_jct_s": statistics.fmean(p.real_jct_s for p in pairs),
        "sim_avg_jct_s": statistics.fmean(p.sim_jct_s for p in pairs),
        "real_ttd_s": run.last_end - run.first_submit,
        "sim_ttd_s": result.summary()["ttd_s"],
        "real_moves": sum(p.real_moves for p in pairs),
        "sim_moves": sum(p.sim_moves for p in pairs),
        "real_rounds": sum(run.first_submit <= r["time"] <= run.last_end for r in run.rounds),
        "sim_rounds": sum(pairs[0].arrival_s <= r.time_s for r in result.rounds),
        "costs": asdict(costs),
        "per_job": [{**asdict(p), "error": p.error} for p in pairs],
    }
