"""Best-effort writes to the journal: what cannot be written costs knowledge, never a round."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from slurm_hadar.errors import StoreError

__all__ = ["BestEffort"]

log = logging.getLogger(__name__)
_REMIND_S = 3600.0


class BestEffort:
    """Turns a StoreError that passes into a loud line and a count: ``with best_effort(): journal.save_jobs(...)``.

    For what may be written later: a disk that is full must not end the controller, which has it in memory too. What is
    to be done to Slurm is another matter: it is not done unless it could be written down. ``fault`` says what is
    wrong; empty after everything of a round could be written.
    """

    def __init__(self) -> None:
        self.failures = 0
        self.fault = ""
        self._now = ""
        self._said = 0.0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            if not error.passes:
                raise
            self.failures += 1
            self._now = str(error)
            if not self.fault or time.monotonic() - self._said > _REMIND_S:
                self._said = time.monotonic()
                log.error(
                    "JOURNAL NOT WRITTEN: %s; nothing is done to Slurm until it can be",
                    error,
                    extra={"event": "journal"},
                )
            self.fault = str(error)

    def round_over(self) -> None:
        """A round is over; if all of it could be kept, all is well again."""
        if self.fault and not self._now:
            log.warning("the journal is written again")
            self.fault = ""
        self._now = ""
