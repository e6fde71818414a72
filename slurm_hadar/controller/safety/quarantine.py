"""Each job is its own failure domain: a job that a step of the controller fails on is left alone for growing times."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from slurm_hadar.errors import whereabouts

__all__ = ["UNFORESEEN", "Quarantine"]

log = logging.getLogger(__name__)
#: What a defect raises, as opposed to our own errors, and to what ends the process.
UNFORESEEN = (
    ArithmeticError, AssertionError, AttributeError, LookupError, OSError, RuntimeError, TypeError, ValueError
)  # fmt: skip
_FIRST_S, _LONGEST_S = 60.0, 6 * 3600.0


@dataclass
class _Stay:
    step: str
    error: str
    until: float
    wait_s: float


class Quarantine:
    """Who is left alone, why, and until when; forgotten with the job, or when the controller is started again."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._stays: dict[str, _Stay] = {}
        #: Failures since the start, for the metrics.
        self.failures = 0

    @property
    def jobs(self) -> int:
        """How many jobs are left alone now."""
        now = self._now()
        return sum(1 for stay in self._stays.values() if stay.until > now)

    @contextlib.contextmanager
    def over(self, job_id: str, step: str) -> Iterator[None]:
        """Around a step that concerns one job: whatever goes wrong in it is that job's alone. What concerns everybody
        (the journal, Slurm) is raised."""
        try:
            yield
        except UNFORESEEN as error:
            self.put(job_id, step, error)

    def put(self, job_id: str, step: str, error: BaseException) -> None:
        """Leave the job alone, for twice as long as the last time."""
        old = self._stays.get(job_id)
        wait_s = _FIRST_S if old is None else min(_LONGEST_S, 2 * old.wait_s)
        what = f"{type(error).__name__}: {error}"[:300]
        self._stays[job_id] = _Stay(step, what, self._now() + wait_s, wait_s)
        self.failures += 1
        log.error(
            "job %s is left alone for %.0f s: %s failed on it (%s%s)",
            job_id,
            wait_s,
            step,
            what,
            f" at {whereabouts(error)}" if error.__traceback__ else "",
            extra={"event": "quarantine", "job_id": job_id},
        )

    def reason(self, job_id: str) -> str | None:
        """Why the job is left alone now; None if it is not."""
        stay = self._stay(job_id)
        if stay is None:
            return None
        left_s = stay.until - self._now()
        return f"{stay.step} failed on it ({stay.error}); it is left to Slurm for another {left_s:.0f} s"

    def step(self, job_id: str) -> str:
        """What failed on the job, if it is left alone now; "" if it is not."""
        stay = self._stay(job_id)
        return "" if stay is None else stay.step

    def _stay(self, job_id: str) -> _Stay | None:
        stay = self._stays.get(job_id)
        return None if stay is None or stay.until <= self._now() else stay

    def keep(self, job_ids: Collection[str]) -> None:
        """Forget all others."""
        if self._stays:
            self._stays = {job_id: stay for job_id, stay in self._stays.items() if job_id in job_ids}
