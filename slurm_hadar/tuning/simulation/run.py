"""Play trial groups on a pool of GPUs under a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_hadar.errors import TraceError
from slurm_hadar.tuning.allocation.allocator import Allocator, Form, TuningPolicy
from slurm_hadar.tuning.allocation.pool import GpuType, Limits
from slurm_hadar.tuning.allocation.widths import lower_bound_s
from slurm_hadar.tuning.trials import Trial

__all__ = ["TuningResult", "simulate"]


@dataclass(frozen=True)
class TuningResult:
    """Seconds; ``gpu_use``: share of all GPU time until the end in which a GPU had at least one trial."""

    policy: TuningPolicy
    makespan_s: float
    gpu_use: float
    resizes: int
    lower_bound_s: float

    def summary(self) -> dict[str, float | str]:
        """The figures, as JSON has them."""
        return {"policy": str(self.policy), "makespan_s": self.makespan_s, "gpu_use": self.gpu_use,
                "resizes": self.resizes, "lower_bound_s": self.lower_bound_s}  # fmt: skip


def simulate(
    groups: Sequence[Sequence[Trial]],
    pool: Sequence[GpuType],
    policy: TuningPolicy,
    limits: Limits,
    resize_s: float = 0.0,
    form: Form = Form.LEVEL,
) -> TuningResult:
    """Play the groups, each when the one before is over. ``resize_s``: what a resize costs, during which the trial
    holds its new GPUs and gets nowhere (Fluid's eps)."""
    now_s = busy_s = 0.0
    resizes = 0
    for group in groups:
        run = _Group(group, Allocator(pool, limits, resize_s, policy, form))
        run.play()
        now_s, busy_s, resizes = now_s + run.now_s, busy_s + run.busy_s, resizes + run.resizes
    use = min(1.0, busy_s / (now_s * sum(t.count for t in pool))) if now_s > 0 else 0.0
    bound_s = sum(lower_bound_s(group, pool, limits) for group in groups)
    return TuningResult(policy, now_s, use, resizes, bound_s)


class _Group:
    """One trial group, from its begin to the end of its last trial."""

    def __init__(self, group: Sequence[Trial], allocator: Allocator) -> None:
        self._allocator = allocator
        self._ready_s: dict[str, float] = {}  # until then a trial is being resized
        self.now_s = self.busy_s = 0.0
        self.resizes = 0
        allocator.submit(group, 0.0)

    def play(self) -> None:
        running = self._allocator.running
        self._allocator.start()
        while running:
            before_s, self.now_s = self.now_s, min(self._end_s(name) for name in running)
            self.busy_s += self._allocator.gpus.busy * (self.now_s - before_s)
            for name, run in running.items():
                worked_s = max(0.0, self.now_s - max(before_s, self._ready_s.get(name, 0.0)))
                run.left_s = max(0.0, run.left_s - run.rate * worked_s)
            for name in [name for name in running if self._is_over(name)]:
                self._allocator.leave(name)
            self._allocator.start()
            for run, anew in self._allocator.resize():
                if anew:
                    self._ready_s[run.trial.trial_id] = self.now_s + self._allocator.resize_s
                    self.resizes += 1
        if self._allocator.waiting:
            raise AssertionError("a trial waits although nothing runs")

    def _is_over(self, name: str) -> bool:
        """What is left by rounding counts for nothing; nor does what is too little to move the clock."""
        run = self._allocator.running[name]
        return run.left_s <= 1e-9 * run.trial.budget_s or self._end_s(name) <= self.now_s

    def _end_s(self, name: str) -> float:
        run = self._allocator.running[name]
        if not run.rate:  # with so many GPUs, each of which costs beta more, it is below all numbers
            raise TraceError(f"trial {name} makes no progress at its width with beta {run.trial.beta:g}")
        return max(self.now_s, self._ready_s.get(name, 0.0)) + run.left_s / run.rate
