"""Jobs whose length nobody states: what a predictor expects of them, from those that have ended by then."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from slurm_hadar.predict.history import HistoryJob, Submission, over
from slurm_hadar.predict.online import Online, named
from slurm_hadar.simulator.history import history_of_jobs, submission_of
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces.model import TraceJob
from slurm_hadar.simulator.virtual.jobs import VirtualJob

__all__ = ["Foresight"]

_WEEK_S = 7 * 86400.0


class Foresight:
    """Asks a predictor as jobs arrive, and tells it as they end. What a policy sees of a job are then not its steps but
    the prediction, or neither as long as there is nothing to go by.

    Parameters
    ----------
    name: one that :func:`slurm_hadar.predict.online.named` knows; of those only ``oracle`` and ``noisy`` look at the
        truth. Raises PredictionError for any other.
    jobs: all that will arrive. rates: speeds on the cluster's GPU types. origin: the trace's zero on the clock.
    earlier: jobs of an earlier trace to learn from. Its clock is that of the trace if all of them arrive before the
        first of ``jobs``; else they are taken to have come whole weeks earlier, as few as it takes for that. Those
        that are not over when the first of ``jobs`` arrives teach from their end on.
    """

    def __init__(
        self,
        name: str,
        jobs: Sequence[VirtualJob],
        rates: Rates,
        origin: float,
        seed: int,
        earlier: Iterable[TraceJob] = (),
    ) -> None:
        truth = {job.trace.job_id: job.trace.steps for job in jobs}
        self._online: Online = named(name, truth, seed)
        self._rates, self._origin = rates, origin
        self._asked: dict[str, Submission] = {}
        first = min((job.arrival for job in jobs), default=origin)
        self._to_end = self._online.learn(_before(first, earlier, rates, origin), first)[::-1]

    def arrived(self, job: VirtualJob) -> None:
        """Hide the job's steps and show what is expected of it."""
        self._end_earlier(job.arrival)
        asked = self._asked[job.job_id] = submission_of(job.trace, self._rates, self._origin)
        found = self._online.submitted(asked)
        if found is None:
            job.foresee(None)
        else:
            steps, low, high = (s * job.total / job.trace.steps for s in (found.steps, found.low, found.high))
            job.foresee(steps, (low, high), found.outlives)

    def ended(self, job: VirtualJob) -> None:
        """The job has made its last step."""
        self._end_earlier(job.finish)
        asked = self._asked.pop(job.job_id)
        self._online.ended(over(asked, job.first_start, job.finish, job.trace.steps))

    def _end_earlier(self, now: float) -> None:
        while self._to_end and self._to_end[-1].end < now:
            self._online.ended(self._to_end.pop())


def _before(first: float, earlier: Iterable[TraceJob], rates: Rates, origin: float) -> list[HistoryJob]:
    """Earlier jobs on the clock of those of which the first arrives at ``first``, under ids that none of them has."""
    jobs = tuple(earlier)
    late_s = max((origin + job.arrival_s for job in jobs), default=-math.inf) - first
    back_s = _WEEK_S * (late_s // _WEEK_S + 1) if late_s >= 0 else 0.0
    known = history_of_jobs(jobs, rates, origin - back_s)
    return [replace(job, job_id=f"earlier:{job.job_id}") for job in known]
