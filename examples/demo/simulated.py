"""The demo's queue in the simulator: what it says of this run, and of jobs drawn with other seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import median
from typing import Any

from examples.demo.jobs import FASTEST_STEPS_PER_S, NODES, SEED, DemoJob, draw_jobs
from examples.demo.record import JobTrack, RunRecord
from slurm_hadar.cluster.emulation import document
from slurm_hadar.cluster.spec import parse_nodes
from slurm_hadar.config import Config
from slurm_hadar.controller.cluster import asked_every_s
from slurm_hadar.controller.steering.writes import RESTART_GAP_S
from slurm_hadar.policies import registry
from slurm_hadar.runtime.emulation import emulated_steps_per_s
from slurm_hadar.simulator.outcome.result import SimResult
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.throughput.table import reference

__all__ = ["Simulated", "gang_speeds", "simulated", "trace_of"]

OTHER_SEEDS = (SEED + 1, SEED + 2, SEED + 3)
_POLICY = {"stock": "slurm", "hadar": "hadar"}
FIGURES = ("avg_jct_s", "ttd_s")


@dataclass(frozen=True)
class Simulated:
    """What the simulator says, with starts that take ``start_s``.

    ``ratios``: of the demo's queue and of three draws with other seeds, how many times shorter Hadar makes each of
    :data:`FIGURES` than Slurm alone. ``off``: of each run, by how much of itself a job's completion time differs from
    that in a simulation in which each job's start takes as long as it did, the median over its jobs.
    """

    start_s: float
    ratios: tuple[dict[str, float], ...]
    off: dict[str, float]


def simulated(records: Sequence[RunRecord], config: Config) -> Simulated:
    """The runs of :func:`examples.demo.jobs.draw_jobs` with :data:`SEED`, stock Slurm's and Hadar's, beside what was to
    be expected. A start is taken to take as long as the median of those that the controller was told of."""
    start_s = median(t.start_s for r in records for t in r.jobs.values() if t.start_s is not None)
    draws = []
    for seed in (SEED, *OTHER_SEEDS):
        trace = trace_of(draw_jobs(seed), start_s)
        draws.append({name: _played(trace, policy, config, start_s) for name, policy in _POLICY.items()})
    ratios = [{key: d["stock"].summary()[key] / d["hadar"].summary()[key] for key in FIGURES} for d in draws]
    return Simulated(start_s, tuple(ratios), {r.policy: _off(r, config, start_s) for r in records})


def _off(record: RunRecord, config: Config, start_s: float) -> float:
    tracks = {t.name: t for t in record.jobs.values()}
    drawn = trace_of(draw_jobs(SEED), start_s)
    played = _played(
        replace(drawn, jobs=tuple(_as_run(job, tracks[job.job_id], record) for job in drawn.jobs)),
        _POLICY[record.policy],
        config,
        start_s,
    )
    return median(abs((job.jct_s or 0.0) - tracks[job.job_id].jct_s) / tracks[job.job_id].jct_s for job in played.jobs)


def _as_run(job: TraceJob, track: JobTrack, record: RunRecord) -> TraceJob:
    """As it came, and with the start that it had: what it ran without making steps. Of a job that was moved that is
    not known."""
    job = replace(job, arrival_s=track.submit_s)
    if len(track.stints) != 1 or track.end_s is None:
        return job
    (stint,) = track.stints
    gpu_type, _ = record.nodes[stint.nodes[0]]
    start_s = max(0.0, track.end_s - stint.start_s - job.steps / job.steps_per_s[gpu_type])
    return replace(job, start_s=start_s, restart_s=start_s + RESTART_GAP_S)


def gang_speeds(
    nodes: str, fastest_steps_per_s: float, model: str, batch: int | None, workers: int
) -> dict[str, float]:
    """Steps per second of a gang on one node, by GPU type, as a private cluster of these nodes emulates them."""
    cluster = _emulated(nodes, fastest_steps_per_s)
    return {
        next(iter(gpus)): emulated_steps_per_s(cluster, node, workers, False, model, batch)
        for node, gpus in cluster["nodes"].items()
    }


@cache
def _emulated(nodes: str, fastest_steps_per_s: float) -> dict[str, Any]:
    return document("demo", parse_nodes(nodes), fastest_steps_per_s, reference())


def trace_of(jobs: Sequence[DemoJob], start_s: float) -> Trace:
    """The jobs with the speeds that they have on the private cluster, and starts that take ``start_s``."""
    return Trace("demo", "drawn", tuple(_trace_job(job, start_s) for job in jobs))


def _played(trace: Trace, policy: str, config: Config, start_s: float) -> SimResult:
    controller = config.controller
    options = SimOptions(
        NODES,
        round_s=controller.round_s,
        event_round_s=controller.event_round_s,
        asked_s=asked_every_s(controller.event_round_s),
        report_s=start_s,
        guard=config.guard,
    )
    return simulate(trace, registry.get(policy), options)


def _trace_job(job: DemoJob, start_s: float) -> TraceJob:
    speeds = gang_speeds(NODES, FASTEST_STEPS_PER_S, job.model, job.batch, job.workers)
    return TraceJob(
        job.name, job.arrival_s, job.model, job.batch, job.workers, job.steps,
        nodes=(1, 1), steps_per_s=speeds, start_s=start_s, restart_s=start_s + RESTART_GAP_S,
    )  # fmt: skip
