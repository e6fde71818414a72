"""How fast a trial goes, and how much is left of it: pure book-keeping over what its process tells."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Meter"]

_LEAST_STEPS = 5
_LEAST_S = 1.0
_WARM_STEPS = 3  # the first ones of a stretch, which other things hold up


@dataclass
class Meter:
    """Steps are those of the training loop where the process tells of it, and reports where it does not.

    A *stretch* is a time in which nothing changes beside the trial: neither its width nor who shares its GPU.
    ``rates`` has the latest steps per second by (width, trials on the GPU).
    """

    steps: int = 0
    total: int | None = None
    resumable: bool = False
    batch: int = 0  # the global one, which it keeps with any number of GPUs; 0: it does not
    counted: bool = False  # by the loop
    report_step: int = 0
    steps_at_report: int = 0
    rates: dict[tuple[int, int], float] = field(default_factory=dict)
    _key: tuple[int, int] | None = None
    _first: int | None = None  # steps at the stretch's beginning
    _since: tuple[float, int] | None = None

    def stretch(self, key: tuple[int, int] | None) -> None:
        """From now on the trial has so many GPUs and shares them so; None: it does not run."""
        if key != self._key:
            self._key, self._first, self._since = key, None, None
            if key is None:
                self.counted = self.counted and self.total is not None

    def beat(self, steps: int, total: int, resumable: bool, batch: int, now_s: float) -> None:
        """What the loop tells of itself."""
        self.counted, self.resumable, self.batch = True, resumable, batch
        self.total = total if total > 0 else None
        self._count(steps, now_s)

    def reported(self, step: int, now_s: float) -> None:
        """The objective has reported an intermediate value."""
        if step > self.report_step:
            if not self.counted:
                self._count(step, now_s)
            self.report_step, self.steps_at_report = step, self.steps

    def _count(self, steps: int, now_s: float) -> None:
        if self._key is None:
            return
        self.steps = steps
        if self._first is None or steps < self._first:
            self._first, self._since = steps, None
        if self._since is None:
            if steps - self._first >= (_WARM_STEPS if self.counted else 0):
                self._since = (now_s, steps)
            return
        began_s, began = self._since
        if now_s - began_s >= _LEAST_S and steps - began >= (_LEAST_STEPS if self.counted else 1):
            self.rates[self._key] = (steps - began) / (now_s - began_s)

    @property
    def rate(self) -> float | None:
        """Of the present stretch; None until it is known."""
        return None if self._key is None else self.rates.get(self._key)

    def whole(self, until: int | None) -> int | None:
        """Steps from the very first one to the report of step ``until``, or to the loop's end."""
        left = self.left(until)
        return None if left is None else self.steps + left

    def left(self, until: int | None) -> int | None:
        """Steps to the report of step ``until``, or to the loop's end; None where nothing says."""
        to_end = None if self.total is None else max(0, self.total - self.steps)
        if until is None:
            return to_end
        if self.report_step <= 0:
            return to_end
        per_report = self.steps_at_report / self.report_step
        to_rung = max(0, round((until - self.report_step) * per_report) - (self.steps - self.steps_at_report))
        return to_rung if to_end is None else min(to_rung, to_end)
