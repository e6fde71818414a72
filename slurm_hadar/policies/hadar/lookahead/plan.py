"""Hadar with prices that look ahead: from a snapshot to a plan."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slurm_hadar.model import Mix, Placement, Plan, Snapshot
from slurm_hadar.policies.hadar.lookahead.knapsack import choose, first_fit
from slurm_hadar.policies.hadar.lookahead.makespan import shadow_prices
from slurm_hadar.policies.hadar.lookahead.mixing import mixed_gang
from slurm_hadar.policies.hadar.lookahead.outlook import Floats, Ints, Outlook, survey
from slurm_hadar.policies.hadar.lookahead.prices import Aim, Queues, Target, assign, balance, per_pool, set_target
from slurm_hadar.policies.hadar.lookahead.waits import explain, payoff_of
from slurm_hadar.policies.hadar.objectives import delay_costs
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.gangs import Gang
from slurm_hadar.policies.toolkit.ledger import Ledger

__all__ = ["LookAhead"]

_USE_WEIGHT = 10.0  # while jobs are critical: what keeping a GPU busy counts, in ends of average jobs
_TURN = 20.0  # a critical job that runs goes on until it is ahead of the others by so many restarts
_WORTH_A_RESTART = 2.0  # a job is put on GPUs for the meantime if that gains this many times its restart
_BALANCING = 3
_MANY = 10_000  # with so many jobs one step of balancing a round is enough
_ARRIVING = 0.15  # jobs per GPU that are taken to wait behind all others where jobs keep coming
_A_STREAM = 10  # so many arrivals, at different times, make a stream


@contextmanager
def _uncollected() -> Iterator[None]:
    """A decision makes many objects that all stay, in no cycles: to look for garbage among them costs a third more."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class LookAhead:
    """Settings as in :class:`slurm_hadar.policies.hadar.policy.Hadar`; one :class:`_Round` does the work for each
    snapshot."""

    objective: str
    frontier: float
    fairness: float
    fair_share: str
    switch_gain: float
    unknown_runtime_s: float
    patience_s: float

    def plan(self, snapshot: Snapshot, name: str) -> Plan:
        """The plan for the coming round."""
        with _uncollected():
            return self._weighed(snapshot, name, alone=True)[0]

    def weighed(self, snapshot: Snapshot, name: str) -> tuple[Plan, dict[str, float]]:
        """The plan, and what a second's delay of each job to be decided about weighs in it; for a policy that builds on
        it, and may give what is planned here to others."""
        with _uncollected():
            return self._weighed(snapshot, name, alone=False)

    def _weighed(self, snapshot: Snapshot, name: str, *, alone: bool) -> tuple[Plan, dict[str, float]]:
        arena = Arena.of(snapshot)
        outlook = survey(arena, self.unknown_runtime_s)
        now = _Round(self, outlook, alone)
        if outlook.jobs:
            now.decide()
        if outlook.jobs and not now.settled:
            now.fill()
        now.keep()
        now.mix()
        prices = {arena.slots[slot]: price for pool, price in now.prices() for slot in pool.slots}
        waits = explain(arena, outlook, now.queues, now.placements, now.worth, now.patient)
        worth = {j.job_id: float(w) for j, w in zip(outlook.jobs, now.worth, strict=True) if j.job_id in now.placements}
        weights = {j.job_id: float(w) for j, w in zip(outlook.jobs, now.weights, strict=True)}
        return Plan(name, now.placements, waits, prices, worth, memory=now.memory), weights


