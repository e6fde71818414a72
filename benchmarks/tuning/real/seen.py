"""What a tuner has found so far, and when: the same book for everybody."""

from __future__ import annotations

from typing import Any

from benchmarks.tuning.real.tasks import REPORTS

__all__ = ["Seen"]


class Seen:
    """``target_s``: until the first error as good as the target. ``best``: the least error that any trial has reported,
    first after ``best_s``; ``final``: the least last error of a trial that came to its whole length, first after
    ``final_s``. Seconds since the tuner's start; None: not seen."""

    def __init__(self, target: float) -> None:
        self._target = target
        self.found: dict[str, float | None] = dict.fromkeys(("target_s", "best", "best_s", "final", "final_s"))

    def error(self, error: float, report: int, after_s: float) -> None:
        """A trial's report, from 1; told again it changes nothing."""
        found = self.found
        if error <= self._target and found["target_s"] is None:
            found["target_s"] = after_s
        best, final = found["best"], found["final"]
        if best is None or error < best:
            found |= {"best": error, "best_s": after_s}
        if report >= REPORTS and (final is None or error < final):
            found |= {"final": error, "final_s": after_s}

    @property
    def reached(self) -> bool:
        return self.found["target_s"] is not None

    def result(self, ran_s: float) -> dict[str, Any]:
        """``ran_s``: how long the tuner ran in all."""
        return {**self.found, "ran_s": ran_s}
