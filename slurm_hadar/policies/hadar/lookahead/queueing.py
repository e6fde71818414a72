"""Which job waits for which column: weights, costs of getting there, the memory of rounds before, the makespan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from slurm_hadar.policies.hadar.lookahead import arrivals
from slurm_hadar.policies.hadar.lookahead.makespan import shadow_prices
from slurm_hadar.policies.hadar.lookahead.objectives import delay_costs, due_s, hastened
from slurm_hadar.policies.hadar.lookahead.outlook import Floats, Ints, Outlook
from slurm_hadar.policies.hadar.lookahead.overdue import Patience
from slurm_hadar.policies.hadar.lookahead.planning.search import MOST_JOBS, LastPlan, Problem, Schedule, search
from slurm_hadar.policies.hadar.lookahead.prices import (
    Aim,
    Queues,
    Target,
    as_planned,
    assign,
    balance,
    per_pool,
    set_target,
)
from slurm_hadar.policies.hadar.lookahead.rules import Rules

__all__ = ["Queueing", "queue_up"]

_BALANCING = 3
_MANY = 10_000  # with so many jobs one step of balancing a round is enough
# what it would cost to stop every job once, of the run times, from which on plans are better than prices: in a short
# queue, there with another aim than average completion, and in one of up to MOST_JOBS, which holds enough jobs for the
# fluid to be true where they can be stopped
_SHORT, _DEAR, _NOT_CHEAP, _VERY_DEAR = 64, 0.01, 0.1, 0.3
_IN_STEP = 0.5  # the frontier from which on prices keep jobs in step
_FEW_GANGS = 5.0  # of the middle size: a pool that holds fewer is no fluid


@dataclass(frozen=True)
class Queueing:
    """The jobs in their queues.

    ``outlook``: where jobs that cannot be moved again wait for a faster type, without the columns that they refuse;
    ``patient`` are the rows of those, ``first`` those of jobs that have waited so long that they go before all others,
    in this order. ``weights[n]``: what a second of delay costs. ``target``: the makespan aimed at, None where none is.
    ``memory``: for the next round. ``still``: this is the instant of the last round, and nothing else decides, so what
    runs is what the last plan said; ``settled``: nor did a job come or go, and what that plan left free stays free.
    ``schedule``: the plan that the search has found, None where there was none; ``queues`` then have its columns and
    turns, with the prices of before it, and ``told`` are those that follow from it.
    """

    outlook: Outlook
    queues: Queues
    weights: Floats
    target: Target | None = None
    memory: Mapping[str, Any] = field(default_factory=dict)
    patient: frozenset[int] = frozenset()
    first: tuple[int, ...] = ()
    still: bool = False
    settled: bool = False
    schedule: Schedule | None = None
    planned: Queues | None = None

    @property
    def told(self) -> Queues:
        """The queues that people are told of."""
        return self.queues if self.planned is None else self.planned


def queue_up(rules: Rules, outlook: Outlook, *, alone: bool) -> Queueing:
    """Queue the jobs of a round, from where the memory of the last one left them. ``alone``: nothing else decides."""
    if not outlook.jobs:
        none = np.zeros(0)
        return Queueing(outlook, Queues(none.astype(int), none, none, none, np.zeros(len(outlook.pools))), none)
    outlook, patient = _patient(rules, outlook)
    value = _type_value(outlook) if rules.fair_share != "none" else {}
    patience = Patience.of(outlook, rules.overdue)
    worth = delay_costs(outlook, rules.objective, rules.fairness, rules.fair_share, value, patience.hurry(outlook))
    due = due_s(outlook) if rules.objective == "deadline" else None
    weights = worth if due is None else hastened(worth, outlook, due)
    seconds, before = _with_start(rules, outlook), _Recalled.of(outlook)
    leaning = _leaning(rules, outlook)
    target = _target(outlook, leaning, before)
    queues, terminal = _assigned(outlook, seconds, weights, before, target)
    memory: dict[str, Any] = {} if target is None else {"end": target.end}
    memory["time"] = outlook.arena.snapshot.time
    memory["columns"] = {j.job_id: before.keys[k] for j, k in zip(outlook.jobs, queues.column, strict=True)}
    memory["away"] = outlook.away(before.known)
    memory |= patience.memory(outlook)
    memory["terminal"] = {p.key: float(w) for p, w in zip(outlook.pools, terminal, strict=True) if w > 0}
    if target is not None:
        queues = _critical_first(outlook, seconds, weights, queues, target)
    schedule = planned = None
    if _searchable(rules, outlook, leaning, target):
        toll = _toll(outlook)
        problem = Problem(outlook, seconds, worth, queues.column, queues.key, toll, target, rules.frontier, due)
        schedule = search(problem, before.plan, exchanges=not before.same_jobs)
        memory["plan"] = _remembered(outlook, schedule, before.keys)
        behind = np.maximum(terminal, _arriving(outlook))
        planned = as_planned(outlook, seconds, weights, schedule.column, schedule.place, schedule.start_s, behind)
        queues = replace(queues, column=planned.column, key=planned.key, turn_s=planned.turn_s)
    still = before.same_instant and alone
    settled = still and before.same_jobs
    first = patience.first
    return Queueing(outlook, queues, weights, target, memory, patient, first, still, settled, schedule, planned)


def _toll(outlook: Outlook) -> Floats:
    """What a second of each job in each column costs those that are still to come, shape (n, k): elastic jobs alone are
    charged, since they choose how much GPU time they take.

    One that keeps its size once it runs still has it when others come. It pays for the GPU time that it takes beyond
    that of its thriftiest size, and as many are taken to come for each GPU as wait for one now; nobody after a lone
    batch. One that can give GPUs back pays little for each that it has.
    """
    able = np.isfinite(outlook.run_s)
    area = outlook.run_s * outlook.workers
    least = np.empty_like(area)
    for pool in range(len(outlook.pools)):
        sizes = outlook.pool_of == pool
        least[:, sizes] = area[:, sizes].min(axis=1, keepdims=True)
    more = outlook.workers - np.divide(least, outlook.run_s, out=np.zeros_like(area), where=able)
    waiting = int((outlook.held < 0).sum()) if arrivals.stream(outlook) > 0 else 0
    kept = np.where(able, more, 0.0) * waiting / max(1.0, float(outlook.gpus.sum()))
    charged = np.where(outlook.fixed[:, None], kept, outlook.workers * arrivals.per_gpu(outlook))
    return np.where(outlook.elastic[:, None], charged, 0.0)


def _searchable(rules: Rules, outlook: Outlook, leaning: float, target: Target | None) -> bool:
    """Whether to look for a plan job by job: where the queue is short enough, and the fluid's prices are no better.
    They are where to stop a job costs little: there they stop and go on, or change the sizes of gangs, and plans let
    every job run to its end. Of rigid gangs that takes pools that hold many at a time, or stops that are free and a
    makespan that is aimed at, which prices come nearer to. Elastic ones that keep coming are planned if a stop costs
    anything: as those come and go that cannot be stopped, they were else resized from one way to the other and back. In
    a longer queue it has to cost more, and elastic jobs of unknown length do not count: the size that a plan binds them
    to would be a guess.

    Aims other than average completion need jobs stopped more often, so that it has to cost more, too. For the makespan
    prices keep rigid jobs in step, and all end at once; but they make elastic ones as wide as can be, again and again,
    which wastes what a GPU does where it is not for free."""
    if len(outlook.jobs) > MOST_JOBS:
        return False
    short, elastic = len(outlook.jobs) <= _SHORT, outlook.elastic
    lost_s = np.where(outlook.fixed, outlook.best_s, np.minimum(outlook.restart_s, outlook.best_s))
    if short and rules.objective == "deadline":
        return True
    makespan = leaning >= _IN_STEP
    if makespan:
        lost_s = np.where(elastic & (lost_s >= _DEAR * outlook.best_s), outlook.best_s, lost_s)
    if makespan or rules.objective != "jct":
        return bool(lost_s.sum() >= (_NOT_CHEAP if short else _VERY_DEAR) * outlook.best_s.sum())
    if short and lost_s[elastic].any() and arrivals.stream(outlook) > 0.0:
        return True
    if short:
        counted = elastic | _fluid(outlook)
        worse = target is None or bool(lost_s.any())
        return worse and bool(lost_s[counted].sum() >= _DEAR * outlook.best_s[counted].sum())
    return bool(lost_s[~outlook.guessed].sum() >= _VERY_DEAR * outlook.best_s.sum())


def _fluid(outlook: Outlook) -> bool:
    """Whether pools hold so many gangs at a time that their queues flow as the prices take them to."""
    return bool(outlook.gpus.mean() >= _FEW_GANGS * outlook.workers.min(axis=1).mean())


def _remembered(outlook: Outlook, schedule: Schedule, keys: Sequence[str]) -> list[list[str]]:
    """The plan for the next round: in its order, each job with its column and that of its meantime ("" for none)."""
    return [
        [outlook.jobs[row].job_id, keys[schedule.column[row]], keys[via] if (via := schedule.via[row]) >= 0 else ""]
        for row in np.argsort(schedule.place)
    ]


def _patient(rules: Rules, outlook: Outlook) -> tuple[Outlook, frozenset[int]]:
    """A job that could not be moved again does better to wait for a faster type, ``patience_s`` at most."""
    if not rules.patience_s:
        return outlook, frozenset()
    patient, best_s, run_s = set(), outlook.best_s, outlook.run_s.copy()
    for row, job in enumerate(outlook.jobs):
        left_s = rules.patience_s - (outlook.arena.snapshot.time - job.arrival)
        if job.unmovable is not None and not job.running and left_s > 0:
            slow = np.isfinite(run_s[row]) & (run_s[row] > best_s[row] + left_s)
            run_s[row, slow] = np.inf
            if slow.any():
                patient.add(row)
    return replace(outlook, run_s=run_s), frozenset(patient)


def _type_value(outlook: Outlook) -> dict[str, float]:
    """What a GPU of each type is worth for the makespan: the mean over its pools' GPUs."""
    value, _ = shadow_prices(per_pool(outlook, outlook.run_s * outlook.workers), np.maximum(outlook.gpus, 1.0))
    gpus: dict[str, float] = {}
    worth: dict[str, float] = {}
    for pool, count, price in zip(outlook.pools, outlook.gpus, value, strict=True):
        gpus[pool.gpu_type] = gpus.get(pool.gpu_type, 0.0) + count
        worth[pool.gpu_type] = worth.get(pool.gpu_type, 0.0) + count * price
    return {t: float(worth[t] / count) for t, count in gpus.items() if count > 0}


