"""Tiresias: least attained service in discrete queues, without any knowledge of speeds or lengths."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from slurm_hadar.errors import ConfigError
from slurm_hadar.model import Job, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.plan_builder import PlanBuilder

__all__ = ["Tiresias"]


@dataclass(frozen=True)
class _Standing:
    """Where a job stands: its queue, since when it is there, the attained service that does not count any more because
    it was promoted, and since when it waits (None if it runs)."""

    queue: int
    entered: float
    forgiven_s: float
    waits_since: float | None


@dataclass(frozen=True)
class Tiresias(Policy):
    """Discretised two-dimensional least attained service (Gu et al., NSDI 2019).

    A job starts in the first of several queues and sinks into the next when the GPU-seconds it has attained pass a
    threshold. Earlier queues go first; inside a queue, who entered it first. Jobs are preempted for those before them.
    It knows neither speeds nor lengths, so it takes the GPU type of which most are free (our choice: Tiresias has but
    one).

    Parameters
    ----------
    thresholds: GPU-seconds at which a job leaves the first, second, ... queue, ascending, separated by commas. The
        default is 1, 10 and 100 GPU-hours (our choice; the authors' simulator has 3250,7200, for traces of shorter
        jobs).
    starvation: a job that waits this many times as long as it has run since it was last promoted goes back to the first
        queue and starts counting anew; 0 never. (The authors' PROMOTEKNOB; off by default as there.)
    consolidate_below: the profile-based placement: gangs that on several nodes run at less than this factor of their
        speed wait for as few nodes as their form allows; 0 spreads any gang where it has to.

    Complexity: O(jobs * types * nodes log nodes).
    """

    name: ClassVar[str] = "tiresias"

    thresholds: str = "3600,36000,360000"
    starvation: float = 0.0
    consolidate_below: float = 0.0

    def __post_init__(self) -> None:
        _thresholds(self.thresholds)
        self.require_at_least(starvation=0, consolidate_below=0)

    def allocate(self, snapshot: Snapshot) -> Plan:
        """The plan for the coming round."""
        builder = PlanBuilder(Arena.of(snapshot))
        limits = _thresholds(self.thresholds)
        remembered = snapshot.memory.get("standings", {})
        standings = {
            job.job_id: self._standing(job, remembered.get(job.job_id), limits, snapshot.time)
            for job in builder.arena.movers
        }

        def rank(job: Job) -> tuple[int, float, float, str]:
            standing = standings[job.job_id]
            return standing.queue, standing.entered, job.arrival, job.job_id

        for job in sorted(builder.arena.movers, key=rank):
            if not builder.keep(job):
                self._place(builder, job)
        memory = {
            "standings": {
                job_id: [s.queue, s.entered, s.forgiven_s, s.waits_since] for job_id, s in sorted(standings.items())
            }
        }
        return builder.plan(self.name, lambda job: _why(standings[job.job_id], len(limits) + 1), memory=memory)

    def _standing(self, job: Job, before: list[Any] | None, limits: list[float], now: float) -> _Standing:
        """The standing now; ``before`` is the remembered one. If it is lost, only promotions and turns are."""
        known = _Standing(*before) if before else _Standing(0, job.arrival, 0.0, None)
        served_s = max(0.0, job.attained_s - known.forgiven_s)
        queue = max(known.queue, bisect_right(limits, served_s))
        entered = known.entered if queue == known.queue or before is None else now
        since = None if job.running else (now if known.waits_since is None else known.waits_since)
        waited_s = 0.0 if since is None else now - since
        ran_s = served_s / job.form.workers if job.form.workers else 0.0
        if self.starvation and queue and waited_s >= self.starvation * ran_s:
            return _Standing(0, now, job.attained_s, now)
        return _Standing(queue, entered, known.forgiven_s, since)

    def _place(self, builder: PlanBuilder, job: Job) -> None:
        tight = self._tight(job)
        if tight is not job and not builder.rates(tight):
            tight = job
        kinds = sorted(builder.rates(tight), key=lambda t: -builder.ledger.by_type[t])
        if not any(builder.place(tight, gpu_type) for gpu_type in kinds):
            builder.place_mixed(tight)

    def _tight(self, job: Job) -> Job:
        """The job with a form that allows no more nodes than needed, if spreading would slow it down too much."""
        worst = min((s.factor(max(2, job.form.max_nodes)) for s in job.speeds.values()), default=1.0)
        if worst >= self.consolidate_below or job.form.max_nodes == job.form.min_nodes:
            return job
        return replace(job, form=replace(job.form, max_nodes=job.form.min_nodes))


def _thresholds(text: str) -> list[float]:
    try:
        limits = [float(part) for part in text.split(",")]
    except ValueError:
        limits = []
    if not limits or limits != sorted(set(limits)) or limits[0] <= 0 or not math.isfinite(limits[-1]):
        raise ConfigError(f"policy tiresias: thresholds={text!r} must be ascending GPU-seconds such as 3250,7200")
    return limits


def _why(standing: _Standing, queues: int) -> Wait:
    return Wait(Tier.POLICY, f"is in queue {standing.queue + 1} of {queues}, behind jobs that have had less GPU time")
