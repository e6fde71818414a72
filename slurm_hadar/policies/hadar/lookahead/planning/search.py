"""A search for the order, the place and the meantime of each job of a queue, valued by playing it forward.

Prices of a fluid queue know neither gangs nor what a restart costs whom it stops, and act as if everybody could be
stopped again for nothing. A list schedule knows: each plan is played to its end (:class:`Machine`) and is worth the
weighted mean of the completion times. The best of some plain rules and of the last round's plan is improved by random
exchanges. Jobs that are still to come count by what elastic ones take from them, which could do with less; to charge
the others, who cannot, did worse. Our definition.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slurm_hadar.policies.hadar.lookahead.objectives import chance_late, loss_late
from slurm_hadar.policies.hadar.lookahead.outlook import Bools, Floats, Ints, Outlook
from slurm_hadar.policies.hadar.lookahead.planning.schedule import Machine, Plans, Schedules
from slurm_hadar.policies.hadar.lookahead.prices import Target

__all__ = ["MOST_JOBS", "LastPlan", "Problem", "Schedule", "search"]

MOST_JOBS = 512  # to play a plan takes as many steps
_BATCH = 64  # plans that are played at a time
_MOST_BATCHES, _FEWEST_BATCHES = 12, 3
_PER_COLUMN = 2  # as many batches at least: where jobs have gangs of many sizes there is more to look at
_MANY_COLUMNS = 48  # beyond these only columns count that somebody can use: a list of sizes may be as long as it likes
_SOME_JOBS = 64  # so many are changed in as many batches as may be; of more jobs, less is changed
_MOST_IN_ALL = 2048  # orders times columns: where there are no more, all of them are tried
_TIES = 1e-3  # what the mean completion time counts where the makespan alone is the aim
_NEAR = 4  # half of the moves go no further than so many places


@dataclass(frozen=True, slots=True)
class LastPlan:
    """What the round before planned, row by row: the place in the order (-1 for who is new), the column, and that of
    the meantime."""

    place: Ints
    column: Ints
    via: Ints


@dataclass(frozen=True)
class Problem:
    """What is to be planned.

    ``seconds[n, k]``: run time with what it costs to get there; ``column[n]`` and ``key[n]`` as of the look-ahead's
    queues; ``toll[n, k]`` as of :class:`Machine`; ``target``: the makespan aimed at, if one is. A second beyond it
    counts ``frontier`` squared; at 1 nothing else does, but between plans that end at once. ``due_s[n]``: until when
    each job shall end, if deadlines count.
    """

    outlook: Outlook
    seconds: Floats
    weights: Floats
    column: Ints
    key: Floats
    toll: Floats
    target: Target | None
    frontier: float
    due_s: Floats | None = None

    @property
    def risk(self) -> Floats:
        """What it costs to stop each job beside its restart: of an elastic one of unknown length all that it is
        expected to have left, since that may be anything.

        Plans differ in the sizes of all gangs, and hardly in what they come to: who was started by an estimate was
        stopped by its first measurement, for another of whom as little was known. Rigid jobs have few places to differ
        in, and where some are far longer than others it pays to stop who has run for long."""
        outlook = self.outlook
        there_s = outlook.run_s[outlook.rows, outlook.held]
        at_risk = outlook.guessed & (outlook.held >= 0) & np.isfinite(there_s)
        return np.where(at_risk, self.weights * there_s, 0.0)

    def value(self, played: Schedules) -> Floats:
        """What each plan costs, in seconds of the mean completion time."""
        cost: Floats = ((self.weights * played.end_s).sum(axis=1) + played.charge) / len(self.weights)
        if self.due_s is not None:
            late = chance_late(self.outlook, played.end_s, self.due_s)
            cost += loss_late(self.outlook) * (self.weights * late).mean(axis=1)
        if self.target is not None:
            cost *= _TIES if self.frontier == 1.0 else 1.0
            cost += self.frontier**2 * np.maximum(0.0, played.end_s.max(axis=1) - self.target.left_s)
        return cost


@dataclass(frozen=True, slots=True)
class Schedule:
    """The plan that was found. ``place[n]``: of each job in the order; ``column[n]``, ``via[n]``, ``start_s[n]``,
    ``now[n]`` and ``together[n]`` as in :class:`Schedules`."""

    place: Ints
    column: Ints
    via: Ints
    start_s: Floats
    now: Ints
    together: Bools


def search(problem: Problem, last: LastPlan, exchanges: bool) -> Schedule:
    """The best plan found; deterministic. ``exchanges``: whether to look beyond the rules and the last plan, which
    costs ``_BATCH`` plays for each of :func:`_batches`. What is no better than the last plan does not replace it."""
    outlook = problem.outlook
    machine = Machine(outlook, problem.seconds, problem.toll, problem.risk)
    # who cannot be moved once it runs has no meantime
    movable = ~outlook.fixed
    best = _Best(problem, machine, _starts(problem, machine, last, movable))
    if exchanges:
        able = [np.flatnonzero(row).tolist() for row in np.isfinite(problem.seconds)]
        if (every := _every(able)) is not None:
            best.improve(every)
        rng = np.random.default_rng(0)
        used = int(np.isfinite(problem.seconds).any(axis=0).sum())
        for _ in range(_batches(len(able), max(used, min(problem.seconds.shape[1], _MANY_COLUMNS)))):
            plans = best.plan.repeated(0, _BATCH)
            _exchange(plans, able, movable, rng)
            best.improve(plans)
    return best.schedule()


def _batches(jobs: int, columns: int) -> int:
    """The more columns, the more is to be looked at; the more jobs, the longer it takes."""
    most = max(_MOST_BATCHES, _PER_COLUMN * columns)
    return max(_FEWEST_BATCHES, min(most, most * _SOME_JOBS // jobs))


class _Best:
    """The best plan so far, with what it comes to when it is played: places, columns and meantimes as they are."""

    def __init__(self, problem: Problem, machine: Machine, plans: Plans) -> None:
        self._problem, self._machine = problem, machine
        self._cost = np.inf
        self.improve(plans)

    def improve(self, plans: Plans) -> None:
        played = self._machine.play(plans)
        costs = self._problem.value(played)
        at = int((costs > costs.min() * (1 + 1e-9)).argmin())  # the first of those that are as good
        if costs[at] < self._cost * (1 - 1e-6):
            self._cost = float(costs[at])
            self._start_s, self._now, self._together = played.start_s[at], played.now[at], played.together[at]
            # as it came out: rules such as "where it ends first" would be answered anew each round, and differently
            self.plan = Plans(plans.order[at : at + 1], played.column[at : at + 1], played.via[at : at + 1])

    def schedule(self) -> Schedule:
        place = np.empty(self.plan.order.shape[1], int)
        place[self.plan.order[0]] = np.arange(len(place))
        return Schedule(place, self.plan.column[0], self.plan.via[0], self._start_s, self._now, self._together)


def _starts(problem: Problem, machine: Machine, last: LastPlan, movable: Bools) -> Plans:
    """The last round's plan first, with who is new before those that take more GPU time; then plain rules: the order of
    the prices, of least GPU time and of least run time, of who runs, of who is critical; bound to the queues or not; of
    deadlines that can be kept; and of least GPU time past gangs that have to wait."""
    outlook, weights = problem.outlook, problem.weights
    free, held = np.full(len(weights), -1), outlook.held
    area = (problem.seconds * outlook.workers).min(axis=1) / weights
    shortest = problem.seconds.min(axis=1) / weights
    waits = held < 0
    stay = np.where(waits, problem.column, held)
    starts: list[tuple[Ints, Ints, Ints]] = [
        (_by(problem.key), problem.column, held),
        (_by(problem.key), free, held),
        (_by(area), free, held),
        (_by(shortest), free, held),
        (_by(area, waits), free, free),
        (_by(problem.key, waits), stay, free),
        (_by(problem.key), problem.column, free),
        (_by(area), free, free),
        (*machine.backfilled(_by(area)), free),
    ]
    if problem.target is not None:
        key = np.where(problem.target.critical, -problem.target.need_s, problem.key)
        starts.append((_by(key, ~problem.target.critical), problem.column, held))
    if problem.due_s is not None:
        in_time = problem.due_s >= problem.seconds.min(axis=1)
        starts.append((_by(np.where(in_time, problem.due_s, np.inf)), free, held))
    if (last.place >= 0).any():
        starts.insert(0, (_with_new(last.place, area), last.column, last.via))
    order, column, via = (np.array([start[i] for start in starts]) for i in range(3))
    able = np.isfinite(problem.seconds[outlook.rows, column])
    return Plans(order, np.where(able, column, -1), np.where(movable, via, -1))


def _by(key: Floats, first: Bools | None = None) -> Ints:
    return np.argsort(key, kind="stable") if first is None else np.lexsort((key, first))


def _with_new(place: Ints, area: Floats) -> Ints:
    """The rows in the order of the last plan; who is new goes before the first that takes more GPU time."""
    known = np.flatnonzero(place >= 0)
    order: list[int] = known[np.argsort(place[known], kind="stable")].tolist()
    for row in sorted(np.flatnonzero(place < 0).tolist(), key=area.__getitem__):
        order.insert(next((i for i, other in enumerate(order) if area[other] > area[row]), len(order)), row)
    return np.array(order)


def _every(able: Sequence[Sequence[int]]) -> Plans | None:
    """All plans without a meantime, of a very short queue: what is best of them may be many exchanges away."""
    if not 0 < math.factorial(min(len(able), 8)) * math.prod(map(len, able)) <= _MOST_IN_ALL:
        return None
    found = [*itertools.product(itertools.permutations(range(len(able))), itertools.product(*able))]
    order, column = (np.array([plan[i] for plan in found], int) for i in range(2))
    return Plans(order, column, np.full(order.shape, -1))


def _exchange(plans: Plans, able: Sequence[Sequence[int]], movable: Bools, rng: np.random.Generator) -> None:
    """Change each plan at one or two jobs: their place in the order, their column, or that of their meantime."""
    count, jobs = plans.order.shape
    draws: list[list[list[float]]] = rng.random((count, 2, 6)).tolist()
    for c, drawn in enumerate(draws):
        moves = drawn[: 1 + c % 2]
        for kind, which, where, near, to_column, to_via in moves:
            order = plans.order[c]
            at = int(which * jobs)
            job = order[at]
            if kind < 0.2:
                other = int(where * jobs)
                order[at], order[other] = order[other], job
            elif kind < 0.6:
                span = int(where * (2 * _NEAR + 1)) - _NEAR
                _insert(order, at, int(where * jobs) if near < 0.5 else min(jobs - 1, max(0, at + span)))
            options = able[job]
            if 0.45 <= kind < 0.85:
                plans.column[c, job] = _drawn(options, to_column)
            if kind >= 0.75 and movable[job]:
                plans.via[c, job] = _drawn(options, to_via)


def _insert(order: Ints, at: int, to: int) -> None:
    """Take the job at one place and put it in at another."""
    job = order[at]
    if at < to:
        order[at:to] = order[at + 1 : to + 1].copy()
    else:
        order[to + 1 : at + 1] = order[to:at].copy()
    order[to] = job


def _drawn(options: Sequence[int], number: float) -> int:
    """One of the options, or none of them."""
    pick = int(number * (len(options) + 1)) - 1
    return -1 if pick < 0 else options[pick]
