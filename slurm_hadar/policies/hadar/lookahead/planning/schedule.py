"""List schedules: when each job would end if the pools served the jobs in a given order, many orders at a time."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from slurm_hadar.policies.hadar.lookahead.outlook import Bools, Floats, Ints, Outlook
from slurm_hadar.policies.hadar.lookahead.planning.together import together

__all__ = ["Machine", "Plans", "Schedules"]


@dataclass(frozen=True, slots=True)
class Plans:
    """c ways to serve the n jobs.

    ``order[c, s]``: the job at place s. ``column[c, n]``: where it shall run, -1 for where it ends first.
    ``via[c, n]``: the column in which it runs for the meantime, until its turn comes there; -1 for none.
    """

    order: Ints
    column: Ints
    via: Ints

    def repeated(self, at: int, times: int) -> Plans:
        """So many copies of one of them."""
        order, column, via = (np.repeat(a[at : at + 1], times, axis=0) for a in (self.order, self.column, self.via))
        return Plans(order, column, via)


@dataclass(frozen=True, slots=True)
class Schedules:
    """What becomes of the n jobs under c plans, each of shape (c, n): when they start in their ``column`` and end,
    seconds from now; ``via``, the column of the meantime that they really have; ``now``, the column in which they run
    at once, -1 where they wait; ``together``, whether they need the fewest nodes in their ``column``. ``charge[c]``:
    what those still to come lose by all of them, and the risk of what is stopped."""

    start_s: Floats
    end_s: Floats
    column: Ints
    via: Ints
    now: Ints
    together: Bools
    charge: Floats


class Machine:
    """The GPUs of the pools, and when each comes free, seconds from now.

    Parameters
    ----------
    seconds[n, k]: run time with what it costs to get there.
    toll[n, k]: what the jobs that are still to come lose by a second of the job in the column.
    risk[n]: what it costs to stop the job now, beside its restart.
    """

    def __init__(self, outlook: Outlook, seconds: Floats, toll: Floats, risk: Floats) -> None:
        self.seconds, self.toll, self.risk = seconds, toll, risk
        self.run_s, self.restart_s = outlook.run_s, outlook.restart_s
        held = outlook.held[:, None] == np.arange(outlook.run_s.shape[1])
        self.again_s = np.where(held, outlook.restart_s[:, None], 0.0)
        place = together(outlook)
        self.ready_s, self.apart_s = place.ready_s, seconds + place.longer_s
        self._anywhere = not np.isfinite(place.longer_s).any()  # nobody is slower on more nodes: half of the work
        self.workers = outlook.workers.astype(int)
        self.pool_of = outlook.pool_of
        self.free_s = _free_s(outlook)
        # of a gang as wide as this, the GPU that comes free last; where it is wider than the pool it never runs
        self._last = np.minimum(self.workers, self.free_s.shape[1]) - 1
        self._last_gpu = self.pool_of * self.free_s.shape[1] + self._last

    def play(self, plans: Plans) -> Schedules:
        """Serve the jobs in order. A gang starts when enough GPUs of its pool are free, and who comes after it in the
        order does not overtake it there. One that is slower on more nodes waits for few of them where it ends sooner
        so. O(n) steps of O(c * (k + GPUs of a pool)).

        Nobody who runs is stopped but for his own move: what is stopped now is what the plan does not start now. It
        pays a restart to go on later where it is.
        """
        count, jobs = plans.order.shape
        free = np.broadcast_to(self.free_s, (count, *self.free_s.shape)).copy()
        # as the plans come to each place in their orders, one place after the other
        start_s, end_s = np.empty((jobs, count)), np.empty((jobs, count))
        column, via, now = np.empty((jobs, count), int), np.full((jobs, count), -1), np.empty((jobs, count), int)
        on_few = np.empty((jobs, count), bool)
        charge, rows = np.zeros(count), np.arange(count)
        offset = rows * self.free_s.size
        for place in range(jobs):
            job = plans.order[:, place]
            chosen, begin, end, few = self._choose(job, plans.column[rows, job], free.ravel(), offset)
            pool = self.pool_of[chosen]
            here = np.where(begin <= 0, chosen, -1)
            wished = plans.via[rows, job]
            use = np.flatnonzero((wished >= 0) & (begin > 0))
            if len(use):
                use, later, at_once = self._meantime(free, use, job[use], wished[use], chosen, begin, end)
                end[use], via[place, use] = later, wished[use]
                here[use] = at_once
            charge += self.toll[job, chosen] * (end - begin) + np.where(here < 0, self.risk[job], 0.0)
            self._occupy(free, rows, pool, self.workers[job, chosen], end)
            start_s[place], end_s[place], column[place], now[place] = begin, end, chosen, here
            on_few[place] = few
        by_job = plans.order.argsort(axis=1)
        start_s, end_s = (np.take_along_axis(a.T, by_job, axis=1) for a in (start_s, end_s))
        column, via, now = (np.take_along_axis(a.T, by_job, axis=1) for a in (column, via, now))
        return Schedules(start_s, end_s, column, via, now, np.take_along_axis(on_few.T, by_job, axis=1), charge)

    def backfilled(self, order: Ints) -> tuple[Ints, Ints]:
        """The jobs in the order in which they start if whoever fits starts, the first of ``order`` first, and the
        column of each: of those with room, the one that ends it first. Who never starts comes last, with -1. O(n) steps
        of O(n * k)."""
        seconds, workers, again_s = self.seconds[order], self.workers[order], self.again_s[order]
        able, free, waits = np.isfinite(seconds), self.free_s.copy(), np.ones(len(order), bool)
        now, found, column = 0.0, list[int](), np.full(len(order), -1)
        while math.isfinite(now) and waits.any():
            left = (free <= now).sum(axis=1)
            fits = able & waits[:, None] & (workers <= left[self.pool_of])
            for at in np.flatnonzero(fits.any(axis=1)).tolist():
                takes_s = np.where(workers[at] <= left[self.pool_of], seconds[at], np.inf)
                chosen = int(takes_s.argmin())
                if not math.isfinite(takes_s[chosen]):
                    continue
                pool, width = self.pool_of[chosen], workers[at, chosen]
                free[pool, :width] = now + seconds[at, chosen] + (again_s[at, chosen] if now > 0 else 0.0)
                free[pool].sort()
                left[pool] -= width
                waits[at], column[order[at]] = False, chosen
                found.append(int(order[at]))
            now = float(np.min(free, where=free > now, initial=np.inf))
        return np.array(found + order[waits].tolist(), int), column

    def _choose(self, job: Ints, bound: Ints, free: Floats, offset: Ints) -> tuple[Ints, Floats, Floats, Bools]:
        """In which column the jobs run, when they begin and end there, and whether that needs the fewest nodes. Most
        plans bind all jobs, and then only those columns are looked at."""
        if (bound >= 0).all():
            begins, ends, few = self._begin((job, bound), free.take(offset + self._last_gpu[job, bound]))
            if np.isfinite(ends).all():
                return bound, begins, ends, few
        begins, ends, few = self._begin(job, free.take(offset[:, None] + self._last_gpu[job]))
        asked = bound[:, None]
        ends = np.where((asked < 0) | (asked == np.arange(ends.shape[1])), ends, np.inf)
        chosen = ends.argmin(axis=1)
        rows = np.arange(len(job))
        return chosen, begins[rows, chosen], ends[rows, chosen], few[rows, chosen]

    def _begin(self, at: Ints | tuple[Ints, Ints], begins: Floats) -> tuple[Floats, Floats, Bools]:
        """When the jobs begin and end in each column, and whether that needs the fewest nodes, if enough GPUs are free
        from ``begins`` on. ``at``: the jobs, or the jobs each in one column."""
        if self._anywhere:
            ends = begins + self.seconds[at] + np.where(begins > 0, self.again_s[at], 0.0)
            return begins, ends, np.zeros(begins.shape, bool)
        ready = np.maximum(begins, self.ready_s[at])
        ends = ready + self.seconds[at] + np.where(begins > 0, self.again_s[at], 0.0)
        apart = begins + self.apart_s[at]
        return np.where(apart < ends, begins, ready), np.minimum(ends, apart), np.isfinite(apart) & (ends <= apart)

    def _meantime(
        self, free: Floats, rows: Ints, job: Ints, via: Ints, chosen: Ints, begin: Floats, end: Floats
    ) -> tuple[Ints, Floats, Ints]:
        """Let jobs run elsewhere until ``begin``, where that ends them sooner by more than a restart: (those rows of
        the plans, when they end then, the column in which they run at once or -1). ``free`` is changed. ``chosen``,
        ``begin`` and ``end`` are of all plans, ``job`` and ``via`` of ``rows``."""
        chosen, begin, end, pool = chosen[rows], begin[rows], end[rows], self.pool_of[via]
        first = free[rows, pool, self._last[job, via]]
        with np.errstate(invalid="ignore", divide="ignore"):
            lost_s = self.seconds[job, via] - self.run_s[job, via]
            done = (begin - first - lost_s) / self.run_s[job, via]
            later = begin + self.restart_s[job] + (1.0 - done) * self.run_s[job, chosen]
        gains = (via != chosen) & (done > 0) & (done < 1) & (later + self.restart_s[job] < end)
        rows, job, via, pool = rows[gains], job[gains], via[gains], pool[gains]
        self._occupy(free, rows, pool, self.workers[job, via], begin[gains])
        return rows, later[gains], np.where(first[gains] <= 0, via, -1)

    def _occupy(self, free: Floats, rows: Ints, pool: Ints, workers: Ints, until: Floats) -> None:
        """The GPUs that came free first are taken until then."""
        times = free[rows, pool]
        times = np.where(np.arange(free.shape[2]) < workers[:, None], until[:, None], times)
        times.sort(axis=1)
        free[rows, pool] = times


def _free_s(outlook: Outlook) -> Floats:
    """When each GPU comes free of the jobs that stay where they are, ascending: shape (pools, GPUs of the largest);
    ``inf`` beyond a pool's last. No more GPUs than all jobs together could take are told."""
    gpus, most = outlook.gpus.astype(int), int(outlook.workers.max(axis=1, initial=1).sum())
    free_s = np.full((len(gpus), max(1, min(most, int(gpus.max(initial=1))))), np.inf)
    for pool, (total, place) in enumerate(zip(gpus.tolist(), outlook.pools, strict=True)):
        times = sorted(until for slot in place.slots for until in outlook.until_s[slot])[:total]
        free = [0.0] * (total - len(times)) + times
        free_s[pool, :total] = free[: free_s.shape[1]]
    return free_s