def _with_start(rules: Rules, outlook: Outlook) -> Floats:
    """Run times with what it costs to get there: a restart anywhere but where the job runs, and for running jobs also
    the gain that a move must bring, as a share of the run time here. An elastic job's sizes differ by much more than
    GPU types do, so that of one that is small for the meantime this would be more than it can ever gain: of it the
    share is that of the shorter of the two run times."""
    seconds = outlook.run_s + outlook.restart_s[:, None]
    there = np.flatnonzero(outlook.held >= 0)
    here_s = outlook.run_s[there, outlook.held[there]]
    of_s = np.where(outlook.elastic[there, None], np.minimum(outlook.run_s[there], here_s[:, None]), here_s[:, None])
    seconds[there] += np.where(np.isfinite(of_s), rules.switch_gain * of_s, 0.0)
    seconds[there, outlook.held[there]] = here_s
    return seconds


@dataclass(frozen=True)
class _Recalled:
    """What the last round left. ``keys[k]``: names of the columns that hold over rounds; ``known``: that of each job
    that a round has decided about; ``column[n]``: -1 for a job that is new; ``terminal[p]``: the pools' terminal
    weights; ``end``: the makespan aimed at, 0 if none was.

    ``same_instant``: no time has passed since and nobody is new, so nothing is to be gained, and nobody shall move.
    """

    keys: list[str]
    known: Mapping[str, str]
    column: Ints
    terminal: Floats
    end: float
    same_instant: bool
    same_jobs: bool
    plan: LastPlan

    @property
    def fresh(self) -> bool:
        """Whether there are new jobs."""
        return bool((self.column < 0).any())

    @classmethod
    def of(cls, outlook: Outlook) -> _Recalled:
        memory = outlook.arena.snapshot.memory
        orders = range(outlook.workers.shape[1] // len(outlook.pools))
        keys = [f"{pool.key}*{order}" for order in orders for pool in outlook.pools]
        index = {key: k for k, key in enumerate(keys)}
        decided, terminal = memory.get("columns", {}), memory.get("terminal", {})
        known: dict[str, str] = {**memory.get("away", {}), **decided}
        column = np.array([index.get(known.get(j.job_id, ""), -1) for j in outlook.jobs])
        weights = np.array([float(terminal.get(p.key, 0.0)) for p in outlook.pools])
        again = not (column < 0).any() and memory.get("time") == outlook.arena.snapshot.time
        same = len(decided) == len(column) and all(j.job_id in decided for j in outlook.jobs)
        end, plan = float(memory.get("end", 0.0)), _last_plan(outlook, memory.get("plan", []), index)
        return cls(keys, known, column, weights, end, bool(again), same, plan)


def _last_plan(outlook: Outlook, remembered: Sequence[Sequence[str]], index: Mapping[str, int]) -> LastPlan:
    rows = {job.job_id: row for row, job in enumerate(outlook.jobs)}
    place, column, via = (np.full(len(rows), -1) for _ in range(3))
    for number, (job_id, key, meantime) in enumerate(remembered):
        if job_id in rows:
            row = rows[job_id]
            place[row], column[row], via[row] = number, index.get(key, -1), index.get(meantime, -1)
    return LastPlan(place, column, via)


def _leaning(rules: Rules, outlook: Outlook) -> float:
    """The frontier of this queue: a stream has no end to aim at, but for who aims at nothing else."""
    return rules.frontier if rules.objective == "ttd" else rules.frontier * (1.0 - arrivals.endless(outlook))


def _target(outlook: Outlook, leaning: float, before: _Recalled) -> Target | None:
    aim = Aim.of(leaning)
    if aim is None:
        return None
    return set_target(outlook, aim, outlook.run_s * outlook.workers, before.end, before.fresh)


def _assigned(
    outlook: Outlook, seconds: Floats, weights: Floats, before: _Recalled, target: Target | None
) -> tuple[Queues, Floats]:
    """The queues, and the pools' terminal weights that keep them within the target."""
    column, terminal, arriving = before.column, before.terminal, _arriving(outlook)
    if before.same_instant:
        return assign(outlook, seconds, weights, column, np.maximum(terminal, arriving), sweeps=0), terminal
    for _ in range(_BALANCING if target and len(column) < _MANY else 1):
        queues = assign(outlook, seconds, weights, column, np.maximum(terminal, arriving))
        column = queues.column
        if target:
            terminal = balance(outlook, seconds * outlook.workers, column, terminal, target.left_s)
    return queues, terminal


def _arriving(outlook: Outlook) -> Floats:
    """The weight per pool of jobs that are still to come. It charges every job for the GPU time that it takes from
    them, and so leans towards the columns that need least of it."""
    return arrivals.per_gpu(outlook) * outlook.gpus


def _critical_first(outlook: Outlook, seconds: Floats, weights: Floats, queues: Queues, target: Target) -> Queues:
    """A critical job goes where it costs the makespan least."""
    column = np.where(target.critical, target.column, queues.column)
    mine = (seconds * outlook.workers)[outlook.rows, column]
    return replace(queues, column=column, key=mine / weights)
