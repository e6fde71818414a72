"""What Slurm refuses again and again: a job is left alone for it, and all writes pause."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping

from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.journal import WriteOutcome
from slurm_hadar.controller.safety.circuit_breaker import CircuitBreaker
from slurm_hadar.controller.safety.quarantine import Quarantine
from slurm_hadar.errors import SlurmRejected

__all__ = ["TOLD", "Refusals"]

log = logging.getLogger(__name__)
#: The step that has failed on a job of which Slurm refuses all.
TOLD = "what Slurm is told of it"
_MOST_IN_A_ROW = 3  # of one job


class Refusals:
    """Counts refusals in a row, by job and by all; ``quarantine`` is where a job goes that has too many."""

    def __init__(self, quarantine: Quarantine) -> None:
        self._quarantine = quarantine
        self._breaker = CircuitBreaker()
        self._by_job: Counter[str] = Counter()

    def circuit_open(self, now: float) -> str:
        """Why nothing is to be written now; empty if it may be."""
        return self._breaker.reason(now)

    def record_round(self, outcome: Outcome, users: Mapping[str, str], now: float, most: int, round_s: float) -> None:
        """``users``: whose each job is. ``most``: so many refusals in a row, of all jobs, are too many."""
        refused = {
            w.job_id: w.detail
            for w in outcome.log
            if w.outcome is WriteOutcome.REFUSED and w.job_id not in outcome.denied
        }
        taken = {w.job_id for w in outcome.log if w.outcome is WriteOutcome.OK}
        self._by_job = Counter({job_id: self._by_job[job_id] + 1 for job_id in refused})
        for job_id, why in refused.items():
            if self._by_job[job_id] >= _MOST_IN_A_ROW:
                self._quarantine.put(job_id, TOLD, SlurmRejected(why))
        by_user = Counter(users[job_id] for job_id in refused if job_id in users)
        self._breaker.record_round(by_user, bool(taken - refused.keys()), most, now, round_s)
        if refused and (why := self._breaker.reason(now)):
            log.warning("%s", why)
