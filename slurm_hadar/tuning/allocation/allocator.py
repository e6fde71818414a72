"""Who of a trial group has which GPUs, and who changes: the one decision of the executor and of the simulator.

A clock and the trials' progress are the caller's. It says what comes and goes, and how much is left of each trial; the
answers are starts and resizes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction

from slurm_hadar.tuning.allocation.dispatch import dispatch
from slurm_hadar.tuning.allocation.gpus import Gpus, Place
from slurm_hadar.tuning.allocation.pool import GpuType, Limits, fastest_first
from slurm_hadar.tuning.allocation.resize import grow, shrink
from slurm_hadar.tuning.allocation.widths import Grant, Level, static_widths, water_level, within
from slurm_hadar.tuning.trials import Trial, height

__all__ = ["Allocator", "Form", "Running", "TuningPolicy"]

_LEAST_S = 1e-9  # is left of one that has not ended: its GPU is not free yet


class TuningPolicy(StrEnum):
    """``fluid``: widths by water-filling, and again whenever GPUs come free that nobody waits for. ``static``: without
    the second. ``one_each``: a GPU for each trial, in the order given. ``packed``: as many trials on each GPU as go."""

    FLUID = "fluid"
    STATIC = "static"
    ONE_EACH = "one_each"
    PACKED = "packed"

    @property
    def plain(self) -> bool:
        """Whether it asks nothing of the trials."""
        return self in (TuningPolicy.ONE_EACH, TuningPolicy.PACKED)


class Form(StrEnum):
    """Whose widths: ``level`` is ours (:func:`water_level`), ``paper`` as printed, blind to GPU types."""

    LEVEL = "level"
    PAPER = "paper"


@dataclass
class Running:
    """A trial with GPUs. ``left_s``: of its budget, at width 1 on the fastest type."""

    trial: Trial
    left_s: float
    grant: Grant
    speed: float

    @property
    def rate(self) -> float:
        """Seconds of its budget in a second."""
        return rate_at(self.trial, self.grant.width, self.speed)


def rate_at(trial: Trial, width: Fraction, speed: float) -> float:
    """Seconds of a trial's budget in a second, on a type of this speed."""
    return speed * trial.budget_s / height(trial, width)


