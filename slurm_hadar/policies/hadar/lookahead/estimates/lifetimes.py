"""How long a job is of whose length nobody knows: what those tell that were there before."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

from slurm_hadar.model import Job

__all__ = ["Lifetimes", "ends_s"]

_REMEMBERED = 200


@dataclass(frozen=True)
class Lifetimes:
    """Of the jobs of unknown length: how long those were that have ended, and how long those have been that are there,
    in seconds on their best GPU type. ``assumed_s`` is what is assumed before anything is known."""

    assumed_s: float
    ended_s: Sequence[float] = ()
    lives_s: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, jobs: Iterable[Job], memory: Mapping[str, Any], assumed_s: float) -> Lifetimes:
        """With what the memory of the round before says of jobs that are gone."""
        there = {job.job_id: job for job in jobs}
        gone = (life_s for job_id, life_s in memory.get("lives", {}).items() if job_id not in there and life_s > 0)
        lives_s = {i: _life_s(job) for i, job in there.items() if job.unknown_length and job.steerable}
        return cls(assumed_s, [*memory.get("ended", ()), *gone][-_REMEMBERED:], lives_s)

    def memory(self) -> dict[str, Any]:
        """For the next round."""
        return {"lives": dict(self.lives_s), "ended": list(self.ended_s)}

    def left_s(self, life_s: float) -> float:
        """What is expected to remain, at least a second.

        The time that all jobs spent beyond this age over the number that ended beyond it: the maximum-likelihood mean
        of what is left, if from here on jobs end at a constant rate, and fair to those that have not ended yet. One end
        more is assumed: after ``assumed_s`` at the beginning, later on after that estimate or the job's age if that is
        more, since who is old among few is expected to be as long again. Our definition, after the total time on test
        (Epstein and Sobel 1953).
        """
        return max(1.0, self._born_s if life_s <= 0 else self._mean(life_s, max(self._born_s, life_s)))

    def steps_to_go(self, job: Job, best_rate: float) -> float:
        """:meth:`Job.steps_to_go` with this expectation; of who cannot be moved, the mean of what is predicted."""
        unknown_s = self.left_s(_life_s(job)) if job.unknown_length else self.assumed_s
        return job.steps_to_go(best_rate, unknown_s, mean=job.unmovable is not None)

    @cached_property
    def _born_s(self) -> float:
        """What is expected of a job that has not run yet, as most of a long queue."""
        return self._mean(0.0, self.assumed_s)

    @cached_property
    def _ended(self) -> _Ages:
        return _Ages(self.ended_s)

    @cached_property
    def _there(self) -> _Ages:
        return _Ages(self.lives_s.values())

    def _mean(self, age_s: float, assumed_s: float) -> float:
        ended, ended_s = self._ended.beyond(age_s)
        _, there_s = self._there.beyond(age_s)
        return (assumed_s + ended_s + there_s) / (1 + ended)


def ends_s(left_s: Sequence[float]) -> list[float]:
    """When jobs of unknown length end, the first, the second, ..., of which each is expected to take so many seconds
    more, ascending.

    If each ends at a constant rate, the first of m ends after the m-th part of what one takes on average, the next
    after the (m-1)-th part more, and so on (order statistics of the exponential distribution, Renyi 1953). As many
    GPU-seconds are told of as without that where all are expected to take as long.
    """
    parts = accumulate(1.0 / (len(left_s) - ended) for ended in range(len(left_s)))
    return [seconds * part for seconds, part in zip(left_s, parts, strict=True)]


class _Ages:
    """Sorted once, asked for many jobs: a queue may have a hundred thousand."""

    def __init__(self, ages_s: Iterable[float]) -> None:
        self._sorted = sorted(ages_s)
        self._sums = list(accumulate(reversed(self._sorted), initial=0.0))

    def beyond(self, age_s: float) -> tuple[int, float]:
        """(how many are older, how many seconds older they are in all)."""
        older = len(self._sorted) - bisect_right(self._sorted, age_s)
        return older, max(0.0, self._sums[older] - older * age_s)


def _life_s(job: Job) -> float:
    """How long the job has been, on its best type; by the clock if it counts no steps."""
    best = job.best_rate()
    if job.done_steps > 0 and best > 0:
        return job.done_steps / best
    return job.attained_s / max(1, job.form.workers)
