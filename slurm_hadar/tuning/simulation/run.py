"""Play trial groups on a pool of GPUs under a policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction

from slurm_hadar.tuning.pool import GpuType, Limits, fastest_first
from slurm_hadar.tuning.resize import grow, shrink
from slurm_hadar.tuning.simulation.gpus import Gpus
from slurm_hadar.tuning.trials import Trial, height
from slurm_hadar.tuning.widths import Grant, Level, static_widths, water_level

__all__ = ["Form", "TuningPolicy", "TuningResult", "lower_bound_s", "simulate"]


class TuningPolicy(StrEnum):
    """``fluid``: widths by water-filling, and again whenever GPUs come free that nobody waits for. ``static``: without
    the second. ``one_each``: a GPU for each trial, in the order given. ``packed``: as many trials on each GPU as go."""

    FLUID = "fluid"
    STATIC = "static"
    ONE_EACH = "one_each"
    PACKED = "packed"


class Form(StrEnum):
    """Whose widths: ``level`` is ours (:func:`water_level`), ``paper`` as printed, blind to GPU types."""

    LEVEL = "level"
    PAPER = "paper"


@dataclass(frozen=True)
class TuningResult:
    """Seconds; ``gpu_use``: share of all GPU time until the end in which a GPU had at least one trial."""

    policy: TuningPolicy
    makespan_s: float
    gpu_use: float
    resizes: int
    lower_bound_s: float

    def summary(self) -> dict[str, float | str]:
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
        run = _Group(group, pool, policy, limits, resize_s, form)
        run.play()
        now_s, busy_s, resizes = now_s + run.now_s, busy_s + run.busy_s, resizes + run.resizes
    use = busy_s / (now_s * sum(t.count for t in pool)) if now_s > 0 else 0.0
    bound_s = sum(lower_bound_s(group, pool, limits) for group in groups)
    return TuningResult(policy, now_s, use, resizes, bound_s)


def lower_bound_s(trials: Sequence[Trial], pool: Sequence[GpuType], limits: Limits) -> float:
    """No schedule of one group ends sooner: the longest trial at its best, and all work at its cheapest on all GPUs."""
    widths = _widths(pool, limits)
    capacity = sum(t.count * t.speed for t in pool)
    fastest = max(t.speed for t in pool)
    longest_s = max(min(height(t, w) for w in widths) for t in trials)
    work_s = sum(min(float(w) * height(t, w) for w in widths) for t in trials)
    return max(longest_s / fastest, work_s / capacity)


def _widths(pool: Sequence[GpuType], limits: Limits) -> list[Fraction]:
    widest = min(limits.widest, max(t.count for t in pool))
    return [*(Fraction(1, p) for p in range(limits.packed, 1, -1)), *map(Fraction, range(1, widest + 1))]


@dataclass
class _Running:
    trial: Trial
    left_s: float  # of its budget
    grant: Grant
    speed: float
    ready_s: float

    @property
    def rate(self) -> float:
        """Seconds of its budget in a second."""
        return _rate(self.trial, self.grant.width, self.speed)

    @property
    def end_s(self) -> float:
        return self.ready_s + self.left_s / self.rate

    def move_on(self, before_s: float, now_s: float) -> None:
        self.left_s = max(0.0, self.left_s - self.rate * max(0.0, now_s - max(before_s, self.ready_s)))
        self.ready_s = max(self.ready_s, now_s)


def _rate(trial: Trial, width: Fraction, speed: float) -> float:
    return speed * trial.budget_s / height(trial, width)


class _Group:
    """One trial group, from its begin to the end of its last trial."""

    def __init__(
        self, group: Sequence[Trial], pool: Sequence[GpuType], policy: TuningPolicy, limits: Limits, resize_s: float,
        form: Form,
    ) -> None:  # fmt: skip
        self._pool, self._policy, self._limits, self._resize_s, self._form = pool, policy, limits, resize_s, form
        self._speed = {t.name: t.speed for t in pool}
        self._gpus = Gpus(pool, limits.packed)
        self._running: dict[str, _Running] = {}
        self._waiting: list[tuple[Trial, Grant | None]] = []
        self.now_s = self.busy_s = 0.0
        self.resizes, self._level, self._level_end_s = 0, Level(()), 0.0
        self._submit(group)

    def play(self) -> None:
        self._start()
        while self._running:
            before_s, self.now_s = self.now_s, min(r.end_s for r in self._running.values())
            self.busy_s += self._gpus.busy * (self.now_s - before_s)
            for running in self._running.values():
                running.move_on(before_s, self.now_s)
            for trial_id in [i for i, r in self._running.items() if r.left_s <= 1e-9 * r.trial.budget_s]:
                del self._running[trial_id]
                self._gpus.leave(trial_id)
            self._start()
            if self._policy is TuningPolicy.FLUID and not self._waiting:
                self._resize()

    def _submit(self, group: Sequence[Trial]) -> None:
        """With what each trial would be given, in the order in which they start."""
        if self._policy in (TuningPolicy.ONE_EACH, TuningPolicy.PACKED):
            self._waiting = [(trial, None) for trial in group]
            return
        wanted = self._wanted([(t, t.budget_s) for t in group]).grants
        order = sorted(range(len(group)), key=lambda n: (wanted[n] is None, -group[n].budget_s))
        self._waiting = [(group[n], wanted[n]) for n in order]

    def _wanted(self, trials: Sequence[tuple[Trial, float]]) -> Level:
        """By the policy's form, of trials with what is left of their budgets; the paper's names a width only."""
        left = [Trial(t.trial_id, max(left_s, 1e-9), t.alpha, t.beta) for t, left_s in trials]
        if self._form is Form.LEVEL:
            self._level = water_level(left, self._pool, self._limits)
            self._level_end_s = self.now_s + self._level.end_s
            return self._level
        widths = static_widths([t.budget_s for t in left], sum(t.count for t in self._pool), self._limits)
        return Level(tuple(Grant("", width) for width in widths))

    def _start(self) -> None:
        """Who waits and fits starts, in order; who does not fit is overtaken."""
        waiting = []
        for trial, grant in self._waiting:
            found = next((g for g in self._places(trial, grant) if self._gpus.take(trial.trial_id, g)), None)
            if found is None:
                waiting.append((trial, grant))
                continue
            speed = self._speed[found.gpu_type]
            self._running[trial.trial_id] = _Running(trial, trial.budget_s, found, speed, self.now_s)
        self._waiting = waiting

    def _places(self, trial: Trial, grant: Grant | None) -> list[Grant]:
        """Where a trial may start, best first: what it was granted; the type-blind take the types as they come, and no
        more GPUs than a type has."""
        if grant is not None and grant.gpu_type:
            return [grant]
        if grant is None and self._policy not in (TuningPolicy.ONE_EACH, TuningPolicy.PACKED):
            part, left_s = self._level.part, self._level_end_s - self.now_s
            fastest, *others = fastest_first(self._pool)
            fit = [t for t in others if trial.budget_s / _rate(trial, part, t.speed) <= left_s]
            return [Grant(t.name, part) for t in (fastest, *fit)]
        least = Fraction(1, self._limits.packed) if self._policy is TuningPolicy.PACKED else Fraction(1)
        width = least if grant is None else grant.width
        return [Grant(t.name, min(width, Fraction(t.count))) for t in self._pool if t.count]

    def _resize(self) -> None:
        """DynamicFluid: widths for all that is left, on all GPUs; narrower ones first, which make room."""
        runs = list(self._running.values())
        wanted = self._wanted([(r.trial, r.left_s) for r in runs]).grants
        changes = sorted(
            zip(runs, wanted, strict=True), key=lambda c: (c[1] is None or c[1].width >= c[0].grant.width, -c[0].left_s)
        )
        for run, grant in changes:
            for place in self._places(run.trial, grant) if grant is not None else []:
                if place != run.grant and self._pays(run, place) and self._moved(run, place):
                    break

    def _pays(self, run: _Running, grant: Grant) -> bool:
        speed = self._speed[grant.gpu_type]
        now_s, then_s = (run.left_s / rate for rate in (run.rate, _rate(run.trial, grant.width, speed)))
        if then_s < now_s:
            return grow(now_s, then_s, self._resize_s)
        return grant.width < run.grant.width and shrink(
            now_s, then_s, self._resize_s, float(run.grant.width) * run.speed, float(grant.width) * speed
        )

    def _moved(self, run: _Running, grant: Grant) -> bool:
        """Whether there was room."""
        name = run.trial.trial_id
        self._gpus.leave(name)
        if not self._gpus.take(name, grant):
            if not self._gpus.take(name, run.grant):
                raise AssertionError("a trial's own GPUs cannot be taken while it changes them")
            return False
        run.grant, run.speed, run.ready_s = grant, self._speed[grant.gpu_type], self.now_s + self._resize_s
        self.resizes += 1
        return True