class Allocator:
    """``resize_s``: what a resize costs (Fluid's eps); a change that leaves a trial where it is costs nothing, since a
    GPU that it shares is shared by turns."""

    def __init__(
        self, pool: Sequence[GpuType], limits: Limits, resize_s: float = 0.0,
        policy: TuningPolicy = TuningPolicy.FLUID, form: Form = Form.LEVEL,
    ) -> None:  # fmt: skip
        self.pool, self.limits, self.resize_s, self.policy, self.form = pool, limits, resize_s, policy, form
        self.gpus = Gpus(pool, limits.packed)
        self.running: dict[str, Running] = {}
        self.waiting: list[tuple[Trial, Grant | None]] = []
        self._speed = {t.name: t.speed for t in pool}
        self._part = Fraction(1)  # of a GPU, for those who wait for any

    def submit(self, trials: Sequence[Trial], now_s: float, deadline_s: float | None = None) -> None:
        """These wait from now on, beside those that do already: with what each would be given, in the order in which
        they start. Of one that waits already more is known now. With a deadline (of the caller's clock) those come
        first that can end by then."""
        everyone = list({trial.trial_id: trial for trial in (*(t for t, _ in self.waiting), *trials)}.values())
        if self.policy.plain:
            self.waiting = [(trial, None) for trial in everyone]
            return
        runs = list(self.running.values())
        left = [*((r.trial, r.left_s) for r in runs), *((t, t.budget_s) for t in everyone)]
        wanted = self._wanted(left, None if deadline_s is None else deadline_s - now_s).grants[len(runs) :]
        order = sorted(range(len(everyone)), key=lambda n: (wanted[n] is None, -everyone[n].budget_s))
        self.waiting = [(everyone[n], wanted[n]) for n in order]

    def pack_no_more_than(self, trials: int) -> None:
        """From now on no more trials come onto one GPU; who shares one already goes on."""
        self.limits = replace(self.limits, packed=min(trials, self.limits.packed))
        self.gpus.packed = self.limits.packed

    def change_pool(self, pool: Sequence[GpuType]) -> list[str]:
        """Other GPUs from now on: the trials whose GPUs are not there any more, which have none now."""
        before = {t.name: t.count for t in self.pool}
        kept = {t.name for t in pool if before.get(t.name) == t.count}
        lost = [name for name, run in self.running.items() if run.grant.gpu_type not in kept]
        for name in lost:
            self.leave(name)
        self.pool = pool
        self.gpus.change(pool, kept)
        self._speed = {t.name: t.speed for t in pool}
        for run in self.running.values():
            run.speed = self._speed[run.grant.gpu_type]
        return lost

    def withdraw(self, trial_id: str) -> None:
        """A trial waits no more."""
        self.waiting = [(trial, grant) for trial, grant in self.waiting if trial.trial_id != trial_id]

    def leave(self, trial_id: str) -> None:
        """A trial has ended; its GPUs are free."""
        self.running.pop(trial_id, None)
        self.gpus.leave(trial_id)

    def start(self) -> list[Running]:
        """Who waits and fits starts, in order; who does not fit is overtaken. Who waits for any part of a GPU starts
        where it ends first, and goes on waiting if that is not free yet."""
        waiting, started = list[tuple[Trial, Grant | None]](), list[Running]()
        if not self.gpus.has_room:  # of thousands that wait few start at a time
            return started
        anywhere = {} if self.policy.plain else self._dispatched()
        for number, (trial, grant) in enumerate(self.waiting):
            places = anywhere.get(trial.trial_id) or self._places(trial, grant)
            found = next((g for g in places if self.gpus.take(trial.trial_id, g)), None)
            if found is None:
                waiting.append((trial, grant))
                continue
            run = Running(trial, trial.budget_s, found, self._speed[found.gpu_type])
            self.running[trial.trial_id] = run
            started.append(run)
            if not self.gpus.has_room:
                waiting += self.waiting[number + 1 :]
                break
        self.waiting = waiting
        return started

    def _dispatched(self) -> dict[str, list[Grant]]:
        """Where those that wait for any part of a GPU are to start now. GPUs that are granted to others that wait count
        as theirs already."""
        anyone = [trial for trial, grant in self.waiting if grant is None]
        if not anyone:
            return {}
        types, parts = fastest_first(self.pool), min(round(1 / self._part), self.limits.packed)
        held: dict[str, list[float]] = {t.name: [] for t in types}
        own = [(t, t.budget_s, g) for t, g in self.waiting if g is not None and g.gpu_type in held]
        for trial, left_s, grant in (*((r.trial, r.left_s, r.grant) for r in self.running.values()), *own):
            busy_s = left_s / rate_at(trial, grant.width, self._speed[grant.gpu_type])
            held[grant.gpu_type] += [max(busy_s, _LEAST_S)] * max(1, round(grant.width * parts))
        free_in_s = [[*[0.0] * (t.count * parts - len(held[t.name])), *held[t.name]] for t in types]
        small_s = (height(trial, self._part) for trial in anyone)
        chosen = dispatch(small_s, [t.speed for t in types], free_in_s)
        return {anyone[number].trial_id: [Grant(types[n].name, self._part)] for number, n in chosen.items()}

    def resize(self, fixed: Collection[str] = ()) -> list[tuple[Running, bool]]:
        """DynamicFluid: widths for all that is left, on all GPUs; narrower ones first, which make room. Those that were
        changed, and whether they must be started anew for it; ``fixed`` ones stay as they are."""
        if self.waiting or self.policy is not TuningPolicy.FLUID:
            return []
        runs = list(self.running.values())
        wanted = self._wanted([(r.trial, r.left_s) for r in runs]).grants
        changes = sorted(
            zip(runs, wanted, strict=True), key=lambda c: (c[1] is None or c[1].width >= c[0].grant.width, -c[0].left_s)
        )
        changed = []
        for run, grant in changes:
            if run.trial.trial_id in fixed:
                continue
            for place in self._places(run.trial, grant) if grant is not None else []:
                if place != run.grant and (moved := self._moved(run, place)) is not None:
                    changed.append((run, moved))
                    break
        return changed

    def _wanted(self, trials: Sequence[tuple[Trial, float]], within_s: float | None = None) -> Level:
        """By the form, of trials with what is left of their budgets; the paper's names a width only."""
        left = [replace(t, budget_s=max(left_s, _LEAST_S)) for t, left_s in trials]
        if self.form is Form.LEVEL:
            resize_s = float("inf") if self.policy is TuningPolicy.STATIC else self.resize_s
            if within_s is None:
                level = water_level(left, self.pool, self.limits, resize_s)
            else:
                level = within(left, self.pool, self.limits, within_s, resize_s)
            self._part = level.part
            return level
        widths = static_widths([t.budget_s for t in left], sum(t.count for t in self.pool), self.limits)
        return Level(tuple(Grant("", width) for width in widths))

    def _places(self, trial: Trial, grant: Grant | None) -> list[Grant]:
        """Where a trial may start, best first: what it was granted, or else as much of a type that is as fast, such as
        another node's; the type-blind take the types as they come, and no more GPUs than a type has."""
        if grant is not None and grant.gpu_type:
            speed = self._speed[grant.gpu_type]
            alike = (t.name for t in self.pool if t.speed == speed and t.name != grant.gpu_type)
            return [grant, *(Grant(name, grant.width) for name in alike)]
        if grant is None and not self.policy.plain:
            return []
        least = Fraction(1, self.limits.packed) if self.policy is TuningPolicy.PACKED else Fraction(1)
        width = least if grant is None else grant.width
        return [Grant(t.name, _taking(trial, min(width, Fraction(t.count)))) for t in self.pool if t.count]

    def _pays(self, run: Running, grant: Grant, cost_s: float) -> bool:
        """By both tests of the paper, and for one that gives GPUs away ours: that it does not become the last to end,
        since nobody waits for what it gives."""
        speed = self._speed[grant.gpu_type]
        now_s, then_s = (run.left_s / rate for rate in (run.rate, rate_at(run.trial, grant.width, speed)))
        if then_s < now_s:
            return grow(now_s, then_s, cost_s)
        last_s = max(other.left_s / other.rate for other in self.running.values())
        return (
            grant.width < run.grant.width
            and then_s + cost_s <= last_s
            and shrink(now_s, then_s, cost_s, float(run.grant.width) * run.speed, float(grant.width) * speed)
        )

    def _moved(self, run: Running, grant: Grant) -> bool | None:
        """Give it that, if there is room and it pays: whether it must be started anew; None if it stays as it was."""
        name, before = run.trial.trial_id, self.gpus.places(run.trial.trial_id)
        self.gpus.leave(name)
        taken = self.gpus.take(name, grant, before)
        in_place = taken and in_place_change(run.grant, grant, before, self.gpus.places(name))
        if not taken or not self._pays(run, grant, 0.0 if in_place else self.resize_s):
            self.gpus.leave(name)
            if not self.gpus.take(name, run.grant, before):
                raise AssertionError("a trial's own GPUs cannot be taken while it changes them")
            return None
        run.grant, run.speed = grant, self._speed[grant.gpu_type]
        return not in_place


def _taking(trial: Trial, width: Fraction) -> Fraction:
    """The most GPUs up to ``width`` that it can have."""
    while not trial.takes(width):
        width -= 1
    return width


def in_place_change(before: Grant, after: Grant, before_at: tuple[Place, ...], after_at: tuple[Place, ...]) -> bool:
    """Whether a trial can go on as it runs: on the GPU that it is on, with others beside it or without."""
    return before.width <= 1 and after.width <= 1 and before_at == after_at