@dataclass
class _Round:
    """One decision, step by step: weights, target, queues, choice, layout, filling.

    ``alone``: nothing else decides, so what runs is what the last plan said.
    """

    rules: LookAhead
    outlook: Outlook
    alone: bool
    target: Target | None = None
    placements: dict[str, Placement] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        outlook = self.outlook
        self.ledger = Ledger(outlook.arena)
        self.placements = dict(outlook.arena.kept)
        self.worth = np.zeros(len(outlook.jobs))
        self.placed = np.zeros(len(outlook.jobs), bool)
        self.gangs = [outlook.arena.gang(j.placement) if j.placement else () for j in outlook.jobs]
        none = np.zeros(0)
        self.patient: set[int] = set()
        self.still = False
        self.weights = np.ones(len(outlook.jobs))
        self.queues = Queues(none.astype(int), none, none, none, np.zeros(len(outlook.pools)))

    def _free(self, pool: int) -> int:
        """GPUs of the pool that nobody was given yet."""
        return sum(self.ledger.free[slot] for slot in self.outlook.pools[pool].slots)

    # What to do

    def decide(self) -> None:
        """Fill ``placements``."""
        outlook, rules = self.outlook, self.rules
        self._be_patient()
        area = outlook.run_s * outlook.workers
        value, _ = shadow_prices(per_pool(outlook, area), np.maximum(outlook.gpus, 1.0)) if self._priced else (None, 0)
        self.weights = delay_costs(outlook, rules.objective, rules.fairness, rules.fair_share, self._type_value(value))
        self.seconds = self._with_start()
        self._queue(area)
        self.worth = payoff_of(outlook, self.queues, self.weights)
        if self.still:
            self.keep()
        workers = outlook.workers[outlook.rows, self.queues.column].astype(int)
        for pool in range(len(outlook.pools)):
            self._lay_out(self._chosen(pool, workers), self.queues.column)

    @property
    def _priced(self) -> bool:
        return self.rules.fair_share != "none"

    def _type_value(self, value: Floats | None) -> dict[str, float]:
        """What a GPU of each type is worth: the mean over its pools' GPUs."""
        if value is None:
            return {}
        gpus: dict[str, float] = {}
        worth: dict[str, float] = {}
        for pool, count, price in zip(self.outlook.pools, self.outlook.gpus, value, strict=True):
            gpus[pool.gpu_type] = gpus.get(pool.gpu_type, 0.0) + count
            worth[pool.gpu_type] = worth.get(pool.gpu_type, 0.0) + count * price
        return {t: float(worth[t] / count) for t, count in gpus.items() if count > 0}

    def _be_patient(self) -> None:
        """A job that could not be moved again does better to wait for a faster type, ``patience_s`` at most."""
        if not self.rules.patience_s:
            return
        outlook = self.outlook
        best_s = outlook.best_s
        for row, job in enumerate(outlook.jobs):
            left_s = self.rules.patience_s - (outlook.arena.snapshot.time - job.arrival)
            if job.unmovable is not None and not job.running and left_s > 0:
                run_s = outlook.run_s[row]
                slow = np.isfinite(run_s) & (run_s > best_s[row] + left_s)
                run_s[slow] = np.inf
                if slow.any():
                    self.patient.add(row)

    def _with_start(self) -> Floats:
        """Run times with what it costs to get there: a restart anywhere but where the job runs, and for running jobs
        also the gain that a move must bring."""
        outlook = self.outlook
        seconds = outlook.run_s + outlook.restart_s[:, None]
        there = np.flatnonzero(outlook.held >= 0)
        here_s = outlook.run_s[there, outlook.held[there]]
        seconds[there] += np.where(np.isfinite(here_s), self.rules.switch_gain * here_s, 0.0)[:, None]
        seconds[there, outlook.held[there]] = here_s
        return seconds

    def _queue(self, area: Floats) -> None:
        """Assign the jobs to columns, from where the memory of the last round left them."""
        outlook, memory = self.outlook, self.outlook.arena.snapshot.memory
        keys = self._column_keys()
        column, terminal = self._recalled(keys)
        fresh = bool((column < 0).any())
        # at the same instant nothing is to be gained, and nobody shall move
        again = not fresh and memory.get("time") == outlook.arena.snapshot.time
        self.still = again and self.alone
        aim = Aim.of(1.0 if self.rules.objective == "ttd" else self.rules.frontier)
        if aim is not None:
            self.target = set_target(outlook, aim, area, float(memory.get("end", 0.0)), fresh)
            self.memory["end"] = self.target.end
        arriving = self._arriving()
        sweeps = {"sweeps": 0} if again else {}
        steps = _BALANCING if self.target and not again and len(column) < _MANY else 1
        for _ in range(steps):
            behind = np.maximum(terminal, arriving)
            self.queues = assign(outlook, self.seconds, self.weights, column, behind, **sweeps)
            column = self.queues.column
            if self.target and not again:
                terminal = balance(outlook, self.seconds * outlook.workers, column, terminal, self.target.left_s)
        self.memory["time"] = outlook.arena.snapshot.time
        self.memory["columns"] = {j.job_id: keys[k] for j, k in zip(outlook.jobs, column, strict=True)}
        self.memory["terminal"] = {p.key: float(w) for p, w in zip(outlook.pools, terminal, strict=True) if w > 0}
        if self.target is not None:
            self._take_critical(self.target)

    def _column_keys(self) -> list[str]:
        """Names of the columns that hold over rounds: the pool, and which of the job's gang sizes."""
        orders = range(self.outlook.workers.shape[1] // len(self.outlook.pools))
        return [f"{pool.key}*{order}" for order in orders for pool in self.outlook.pools]

    def _recalled(self, keys: list[str]) -> tuple[Ints, Floats]:
        """Each job's column (-1: unknown) and each pool's terminal weight, as the last round left them."""
        memory = self.outlook.arena.snapshot.memory
        index = {key: k for k, key in enumerate(keys)}
        known, terminal = memory.get("columns", {}), memory.get("terminal", {})
        column = np.array([index.get(known.get(j.job_id), -1) for j in self.outlook.jobs])
        return column, np.array([float(terminal.get(p.key, 0.0)) for p in self.outlook.pools])

    def _arriving(self) -> Floats:
        """The weight per pool of jobs that are still to come, where jobs keep coming; nothing for a lone batch.

        It charges every job for the GPU time that it takes from them, and so leans towards the columns that need least
        of it. Jobs come in a stream where several that are there came within the last mean run time.
        """
        outlook = self.outlook
        now = outlook.arena.snapshot.time
        ages = np.array([now - j.arrival for j in outlook.jobs])
        recent = np.unique(np.floor(ages[(ages >= 0) & (ages < outlook.best_s.mean())]))
        return _ARRIVING * outlook.gpus * min(1.0, max(0, len(recent) - 1) / _A_STREAM)

    def _take_critical(self, target: Target) -> None:
        """A critical job goes where it costs the makespan least."""
        queues = self.queues
        queues.column = np.where(target.critical, target.column, queues.column)
        mine = (self.seconds * self.outlook.workers)[self.outlook.rows, queues.column]
        queues.key = mine / self.weights

    @property
    def settled(self) -> bool:
        """Whether this is the instant of the last round and no job came or went: what that left free stays free."""
        before = self.outlook.arena.snapshot.memory.get("columns", {})
        return self.still and before.keys() == {j.job_id for j in self.outlook.jobs}

    # Who runs

    def _chosen(self, pool: int, workers: Ints) -> Ints:
        """The jobs to run on the pool: critical ones first, the longest of them first, then the others by density."""
        outlook, queues = self.outlook, self.queues
        inside = np.flatnonzero((outlook.pool_of[queues.column] == pool) & ~self.placed)
        free = self._free(pool)
        if not len(inside) or free <= 0:
            return inside[:0]
        stays = outlook.held[inside] == queues.column[inside]
        mine_s = outlook.run_s[inside, queues.column[inside]] + np.where(stays, 0.0, outlook.restart_s[inside])
        key = mine_s * workers[inside] / self.weights[inside]
        key = key * np.where(stays, 1.0 - min(0.9, self.rules.switch_gain), 1.0)
        order = inside[np.argsort(key, kind="stable")]
        if self.target is None or not self.target.critical[inside].any():
            return choose(order, workers, self._density(inside, key, 0.0) * workers, free)
        critical = inside[self.target.critical[inside]]
        held = outlook.held[critical] == queues.column[critical]
        need_s = self.target.need_s[critical] + np.where(held, _TURN * outlook.restart_s[critical], 0.0)
        first = first_fit(critical[np.argsort(-need_s, kind="stable")], workers, free)
        free -= int(workers[first].sum())
        others = order[~self.target.critical[order]]
        value = self._density(inside, key, _USE_WEIGHT) * workers
        return np.concatenate([first, choose(others, workers, value, free)])

    def _density(self, inside: Ints, key: Floats, use_weight: float) -> Floats:
        """Worth of a GPU for a round, by job: ends of jobs per second, and its being in use at all."""
        density = np.zeros(len(self.outlook.jobs))
        density[inside] = 1.0 / np.maximum(key, 1e-9) + use_weight / max(float(key.mean()), 1e-9)
        return density

    def _lay_out(self, chosen: Ints, column: Ints) -> None:
        """Give the chosen jobs places in their ``column[n]``: wide gangs first, among equals those that can stay."""
        outlook = self.outlook
        staying = {int(r) for r in chosen if outlook.held[r] == column[r]}
        for row in staying:
            self.ledger.hold(self.gangs[row])
        rank = {int(row): i for i, row in enumerate(chosen)}
        room = [outlook.pools[p].room for p in outlook.pool_of]
        width = {row: min(room[column[row]], int(outlook.workers[row, column[row]])) for row in rank}
        for row in sorted(rank, key=lambda r: (-width[r], r not in staying, rank[r])):
            if row in staying:
                self.ledger.let_go(self.gangs[row])
                if self.ledger.is_free(self.gangs[row]):
                    self._place(row, self.gangs[row])
                    continue
            self._start(row, int(column[row]))

    def _start(self, row: int, column: int) -> bool:
        own = self.outlook.classes[row]
        slots = own.slots[column]
        pool = self.outlook.pools[self.outlook.pool_of[column]]
        gang = self.ledger.find(own.forms[column], pool.slots if slots is None else slots)
        if gang is not None:
            self._place(row, gang)
        return gang is not None

    def _place(self, row: int, gang: Gang) -> None:
        job = self.outlook.jobs[row]
        self.ledger.take(gang)
        self.placed[row] = True
        self.placements[job.job_id] = self.outlook.arena.placement(gang)

    # What to do with GPUs that are left

    def keep(self) -> None:
        """Who lost the choice but whose GPUs nobody took goes on, and so do jobs on nodes that are being drained."""
        outlook = self.outlook
        row_of = {job.job_id: row for row, job in enumerate(outlook.jobs)}
        left = [job for job in outlook.arena.movers if job.running and job.job_id not in self.placements]
        left.sort(
            key=lambda j: (self.queues.key[row_of[j.job_id]] if j.job_id in row_of else np.inf, j.arrival, j.job_id)
        )
        for job in left:
            gang = outlook.arena.gang(job.placement)
            if self.ledger.is_free(gang):
                self.ledger.take(gang)
                self.placements[job.job_id] = job.placement
                if job.job_id in row_of:
                    self.placed[row_of[job.job_id]] = True

    def fill(self) -> None:
        """Free GPUs go, for the meantime, to waiting jobs that gain more there than a restart costs them."""
        outlook, queues = self.outlook, self.queues
        worth = self.weights / np.maximum(outlook.workers[outlook.rows, queues.column], 1.0) + queues.after
        own = outlook.run_s[outlook.rows, queues.column] * outlook.workers[outlook.rows, queues.column]
        for pool in np.argsort(-queues.price, kind="stable"):
            for column in np.flatnonzero(outlook.pool_of == pool):
                self._fill_column(int(pool), int(column), worth, own)

    def _fill_column(self, pool: int, column: int, worth: Floats, own: Floats) -> None:
        outlook = self.outlook
        free = self._free(pool)
        if free <= 0:
            return
        run_s = outlook.run_s[:, column]
        rows = np.flatnonzero(~self.placed & np.isfinite(run_s) & (outlook.workers[:, column] <= free))
        rows = rows[self._gains(rows, column)]
        density = worth[rows] * own[rows] / (run_s[rows] * outlook.workers[rows, column])
        density = density * np.where(outlook.held[rows] == column, 1.0 + self.rules.switch_gain, 1.0)
        order = rows[np.argsort(-density, kind="stable")]
        workers = outlook.workers[:, column].astype(int)
        values = np.zeros(len(workers))
        values[rows] = density * workers[rows]
        self._lay_out(choose(order, workers, values, free), np.full(len(workers), column))
        free = self._free(pool)
        for row in order:
            if free <= 0:
                break
            if not self.placed[row] and workers[row] <= free and self._start(int(row), column):
                free -= int(workers[row])

    def _gains(self, rows: Ints, column: int) -> np.ndarray:
        """Whether the progress made until its turn comes is worth the restart; always, where its turn is here or where
        it could not be moved again anyway (``patience_s`` is for those). A job that cannot be moved again goes to more
        nodes than its graph suits only if it ends sooner than by waiting for its turn."""
        outlook, queues = self.outlook, self.queues
        run_s = outlook.run_s[:, column]
        own_s = outlook.run_s[rows, queues.column[rows]]
        meantime_s = np.maximum(queues.turn_s[rows], outlook.arena.snapshot.round_s)
        done_s = np.minimum(meantime_s * own_s / run_s[rows], own_s)
        here = run_s[rows] <= own_s
        stuck = np.array([outlook.jobs[r].unmovable is not None for r in rows], bool)
        apart = np.array([outlook.classes[r].level[column] > 0 for r in rows], bool)
        here |= stuck & (~apart | (run_s[rows] <= own_s + meantime_s))
        return here | (~(stuck & apart) & (done_s > _WORTH_A_RESTART * outlook.restart_s[rows]))

    def mix(self) -> None:
        """Gangs over several GPU types, on what is left, for jobs that accept them."""
        outlook = self.outlook
        mixers = [r for r, job in enumerate(outlook.jobs) if not self.placed[r] and job.form.mix is not Mix.NEVER]
        mixers.sort(key=lambda r: (self.queues.key[r], outlook.jobs[r].arrival, outlook.jobs[r].job_id))
        for job in [outlook.jobs[r] for r in mixers] + outlook.loose:
            if job.job_id in self.placements:
                continue
            gang = mixed_gang(self.ledger, job)
            if gang is not None:
                self.ledger.take(gang)
                self.placements[job.job_id] = outlook.arena.placement(gang)

    # What it cost

    def prices(self) -> list[tuple[Any, float]]:
        """Each pool with the price of one of its GPUs: jobs delayed per GPU."""
        return list(zip(self.outlook.pools, self.queues.price.tolist(), strict=True))
