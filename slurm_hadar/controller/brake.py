"""Acting no more for a while after Slurm has refused too much: what is wrong then is wrong with the controller."""

from __future__ import annotations

__all__ = ["Brake"]

_LONGEST_S = 3600.0


class Brake:
    """Counts refusals in a row. After too many nothing is written for a round, and for twice as long each further time;
    then the next round tries again, since nobody may be there to start the controller anew."""

    def __init__(self) -> None:
        self._in_a_row = 0
        self._until = 0.0
        self._pause_s = 0.0

    def note(self, refused: int, most: int, now: float, round_s: float) -> None:
        """A round that has acted had so many refusals, where ``most`` in a row are too many."""
        if not refused:
            self._in_a_row, self._pause_s = 0, 0.0
            return
        self._in_a_row += refused
        if self._in_a_row >= most:
            self._pause_s = min(_LONGEST_S, 2 * self._pause_s if self._pause_s else round_s)
            self._until = now + self._pause_s

    def reason(self, now: float) -> str:
        """Why nothing is to be written now; empty if it may be."""
        if now >= self._until:
            return ""
        return (
            f"acts again in {self._until - now:.0f} s: {self._in_a_row} writes in a row were refused "
            "(guard.max_failed_writes); see the warnings above"
        )
