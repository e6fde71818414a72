"""The circuit breaker: no writes for a while after Slurm has refused too many; what is wrong then is wrong with the
controller."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

__all__ = ["CircuitBreaker"]

_LONGEST_S = 3600.0


class CircuitBreaker:
    """Counts refusals in a row. After too many nothing is written for a round, and for twice as long each further time;
    then the next round tries again, since nobody may be there to start the controller anew.

    What Slurm refuses of one user's jobs only may be that user's doing: it holds the others up for a round at a time.
    """

    def __init__(self) -> None:
        self._by_user: Counter[str] = Counter()
        self._until = 0.0
        self._pause_s = 0.0

    def record_round(self, refused: Mapping[str, int], accepted: bool, most: int, now: float, round_s: float) -> None:
        """A round that has acted had so many refusals, by user, and whether Slurm took anything in it. ``most`` in a
        row are too many."""
        if accepted or not refused:
            self._by_user.clear()
            self._pause_s = 0.0
            return
        self._by_user.update(refused)
        if self._by_user.total() >= most:
            again = self._pause_s > 0 and len(self._by_user) > 1
            self._pause_s = min(_LONGEST_S, 2 * self._pause_s) if again else round_s
            self._until = now + self._pause_s

    def reason(self, now: float) -> str:
        """Why nothing is to be written now; empty if it may be."""
        if now >= self._until:
            return ""
        return (
            f"acts again in {self._until - now:.0f} s: {self._by_user.total()} writes in a row were refused "
            "(guard.max_failed_writes); see the warnings above"
        )
