"""Jobs whose length nobody states: what a predictor expects of them, from those that have ended by then."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_hadar.predict.history import Submission, over
from slurm_hadar.predict.online import Online, named
from slurm_hadar.simulator.history import submission_of
from slurm_hadar.simulator.jobs import VirtualJob
from slurm_hadar.simulator.throughputs import Rates

__all__ = ["Foresight"]


class Foresight:
    """Asks a predictor as jobs arrive, and tells it as they end. What a policy sees of a job are then not its steps but
    the prediction, or neither as long as there is nothing to go by.

    ``name`` is one that :func:`slurm_hadar.predict.online.named` knows; of those only ``oracle`` and ``noisy`` look at
    the truth. Raises PredictionError for any other.
    """

    def __init__(self, name: str, jobs: Iterable[VirtualJob], rates: Rates, origin: float, seed: int) -> None:
        truth = {job.trace.job_id: job.trace.steps for job in jobs}
        self._online: Online = named(name, truth, seed)
        self._rates, self._origin = rates, origin
        self._asked: dict[str, Submission] = {}

    def arrived(self, job: VirtualJob) -> None:
        """Hide the job's steps and show what is expected of it."""
        asked = self._asked[job.job_id] = submission_of(job.trace, self._rates, self._origin)
        found = self._online.submitted(asked)
        job.foresee(None if found is None else found.size * job.total / job.trace.steps)

    def ended(self, job: VirtualJob) -> None:
        """The job has made its last step."""
        asked = self._asked.pop(job.job_id)
        self._online.ended(over(asked, job.first_start, job.finish, job.trace.steps))
