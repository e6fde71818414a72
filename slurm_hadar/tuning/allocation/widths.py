"""How wide the trials of a group shall be, so that the last of them ends as soon as possible. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from heapq import heapify, heappop, heappush

import numpy as np

from slurm_hadar.tuning.allocation.dispatch import placed
from slurm_hadar.tuning.allocation.pool import GpuType, Limits, fastest_first
from slurm_hadar.tuning.trials import Trial, height, heights, packing_limit

__all__ = ["Grant", "Level", "lower_bound_s", "static_widths", "water_level", "within"]

_PRECISION = 1e-3  # of the level
_SLACK = 1.1  # who ends so much above the level on a slow type starts there: the level counts on no gaps


@dataclass(frozen=True, slots=True)
class Grant:
    """GPUs of one type: ``width`` of them, or a part of one."""

    gpu_type: str
    width: Fraction


@dataclass(frozen=True, slots=True)
class Level:
    """What each trial starts with, None for those that wait for a place: longest first, ``part`` of a GPU of any type.
    All end within about ``end_s`` from the moment of the decision."""

    grants: tuple[Grant | None, ...]
    end_s: float = 0.0
    part: Fraction = Fraction(1)


def static_widths(budgets_s: Sequence[float], gpus: int, limits: Limits) -> list[Fraction]:
    """The widths of StaticFluid as the paper prints it (Fluid, section 4.2.1, algorithm 1), which knows neither
    overheads nor GPU types: ``min(max(floor(h_i / sum h * n), 1/c), d)``, in the order given."""
    total_s = sum(budgets_s)
    least = Fraction(1, limits.packed)
    return [min(max(Fraction(int(b / total_s * gpus + 1e-9)), least), Fraction(limits.widest)) for b in budgets_s]


def water_level(trials: Sequence[Trial], pool: Sequence[GpuType], limits: Limits, resize_s: float = 0.0) -> Level:
    """The widths with which the last trial ends as soon as possible.

    The lowest level (seconds) is sought at which the least that each trial needs to end by then fits into the pool at
    once; trials that end in time on a part of a GPU may also do so one after the other. So GPUs go to the long trials,
    fast ones first, and what a floor would leave idle is used. What is still free goes to those that would end last.
    Larger parts, too, as long as the group is estimated to end sooner by them: how many share a GPU is judged by the
    group's mean alone, while few trials need few parts, and one may be slowed more than the rest. Whole GPUs alone only
    where another width takes longer (``resize_s``) than all of it: else who has a part gets the whole GPU later.
    Our definition, of Fluid's water-filling with its overheads and GPUs of unlike speed. O(n + GPUs) for each level.
    """
    types = fastest_first(pool)
    if not trials or not types:
        return Level((None,) * len(trials))
    problem = _Problem(trials, types, limits)
    wide, level_s = problem.best()
    end_s = problem.end_s(wide, reused=True)
    for packed in range(problem.packed - 1, 0 if resize_s >= end_s else 1, -1):
        larger = _Problem(trials, types, replace(limits, packed=packed))
        other, other_s = larger.best()
        ends_s = larger.end_s(other, reused=True)
        if ends_s > end_s:
            break
        if ends_s < end_s:
            problem, wide, level_s, end_s = larger, other, other_s, ends_s
    return Level(tuple(problem.grants(wide, level_s)), level_s, problem.widths[0])


def within(
    trials: Sequence[Trial], pool: Sequence[GpuType], limits: Limits, deadline_s: float, resize_s: float = 0.0
) -> Level:
    """As :func:`water_level` for a group that ends after ``deadline_s``, whatever has not ended by then: where not all
    can end by it, the shortest that can are placed as a group of their own, and the others wait for what they leave.

    The number of those is found by bisection: with one trial more a group ends no sooner. Our definition.
    """
    order = sorted(range(len(trials)), key=lambda n: trials[n].budget_s)

    def of_shortest(count: int) -> Level:
        return water_level([trials[n] for n in order[:count]], pool, limits, resize_s)

    low, high = 1, len(trials)
    while low < high:
        middle = (low + high + 1) // 2
        if of_shortest(middle).end_s <= deadline_s:
            low = middle
        else:
            high = middle - 1
    found = of_shortest(low)
    grants: list[Grant | None] = [None] * len(trials)
    for n, grant in zip(order, found.grants, strict=False):
        grants[n] = grant
    return Level(tuple(grants), found.end_s, found.part)


def lower_bound_s(trials: Sequence[Trial], pool: Sequence[GpuType], limits: Limits) -> float:
    """No schedule of one group ends sooner: the longest trial at its best, and all work at its cheapest on all GPUs."""
    widths = _widths(pool, limits)
    capacity = sum(t.count * t.speed for t in pool)
    fastest = max(t.speed for t in pool)
    longest_s = max(min(height(t, w) for w in widths if t.takes(w)) for t in trials)
    work_s = sum(min(float(w) * height(t, w) for w in widths if t.takes(w)) for t in trials)
    return max(longest_s / fastest, work_s / capacity)


def _widths(pool: Sequence[GpuType], limits: Limits) -> list[Fraction]:
    widest = min(limits.widest, max(t.count for t in pool))
    return [*(Fraction(1, p) for p in range(limits.packed, 1, -1)), *map(Fraction, range(1, widest + 1))]


class _Problem:
    """``seconds[n, k, t]``: run time of trial n at the k-th of ``widths`` on type t."""

    def __init__(self, trials: Sequence[Trial], types: Sequence[GpuType], limits: Limits) -> None:
        self.types = types
        self.counts = [t.count for t in types]
        widest = min(limits.widest, max(self.counts))
        budgets, alphas, betas = (np.array([getattr(t, f) for t in trials]) for f in ("budget_s", "alpha", "beta"))
        alpha = float(alphas.mean())  # trials of a group are taken to be alike in this
        self.packed = packing_limit([alpha**p for p in range(limits.packed)])
        whole = list(map(Fraction, range(1, widest + 1)))
        self.first_whole = int(self.packed > 1)
        self.widths = [Fraction(1, self.packed)] * self.first_whole + whole
        self.gpus = list(map(int, self.widths))  # whole ones
        own = np.stack([heights(budgets, alphas, betas, w) for w in self.widths], axis=1)
        if any(t.batch is not None for t in trials):
            own[~np.array([[t.takes(w) for w in self.widths] for t in trials])] = np.inf
        self.order = np.argsort(-own[:, 0], kind="stable")
        self.seconds = own[:, :, None] / np.array([t.speed for t in types])
        self.small_s = own[:, 0]
        area = (own * np.array([float(w) for w in self.widths])).min(axis=1)
        capacity = float(sum(t.count * t.speed for t in types))
        self.lower_s = max(float(self.seconds.min(axis=(1, 2)).max()), float(area.sum()) / capacity)
        self.upper_s = max(float(self.seconds[:, 0].sum(axis=0).min()), self.lower_s)

    @property
    def slots(self) -> int:
        """Parts of GPUs, where a GPU has as many as pay."""
        return sum(self.counts) * round(1 / self.widths[0])

    def best(self) -> tuple[dict[int, tuple[int, int]], float]:
        """The lowest level, one after the other or all at once, whichever is estimated to end sooner."""
        wide, level_s = self.lowest(at_once=False)
        if len(self.small_s) <= self.slots:  # where all can start at once, that may end sooner than some after others
            other, other_s = self.lowest(at_once=True)
            if self.end_s(other) < self.end_s(wide):
                return other, other_s
        return wide, level_s

    def lowest(self, at_once: bool) -> tuple[dict[int, tuple[int, int]], float]:
        """The lowest level, and what :meth:`fit` gives for it."""
        low, high = self.lower_s, self.upper_s
        best = self.fit(high, at_once)
        while high > low * (1 + _PRECISION):
            middle = (low * high) ** 0.5
            found = self.fit(middle, at_once)
            if found is None:
                low = middle
            else:
                best, high = found, middle
        return best or {}, high

    def end_s(self, wide: Mapping[int, tuple[int, int]], reused: bool = False) -> float:
        """When the last trial ends if the others are put on what ``wide`` leaves, longest first, each where it ends
        first: an estimate, since nobody is resized. ``reused``: and on what those of ``wide`` have had."""
        left = list(self.counts)
        for k, t in wide.values():
            left[t] -= self.gpus[k]
        parts = round(1 / self.widths[0])
        free_in_s = [[0.0] * (count * parts) for count in left]
        for n, (k, t) in wide.items() if reused else ():
            free_in_s[t] += [float(self.seconds[n, k, t])] * (self.gpus[k] * parts)
        ends_s = [float(self.seconds[n, k, t]) for n, (k, t) in wide.items()]
        small = [n for n in self.order.tolist() if n not in wide]
        if small and not any(free_in_s):
            return float("inf")
        ends_s += [end_s for _, end_s, _ in placed(self.seconds[small, 0].tolist(), free_in_s)]
        return max(ends_s, default=0.0)

    def fit(self, level_s: float, at_once: bool) -> dict[int, tuple[int, int]] | None:
        """(width, type) of the trials that have whole GPUs: those that do not end by the level on a part of the
        fastest type, and the longest others for which too few parts of fast GPUs are left; None where it is too low."""
        left = list(self.counts)
        wide: dict[int, tuple[int, int]] = {}
        for n in self.order.tolist():
            if self.seconds[n, 0, 0] <= level_s and self._rest_fits(level_s, left, wide, at_once):
                return wide
            choice = self._cheapest(n, level_s, left)
            if choice is None:
                return None
            wide[n] = choice
            left[choice[1]] -= self.gpus[choice[0]]
        return wide

    def _cheapest(self, trial: int, level_s: float, left: Sequence[int]) -> tuple[int, int] | None:
        """The least in units of speed with which a trial ends by the level on whole GPUs."""
        best: tuple[float, int, int] | None = None
        for t in range(len(self.types)):
            fitting = np.flatnonzero(self.seconds[trial, self.first_whole :, t] <= level_s) + self.first_whole
            if len(fitting) and self.widths[fitting[0]] <= left[t]:
                cost = float(self.widths[fitting[0]]) * self.types[t].speed
                if best is None or cost < best[0]:
                    best = (cost, int(fitting[0]), t)
        return best and (best[1], best[2])

    def _rest_fits(self, level_s: float, left: Sequence[int], wide: dict[int, tuple[int, int]], at_once: bool) -> bool:
        """Whether what is left holds the work of the small trials, each on the types that are fast enough for it;
        ``at_once``: a part for each of them."""
        small = np.ones(len(self.small_s), bool)
        small[list(wide)] = False
        per_gpu = 1 / float(self.widths[0])
        each = np.ones_like(self.small_s) if at_once else self.small_s
        worth = [1.0 if at_once else t.speed * level_s for t in self.types]
        room = np.cumsum([count * per_gpu * w for count, w in zip(left, worth, strict=True)])
        for t in range(len(self.types)):
            bound = small if t == len(self.types) - 1 else small & (self.seconds[:, 0, t + 1] > level_s)
            if each[bound].sum() > room[t] * (1 + 1e-9):
                return False
        return True

    def grants(self, wide: dict[int, tuple[int, int]], level_s: float) -> list[Grant | None]:
        """The wide ones as they were fitted in; the others, longest first, have a part of what is left, the fastest
        first, or whole GPUs where they end in time on these alone."""
        chosen = dict(wide)
        parts = round(1 / self.widths[0])
        slots = [count * parts for count in self.counts]
        for k, t in wide.values():
            slots[t] -= self.gpus[k] * parts
        for n in (n for n in self.order.tolist() if n not in wide):
            choice = next(((0, t) for t, free in enumerate(slots) if free and self._may(n, t, level_s)), None)
            if choice is None and max(slots) >= parts and len(self.small_s) <= self.slots:
                choice = self._cheapest(n, level_s, [free // parts for free in slots])
            if choice is not None:
                chosen[n] = choice
                slots[choice[1]] -= round(self.widths[choice[0]] * parts)
        if len(chosen) == len(self.small_s):
            self._hand_out(chosen)
        granted = {n: Grant(self.types[t].name, self.widths[k]) for n, (k, t) in chosen.items()}
        return [granted.get(n) for n in range(len(self.small_s))]

    def _may(self, trial: int, gpu_type: int, level_s: float) -> bool:
        """Whether a trial may have a part of a GPU of the type."""
        return gpu_type == 0 or bool(self.seconds[trial, 0, gpu_type] <= level_s * _SLACK)

    def _hand_out(self, chosen: dict[int, tuple[int, int]]) -> None:
        """GPUs that nobody has go to who would end last, as long as he gains by another one."""
        whole, parts = ([0] * len(self.types) for _ in range(2))
        for k, t in chosen.values():
            whole[t] += self.gpus[k]
            parts[t] += k < self.first_whole
        queue = [(-self.seconds[n, k, t], at, n) for at, (n, (k, t)) in enumerate(chosen.items())]
        heapify(queue)
        while queue:
            _, at, last = heappop(queue)
            k, t = chosen[last]
            part = k < self.first_whole
            free = self.counts[t] - (whole[t] - self.gpus[k]) - -(-(parts[t] - part) // self.packed)
            wider = np.flatnonzero(self.seconds[last, k + 1 :, t] < self.seconds[last, k, t]) + k + 1
            if len(wider) and self.gpus[wider[0]] <= free:
                chosen[last] = (int(wider[0]), t)
                whole[t] += self.gpus[wider[0]] - self.gpus[k]
                parts[t] -= part
                heappush(queue, (-self.seconds[last, wider[0], t], at, last))
