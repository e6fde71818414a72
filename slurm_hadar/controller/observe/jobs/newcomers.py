"""Jobs that are submitted between two rounds bring the next one forward."""

from __future__ import annotations

import logging

from slurm_hadar.comment import is_ours
from slurm_hadar.errors import SlurmError
from slurm_hadar.slurm.backend.base import Backend

__all__ = ["Newcomers"]

log = logging.getLogger(__name__)
_MOST = 16  # jobs that are looked at one by one: among more one of ours is likely


class Newcomers:
    """Asks Slurm for the number of its next job, which costs the same however long the queue is, and looks only at the
    jobs that came since. Slurm gives numbers to the tasks of an array when they start: those are no newcomers."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._next: int | None = None

    def begin(self) -> None:
        """A round is about to read the queue."""
        try:
            self._next = self._backend.next_job_id()
        except SlurmError:  # the round meets it too, and tells
            self._next = None

    def come(self) -> bool:
        """Whether a job with a ``hadar:`` comment was submitted since. Where Slurm does not answer nobody has come, and
        it is not asked again before the next round."""
        if self._next is None:
            return False
        try:
            first, self._next = self._next, self._backend.next_job_id()
            if self._next is None or first == self._next:
                return False
            if not 0 < self._next - first <= _MOST:  # numbers begin anew after MaxJobId
                return True
            return any(is_ours(comment) for comment in self._backend.comments_since(first, self._next))
        except SlurmError as error:
            log.debug("new jobs are noticed by the next round only: %s", error)
            self._next = None
            return False
