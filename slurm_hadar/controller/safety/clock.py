"""Whether this host's clock can be trusted: start times are sent to Slurm as moments of it, and what is written down
goes by it."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from slurm_hadar.errors import SlurmError, SlurmUnavailable
from slurm_hadar.slurm.backend.base import Backend

__all__ = ["ClockSet", "ClockWatch"]

log = logging.getLogger(__name__)
TOLERATED_S = 10.0
ASK_EVERY_S = 600.0


class ClockSet(NamedTuple):
    """By how many seconds the clock was set, and for how many of real time at most it has been so."""

    by_s: float
    within_s: float


class ClockWatch:
    """Compares the clock with slurmctld's, at the start, from time to time, and whenever it has jumped.

    ``scontrol`` turns ``now+720`` into a moment of the clock of the host that it runs on. With a clock an hour ahead
    every lease would last an hour longer, controller or not.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._offset_s: float | None = None  # of the clock against one that never jumps, when it was last found right
        self._before_s: float | None = None  # the same, and not forgotten where it is found wrong
        self._asked = self._looked = 0.0
        self._told = False

    def check(self) -> ClockSet | None:
        """How the clock was set, slurmctld's with it, since it was last found right; None where it was not.

        Raises SlurmError if the clock differs from slurmctld's by more than Slurm's own lag would explain.
        A Slurm that does not tell the time is not asked again until the clock jumps; then what it was before counts.
        """
        now = time.monotonic()
        if not self.jumped and now - self._asked < ASK_EVERY_S:
            self._looked = now
            return None
        ahead = self._ask()
        if ahead is not None and not -TOLERATED_S <= sum(ahead) / 2 <= TOLERATED_S:
            self._offset_s = None
            raise SlurmError(
                f"slurmctld's clock is {sum(ahead) / 2:+.0f} s from this host's, so that start times would be wrong; "
                "nothing is changed until both agree (NTP)"
            )
        by_s = 0.0 if self._before_s is None else _offset_s() - self._before_s
        found = ClockSet(by_s, now - self._looked) if abs(by_s) > TOLERATED_S / 2 else None
        self._offset_s = self._before_s = _offset_s()
        self._asked = self._looked = now
        return found

    def _ask(self) -> tuple[float, float] | None:
        try:
            ahead, why = self._backend.clock_ahead_s(), "sdiag shows no time"
        except SlurmUnavailable:
            raise
        except SlurmError as error:  # sdiag is not installed, or not for this user
            ahead, why = None, str(error)
        if ahead is None and not self._told:
            self._told = True
            log.warning("slurmctld's clock is not known (%s): were this host's wrong, nobody would notice", why)
        return ahead

    @property
    def jumped(self) -> bool:
        """Whether the clock has been set since it was last found right; true before the first look."""
        return self._offset_s is None or abs(_offset_s() - self._offset_s) > TOLERATED_S / 2

    def before_writing(self) -> None:
        """Raises SlurmError if the clock was set in the middle of a round."""
        if self._offset_s is not None and self.jumped:
            raise SlurmError("this host's clock was set just now; what the round still had to do is left to the next")


def _offset_s() -> float:
    return time.time() - time.monotonic()
