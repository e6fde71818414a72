"""Which of the queued jobs run, and where: choice, layout, and what free GPUs are used for in the meantime."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from slurm_hadar.model import Mix, Placement
from slurm_hadar.policies.hadar.lookahead.knapsack import choose, first_fit
from slurm_hadar.policies.hadar.lookahead.mixing import mixed_gang
from slurm_hadar.policies.hadar.lookahead.outlook import Bools, Floats, Ints
from slurm_hadar.policies.hadar.lookahead.planning.search import Schedule
from slurm_hadar.policies.hadar.lookahead.planning.together import slower
from slurm_hadar.policies.hadar.lookahead.queueing import Queueing
from slurm_hadar.policies.toolkit.gangs import Gang
from slurm_hadar.policies.toolkit.ledger import Ledger

__all__ = ["lay_out"]

_USE_WEIGHT = 10.0  # while jobs are critical: what keeping a GPU busy counts, in ends of average jobs
# times its worth: who has GPUs for the meantime keeps them against others that would have them for the meantime. Its
# move to where it waits costs something, so it stands behind its equals there, and they would take turns each round
_STAYS = 1000.0
_WORTH_A_RESTART = 2.0  # a job is put on GPUs for the meantime if that gains this many times its restart


def lay_out(queueing: Queueing, switch_gain: float) -> dict[str, Placement]:
    """Who runs where. What runs and what may not move included. ``switch_gain``: as of the policy."""
    layout = _Layout(queueing, switch_gain)
    if queueing.still:
        layout.keep()
    layout.run_queued()
    if not queueing.settled:
        layout.fill()
    layout.keep()
    layout.mix()
    return layout.placements


class _Layout:
    """Placements under construction; ``placed[n]`` says which of the jobs have one."""

    def __init__(self, queueing: Queueing, switch_gain: float) -> None:
        self.queueing, self.switch_gain = queueing, switch_gain
        self.outlook = outlook = queueing.outlook
        self.queues, self.target, self.weights = queueing.queues, queueing.target, queueing.weights
        self.ledger = Ledger(outlook.arena)
        self.placements = dict(outlook.arena.kept)
        self.placed = np.zeros(len(outlook.jobs), bool)
        self.gangs = [outlook.arena.gang(j.placement) if j.placement else () for j in outlook.jobs]
        self._given: dict[int, Gang] = {}
        kinds = {id(own): own for own in outlook.classes}.values()
        self._some_are_shut_out = any(slots is not None for own in kinds for slots in own.slots)

    def _free(self, pool: int) -> int:
        """GPUs of the pool that nobody was given yet."""
        return sum(self.ledger.free[slot] for slot in self.outlook.pools[pool].slots)

    # Who runs

    def run_queued(self) -> None:
        """Those of each pool's queue who run."""
        for row in self.queueing.first:
            self._lay_out(np.array([row]), self.queues.column)
        if self.queueing.schedule is not None:
            self._run_planned(self.queueing.schedule)
            return
        workers = self.outlook.workers[self.outlook.rows, self.queues.column].astype(int)
        for pool in range(len(self.outlook.pools) if self.outlook.jobs else 0):
            self._lay_out(self._chosen(pool, workers), self.queues.column)

    def _run_planned(self, schedule: Schedule) -> None:
        """Those whom the plan starts now."""
        now = np.flatnonzero((schedule.now >= 0) & ~self.placed)
        now = now[np.argsort(schedule.place[now])]
        workers = np.zeros(len(schedule.now), int)
        workers[now] = self.outlook.workers[now, schedule.now[now]]
        for pool in range(len(self.outlook.pools)):
            mine = now[self.outlook.pool_of[schedule.now[now]] == pool]
            mine = mine[self._admitted(pool, mine, schedule.now)]
            self._lay_out(first_fit(mine, workers, self._free(pool)), schedule.now)

    def _chosen(self, pool: int, workers: Ints) -> Ints:
        """The jobs to run on the pool: critical ones first, the longest of them first, then the others by density."""
        outlook, queues = self.outlook, self.queues
        inside = np.flatnonzero((outlook.pool_of[queues.column] == pool) & ~self.placed)
        inside = inside[self._admitted(pool, inside, queues.column)]
        free = self._free(pool)
        if not len(inside) or free <= 0:
            return inside[:0]
        stays = outlook.held[inside] == queues.column[inside]
        mine_s = outlook.run_s[inside, queues.column[inside]] + np.where(stays, 0.0, outlook.restart_s[inside])
        key = mine_s * workers[inside] / self.weights[inside]
        key = key * np.where(stays, 1.0 - min(0.9, self.switch_gain), 1.0)
        order = inside[np.argsort(key, kind="stable")]
        if self.target is None or not self.target.critical[inside].any():
            return choose(order, workers, self._density(inside, key, 0.0) * workers, free)
        critical = inside[self.target.critical[inside]]
        first = first_fit(critical[np.argsort(-self.target.need_s[critical], kind="stable")], workers, free)
        free -= int(workers[first].sum())
        others = order[~self.target.critical[order]]
        value = self._density(inside, key, _USE_WEIGHT) * workers
        return np.concatenate([first, choose(others, workers, value, free)])

    def _admitted(self, pool: int, rows: Ints, column: Ints) -> Bools:
        """Whether each may have GPUs of the pool, in its ``column[n]``: where one that goes first waits for room, none
        that could not be moved again is started who would still be there by then."""
        outlook, queues = self.outlook, self.queues
        wait = [r for r in self.queueing.first if not self.placed[r] and outlook.pool_of[queues.column[r]] == pool]
        if not wait:
            return np.ones(len(rows), bool)
        room_s = min(self._room_in_s(pool, int(outlook.workers[r, queues.column[r]])) for r in wait)
        stuck = np.array([outlook.jobs[r].unmovable is not None and r not in wait for r in rows.tolist()], bool)
        admitted: Bools = ~stuck | (outlook.run_s[rows, column[rows]] + outlook.restart_s[rows] <= room_s)
        return admitted

    def _room_in_s(self, pool: int, count: int) -> float:
        """When jobs that must stay leave so many GPUs of the pool."""
        slots = self.outlook.pools[pool].slots
        ends_s = sorted(until for slot in slots for until in self.outlook.until_s[slot])
        missing = count - (sum(self.outlook.arena.capacity[slot] for slot in slots) - len(ends_s))
        return ends_s[min(missing, len(ends_s)) - 1] if missing > 0 else 0.0

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
        for row in rank:
            if not self.placed[row] and outlook.classes[row].slots[column[row]] is not None:
                self._make_room(row, column, [other for other in rank if rank[other] > rank[row]])

    def _make_room(self, row: int, column: Ints, behind: list[int]) -> None:
        """Of a pool in which not all GPUs are open to a job others may have taken those that are: who comes behind it
        goes elsewhere, or does not run, if that is what it takes."""
        own = set(self.outlook.classes[row].slots[column[row]] or ())
        gone: list[tuple[int, Gang]] = []
        for other in reversed(behind):
            gang = self._given.get(other, ())
            if not self.placed[other] or own.isdisjoint(slot for slot, _ in gang):
                continue
            self._withdraw(other)
            gone.append((other, gang))
            if self._start(row, int(column[row])):
                for late, _ in reversed(gone):
                    self._start(late, int(column[late]))
                return
        for other, gang in gone:
            self._place(other, gang)

    def _withdraw(self, row: int) -> None:
        self.ledger.put_back(self._given.pop(row))
        self.placed[row] = False
        del self.placements[self.outlook.jobs[row].job_id]

    def _start(self, row: int, column: int) -> bool:
        own, schedule = self.outlook.classes[row], self.queueing.schedule
        form, slots = own.forms[column], own.slots[column]
        if slots is None:
            slots = self.outlook.pools[self.outlook.pool_of[column]].slots
        few = schedule is not None and schedule.now[row] == column and schedule.together[row]
        gang = self.ledger.find(replace(form, max_nodes=own.nodes[column]) if few else form, slots)
        if gang is None and schedule is not None and few and self._sooner_apart(row, column, schedule):
            gang = self.ledger.find(form, slots)
        if gang is not None:
            self._place(row, gang)
        return gang is not None

    def _sooner_apart(self, row: int, column: int, schedule: Schedule) -> bool:
        """Whether a gang whose place on few nodes others have taken ends sooner on more of them than it could if it
        waited for the first of those who now run in its pool."""
        outlook, pool = self.outlook, self.outlook.pool_of[column]
        others = np.flatnonzero(self.placed & (outlook.pool_of[schedule.now] == pool))
        ends_s = [s for slot in outlook.pools[pool].slots for s in outlook.until_s[slot]]
        ends_s += outlook.run_s[others, schedule.now[others]].tolist()
        longer_s = (slower(outlook, row, column) - 1.0) * outlook.run_s[row, column]
        return bool(longer_s < min(ends_s, default=np.inf))

    def _place(self, row: int, gang: Gang) -> None:
        job = self.outlook.jobs[row]
        self.ledger.take(gang)
        self.placed[row], self._given[row] = True, gang
        self.placements[job.job_id] = self.outlook.arena.placement(gang)

    # What to do with GPUs that are left

    def keep(self) -> None:
        """Who lost the choice but whose GPUs nobody took goes on, and so do jobs on nodes that are being drained."""
        outlook = self.outlook
        row_of = {outlook.jobs[row].job_id: row for row in np.flatnonzero(outlook.running).tolist()}
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
        if self.queueing.schedule is not None:  # which has weighed whether to wait is better
            rows = rows[~outlook.fixed[rows]]
        rows = rows[self._admitted(pool, rows, np.full(len(outlook.jobs), column))]
        rows = rows[self._gains(rows, column)]
        density = worth[rows] * own[rows] / (run_s[rows] * outlook.workers[rows, column])
        density = density * np.where(outlook.held[rows] == column, _STAYS, 1.0)
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

    def _gains(self, rows: Ints, column: int) -> Bools:
        """Whether the progress made until its turn comes is worth the restart; always, where its turn is here or where
        it could not be moved again anyway (``patience_s`` is for those). A job that cannot be moved again goes to more
        nodes than its graph suits only if it ends sooner than by waiting for its turn."""
        outlook, queues = self.outlook, self.queues
        run_s = outlook.run_s[:, column]
        own_s = outlook.run_s[rows, queues.column[rows]]
        meantime_s = np.maximum(queues.turn_s[rows], outlook.arena.snapshot.round_s)
        if self._some_are_shut_out:
            meantime_s = np.maximum(meantime_s, self._own_turns_s(rows))
        done_s = np.minimum(meantime_s * own_s / run_s[rows], own_s)
        here = run_s[rows] <= own_s
        stuck = outlook.fixed[rows]
        apart = np.array([outlook.classes[r].level[column] > 0 for r in rows], bool)
        here |= stuck & (~apart | (run_s[rows] <= own_s + meantime_s))
        gains: Bools = here | (~(stuck & apart) & (done_s > _WORTH_A_RESTART * outlook.restart_s[rows]))
        return gains

    def _own_turns_s(self, rows: Ints) -> list[float]:
        """When those to which not all of their pool's GPUs are open can start there, by who has these; 0 of others.
        In the queues what of a pool is free counts as any job's."""
        outlook, found = self.outlook, dict[tuple[int, int], float]()
        keys = [(id(outlook.classes[r]), int(self.queues.column[r])) for r in rows]
        for row, key in zip(rows.tolist(), keys, strict=True):
            if key not in found:
                slots = outlook.classes[row].slots[key[1]]
                found[key] = 0.0 if slots is None else self._free_in_s(slots, int(outlook.workers[row, key[1]]))
        return [found[key] for key in keys]

    def _free_in_s(self, slots: tuple[int, ...], count: int) -> float:
        """When so many GPUs of these slots are free at once; 0 if never."""
        outlook, own = self.outlook, set(slots)
        ends_s = [0.0] * sum(self.ledger.free[slot] for slot in slots)
        ends_s += [until for slot in slots for until in outlook.until_s[slot]]
        for other, gang in self._given.items():
            held = sum(gpus for slot, gpus in gang if slot in own)
            ends_s += [float(outlook.run_s[other].min())] * held
        return sorted(ends_s)[count - 1] if len(ends_s) >= count else 0.0

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
