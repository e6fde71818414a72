"""What a simulation is measured by. Definitions: docs/simulator.md, "Metrics"."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.simulator.virtual.cluster import Interval
from slurm_hadar.simulator.virtual.forked import ForkedJob
from slurm_hadar.simulator.virtual.jobs import VirtualJob

__all__ = ["JobRow", "busy_seconds", "isolated_s", "job_rows", "percentile"]


@dataclass(frozen=True, slots=True)
class JobRow:
    """One job's fate. Times are seconds on the trace's clock; None = never. ``counted`` says whether it is among the
    jobs that are measured. ``isolated_s`` is its completion time with an equal share, ``rho`` the ratio of the two."""

    job_id: str
    user: str
    account: str
    model: str
    batch: int | None
    gpus: int
    arrival_s: float
    first_start_s: float | None
    completion_s: float | None
    jct_s: float | None
    queueing_s: float | None
    gpu_s: Mapping[str, float]
    steps: float
    deadline_s: float | None
    restarts: int = 0
    moves: int = 0
    preemptions: int = 0
    lost_steps: float = 0.0
    isolated_s: float | None = None
    rho: float | None = None
    counted: bool = True


def percentile(values: Sequence[float], share: float) -> float | None:
    """Linear interpolation between order statistics; None of nothing."""
    return float(np.percentile(values, share * 100)) if len(values) else None


def job_rows(
    jobs: Sequence[VirtualJob | ForkedJob],
    origin: float,
    counted: Iterable[str],
    refused: Iterable[str],
    gpus: Mapping[str, int],
) -> list[JobRow]:
    """One row per job, in order of arrival. ``origin`` is the trace's zero on the virtual clock; ``refused`` jobs were
    shown to no policy and count as nobody's company."""
    ours, out = {*counted}, {*refused}
    crowd = _Crowd([j for j in jobs if j.job_id not in out])
    return [_row(job, origin, job.job_id in ours, crowd, gpus) for job in jobs]


def _row(job: VirtualJob | ForkedJob, origin: float, counted: bool, crowd: _Crowd, gpus: Mapping[str, int]) -> JobRow:
    trace, done = job.trace, job.completion
    jct_s = None if done is None else done - job.arrival
    isolated = None if done is None else isolated_s(job, crowd.mean(job.arrival, done), gpus)
    return JobRow(
        job_id=job.job_id,
        user=trace.user,
        account=trace.account,
        model=trace.model,
        batch=trace.batch,
        gpus=trace.workers,
        arrival_s=trace.arrival_s,
        first_start_s=None if job.first_start is None else job.first_start - origin,
        completion_s=None if done is None else done - origin,
        jct_s=jct_s,
        queueing_s=None if jct_s is None else max(0.0, jct_s - job.held_s),
        gpu_s=dict(job.busy),
        steps=job.total,
        deadline_s=trace.deadline_s,
        restarts=max(0, job.starts - 1),
        moves=job.moves,
        preemptions=job.preemptions,
        lost_steps=job.lost_steps,
        isolated_s=isolated,
        rho=jct_s / isolated if jct_s is not None and isolated else None,
        counted=counted,
    )


class _Crowd:
    """How many jobs were active, as a mean over a span of time."""

    def __init__(self, jobs: Sequence[VirtualJob | ForkedJob]) -> None:
        ends = [j.completion for j in jobs if j.completion is not None]
        times = np.array([j.arrival for j in jobs] + ends)
        steps = np.array([1] * len(jobs) + [-1] * len(ends))
        order = np.argsort(times, kind="stable")
        self._times = times[order]
        self._level = np.cumsum(steps[order]).astype(float)
        self._area = np.concatenate([[0.0], np.cumsum(self._level[:-1] * np.diff(self._times))])

    def mean(self, start: float, end: float) -> float:
        """The time average over ``start`` to ``end``, at least 1: the job itself."""
        if end <= start:
            return 1.0
        return max(1.0, float(self._integral(end) - self._integral(start)) / (end - start))

    def _integral(self, moment: float) -> float:
        at = max(0, int(np.searchsorted(self._times, moment, side="right")) - 1)
        return float(self._area[at] + self._level[at] * (moment - self._times[at]))


def isolated_s(job: VirtualJob | ForkedJob, crowd: float, gpus: Mapping[str, int]) -> float | None:
    """Completion time if the job had one ``crowd``-th of every GPU type, from its arrival on.

    As Themis (NSDI 2020) and Gavel (OSDI 2020) define an equal share: on type r with C_r GPUs, a gang of W has the
    fraction C_r / (W crowd) of the time; fractions that add up to more than 1 are scaled down to 1, since a gang runs
    in one place at a time. A gang larger than C_r has none there. None if it can run nowhere.
    """
    workers = job.trace.workers
    share = {
        t: gpus[t] / (workers * crowd)
        for t, s in job.template.speeds.items()
        if s.steps_per_s > 0 and gpus.get(t, 0) >= workers
    }
    scale = min(1.0, 1.0 / sum(share.values())) if share else 0.0
    rate = sum(job.template.speeds[t].steps_per_s * part * scale for t, part in share.items())
    return job.total / rate if rate > 0 else None


def busy_seconds(intervals: Iterable[Interval]) -> tuple[dict[str, float], float]:
    """GPU-seconds held per type, and node-seconds in which a node has at least one GPU held."""
    by_type: dict[str, float] = {}
    by_node: dict[str, list[tuple[float, float]]] = {}
    for held in intervals:
        span = held.end_s - held.start_s
        by_type[held.gpu_type] = by_type.get(held.gpu_type, 0.0) + held.count * span
        by_node.setdefault(held.node, []).append((held.start_s, held.end_s))
    return by_type, sum(_union(spans) for spans in by_node.values())


def _union(spans: list[tuple[float, float]]) -> float:
    """The length of the union of spans."""
    total, reached = 0.0, -float("inf")
    for start, end in sorted(spans):
        if end > reached:
            total += end - max(start, reached)
            reached = end
    return total
