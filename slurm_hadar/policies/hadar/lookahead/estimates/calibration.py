"""How far estimates of speeds are to be believed: what measurements have shown of those before.

A queue is ordered by the types on which jobs seem fastest, so what is chosen is what is overestimated most (the
winner's curse). How much of a job's advantage on a type is error can be learned: whenever a job that was started by an
estimate is measured, the estimate's error is held against how far that estimate stood out. Our definition, after the
shrinkage of empirical Bayes (Efron and Morris 1973).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from statistics import median
from typing import Any

from slurm_hadar.model import Job, Placement, Snapshot, Speed

__all__ = ["Calibration"]

_REMEMBERED = 200  # jobs, and errors
_TRUSTED = 5  # so many measurements, each off by as much as its estimate may be, are taken to have found no error
_LEAST, _MOST = 0.02, 0.95  # of the share that is error: less is let be, and no more is believed
_OUTLIER = 3.0  # nothing counts as more than so many times the expected error: a job that lies is one among others
_FITS = 3

_Logs = Mapping[str, float]


@dataclass(frozen=True)
class Calibration:
    """What is remembered of speeds, as natural logarithms.

    ``seen[job][type]``: the speeds of the last jobs, as they were known last. ``started[job]``: of jobs that run by an
    estimate, (type, how far it stood out, the estimate, its relative error). ``errors``: of those that were measured,
    (how far it stood out, measured less estimated, relative error).
    """

    seen: Mapping[str, _Logs] = field(default_factory=dict)
    started: Mapping[str, tuple[str, float, float, float]] = field(default_factory=dict)
    errors: Sequence[tuple[float, float, float]] = ()

    @classmethod
    def of(cls, snapshot: Snapshot) -> Calibration:
        """With what the memory of the round before says."""
        memory: Mapping[str, Any] = snapshot.memory.get("speeds", {})
        started = {job_id: tuple(row) for job_id, row in memory.get("started", {}).items()}
        errors = [tuple(row) for row in memory.get("errors", ())]
        for job_id, (gpu_type, apart, guess, error) in started.items():
            job = snapshot.job.get(job_id)
            speed = None if job is None else job.speeds.get(gpu_type)
            if speed is not None and speed.measured and speed.steps_per_s > 0:
                off = math.log(speed.steps_per_s) - guess
                errors.append((_within(apart, error), _within(off, error), error))
        seen = dict(memory.get("seen", {}))
        newest = islice((j for j in reversed(snapshot.steerable_jobs) if _compares(j)), _REMEMBERED)
        for job in reversed([*newest]):
            seen.pop(job.job_id, None)
            seen[job.job_id] = _logs(job)
        return cls(dict([*seen.items()][-_REMEMBERED:]), started, errors[-_REMEMBERED:])

    @cached_property
    def noise(self) -> float:
        """The share of what stands out that is error, from 0 to 1: the slope of the errors over it, least squares."""
        prior = _TRUSTED * sum(error**2 for *_, error in self.errors) / max(1, len(self.errors))
        slope = -sum(apart * found for apart, found, _ in self.errors)
        return min(_MOST, max(0.0, slope / max(1e-12, prior + sum(apart**2 for apart, *_ in self.errors))))

    @cached_property
    def usual(self) -> _Logs:
        """How much faster than on the others jobs are on each type: the median over the jobs, each of which has a level
        of its own."""
        usual = dict.fromkeys(sorted({t for logs in self.seen.values() for t in logs}), 0.0)
        for _ in range(_FITS):
            found: dict[str, list[float]] = {t: [] for t in usual}
            for logs in self.seen.values():
                apart = _apart(logs, usual)
                for gpu_type, value in apart.items():
                    found[gpu_type].append(value + usual[gpu_type])
            usual = {t: median(values) for t, values in found.items()}
        return usual

    def corrected(self, snapshot: Snapshot) -> Snapshot:
        """With the estimates as they are to be believed; measured speeds stay as they are."""
        if self.noise < _LEAST:
            return snapshot
        return snapshot.with_jobs([self._corrected(job) for job in snapshot.jobs])

    def _corrected(self, job: Job) -> Job:
        """Each speed goes towards what is usual on its type for a job of this level, as far as it is uncertain."""
        errors = [error for speed in job.speeds.values() if (error := _error(speed)) > 0]
        if not errors or not _compares(job) or not job.steerable:
            return job
        true = _mean([e * e for e in errors]) * (1 / self.noise - 1)  # how much jobs really differ, a variance
        apart = _apart(_logs(job), self.usual)
        trust = {t: 1 / (true + _error(job.speeds[t]) ** 2) for t in apart}
        level = sum(trust[t] * apart[t] for t in apart) / sum(trust.values())
        kept = {t: math.exp((level - apart[t]) * (1 - true * trust[t])) for t in apart}

        def at(speeds: Mapping[str, Speed]) -> Mapping[str, Speed]:
            return {
                t: s if s.measured else replace(s, steps_per_s=s.steps_per_s * kept.get(t, 1.0))
                for t, s in speeds.items()
            }

        return replace(job, speeds=at(job.speeds), scaled={n: at(speeds) for n, speeds in job.scaled.items()})

    def memory(self, snapshot: Snapshot, placements: Mapping[str, Placement]) -> dict[str, Any]:
        """For the next round. ``snapshot``: as it was before it was corrected; ``placements``: who runs from now on."""
        started: dict[str, tuple[str, float, float, float]] = {}
        for job_id, placement in placements.items():
            if len(started) == _REMEMBERED:
                break
            job, types = snapshot.job[job_id], placement.by_type
            if len(types) == 1 and _compares(job):
                (gpu_type,), logs = types, _logs(job)
                if gpu_type in logs and (error := _error(job.speeds[gpu_type])) > 0:
                    started[job_id] = (gpu_type, _apart(logs, self.usual)[gpu_type], logs[gpu_type], error)
        return {"speeds": {"seen": self.seen, "started": started, "errors": self.errors}}


def _compares(job: Job) -> bool:
    """Whether speeds above 0 are known of it on several types."""
    return sum(speed.steps_per_s > 0 for speed in job.speeds.values()) > 1


def _logs(job: Job) -> _Logs:
    return {t: math.log(speed.steps_per_s) for t, speed in job.speeds.items() if speed.steps_per_s > 0}


def _apart(logs: _Logs, usual: _Logs) -> dict[str, float]:
    """How far the speed on each type stands out from what is usual, for a job that is as fast as this on average."""
    apart = {t: x - usual.get(t, 0.0) for t, x in logs.items()}
    level = _mean([*apart.values()])
    return {t: x - level for t, x in apart.items()}


def _error(speed: Speed) -> float:
    """The relative error of an estimate; 0 of what is measured, or of which nothing is known."""
    return 0.0 if speed.measured else speed.error or 0.0


def _within(value: float, error: float) -> float:
    return min(_OUTLIER * error, max(-_OUTLIER * error, value))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
