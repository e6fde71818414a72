"""What Hadar with look-ahead prices tells the owner of a job that waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar.model import EMPTY, Job, Placement, Tier, Wait
from slurm_hadar.policies.hadar.lookahead.outlook import Floats, JobClass, Outlook
from slurm_hadar.policies.hadar.lookahead.planning.together import slower
from slurm_hadar.policies.hadar.lookahead.prices import Queues
from slurm_hadar.policies.hadar.lookahead.queueing import Queueing
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.waits import Obstacles, listing
from slurm_hadar.units import span

__all__ = ["explain", "payoff_of"]

_NAMED = 32  # for so many jobs, those nearest to their turn, the holders of what they want are looked up


def payoff_of(queueing: Queueing) -> Floats:
    """``w_j + W_j * (price at its turn - price now)``, shape (n,): positive for as long as running it now delays others
    by less than it gains. In weights of jobs: 1 is a second's delay of an average job, per second."""
    outlook, queues = queueing.outlook, queueing.told
    if not outlook.jobs:
        return np.zeros(0)
    workers = outlook.workers[outlook.rows, queues.column]
    return queueing.weights + workers * (queues.after - queues.price[outlook.pool_of[queues.column]])


def explain(queueing: Queueing, placements: Mapping[str, Placement], payoffs: Floats) -> dict[str, Wait]:
    """A Wait for every job to be decided about that has no placement, and for those on their way in or out.

    ``payoffs[n]``: see :func:`payoff_of`.
    """
    outlook, arena = queueing.outlook, queueing.outlook.arena
    waits = {job_id: Wait(Tier.TRANSIENT, why) for job_id, why in arena.odd.items()}
    obstacles = _ByClass(arena)
    queued: list[int] = []
    able = np.isfinite(outlook.run_s)
    for job, row in _with_rows(arena.movers, outlook.jobs):
        if job.job_id in placements:
            continue
        obstacle = obstacles.of(job, None if row is None else (outlook.classes[row], able[row].tobytes()))
        if obstacle is not None:
            waits[job.job_id] = obstacle
        elif row is None:
            waits[job.job_id] = Wait(Tier.CAPACITY, "needs GPUs of several types at once, which others hold")
        else:
            queued.append(row)
    if queued:
        schedule = queueing.schedule
        together = frozenset(() if schedule is None else np.flatnonzero(schedule.together).tolist())
        waits |= _Queue(outlook, queueing.told, placements, payoffs, queueing.patient, together).waits(queued)
    for job_id, why in _because_of_overdue(queueing, placements):
        if job_id in waits:
            waits[job_id] = replace(waits[job_id], why=f"{waits[job_id].why}; {why}")
    return waits


def _because_of_overdue(queueing: Queueing, placements: Mapping[str, Placement]) -> Iterator[tuple[str, str]]:
    """What those that go first, and others of whom GPUs are kept free for them, are told of that."""
    outlook = queueing.outlook
    pool_of = outlook.pool_of[queueing.queues.column]
    for row in queueing.first:
        job = outlook.jobs[row]
        if job.job_id in placements:
            continue
        yield job.job_id, "it has waited so long for its length that it goes before all others (overdue)"
        for other in np.flatnonzero(pool_of == pool_of[row]):
            if outlook.jobs[other].unmovable is not None and other not in queueing.first:
                gpu_type = outlook.pools[pool_of[row]].gpu_type
                yield (
                    outlook.jobs[other].job_id,
                    f"GPUs of type {gpu_type} are kept free for {job.job_id}, which is overdue: this job could not be "
                    "moved again once it runs",
                )


def _with_rows(movers: Iterable[Job], jobs: Sequence[Job]) -> Iterator[tuple[Job, int | None]]:
    """Each with its row in ``jobs``, which are some of them in the same order; None for the others."""
    row = 0
    for job in movers:
        if row < len(jobs) and jobs[row] is job:
            yield job, row
            row += 1
        else:
            yield job, None


class _ByClass:
    """Obstacles, looked up once for all jobs of a class that can run in the same columns."""

    def __init__(self, arena: Arena) -> None:
        self._obstacles = Obstacles(arena)
        self._known: dict[tuple[JobClass, bytes], Wait | None] = {}

    def of(self, job: Job, job_class: tuple[JobClass, bytes] | None) -> Wait | None:
        if job_class is None:
            return self._of(job)
        if job_class not in self._known:
            self._known[job_class] = self._of(job)
        return self._known[job_class]

    def _of(self, job: Job) -> Wait | None:
        """An elastic job is kept from running only where all of its sizes are; then by what keeps the smallest."""
        if not job.form.sizes:
            return self._obstacles.of(job)
        found = []
        for size in job.form.gang_sizes:
            form = replace(job.form, workers=size, sizes=())
            found.append(self._obstacles.of(replace(job, form=form, speeds=job.speeds_at(size), scaled={})))
        return None if None in found else found[0]


def _why(job: Job, before: int, turn_s: float, gpu_type: str) -> str:
    if before == 0:
        what = "its gang" if job.form.workers > 1 else "it"
        return f"first in line for {gpu_type}, but {what} does not fit beside the jobs that run"
    jobs = "1 job" if before == 1 else f"{before} jobs"
    go = "goes" if before == 1 else "go"
    return f"{jobs} with {span(turn_s)} of work {go} before it on {gpu_type}"


@dataclass(frozen=True)
class _Queue:
    """The reasons of jobs that wait for their turn. ``patient``: the rows that wait for a faster type by choice;
    ``together``: those that a plan starts on no more nodes than they need."""

    outlook: Outlook
    queues: Queues
    placements: Mapping[str, Placement]
    payoffs: Floats
    patient: Set[int]
    together: Set[int]

    def waits(self, rows: list[int]) -> dict[str, Wait]:
        """A Wait for each of ``rows``; the nearest to their turn also learn who holds what they want."""
        outlook, queues = self.outlook, self.queues
        pools = outlook.pool_of[queues.column]
        price = (outlook.workers[outlook.rows, queues.column] * queues.price[pools]).tolist()
        turn_s, payoff, place = queues.turn_s.tolist(), self.payoffs.tolist(), self._places().tolist()
        types = [outlook.pools[p].gpu_type for p in pools.tolist()]
        found = {}
        nearest = set(sorted(rows, key=turn_s.__getitem__)[:_NAMED])
        holding = self._holding() if nearest else {}
        for row in rows:
            why = _why(outlook.jobs[row], place[row], turn_s[row], types[row])
            wanted = EMPTY
            if row in nearest:
                wanted = self._wanted(row)
                holders = list(dict.fromkeys(j for n in wanted.nodes for j in holding.get((n, types[row]), ())))
                if holders:
                    why += f" (held by {listing(holders)})"
                why += self._apart(row)
            if row in self.patient:
                why += "; it waits for a faster type, since it cannot be moved once it runs (patience_s bounds this)"
            tier = Tier.CAPACITY if payoff[row] > 0 else Tier.POLICY
            found[outlook.jobs[row].job_id] = Wait(tier, why, price[row], payoff[row], wanted)
        return found

    def _apart(self, row: int) -> str:
        """What more nodes would cost the job, which it therefore does not take, or not for good."""
        run_s, level = self.outlook.run_s[row], np.array(self.outlook.classes[row].level)
        if row in self.together:
            column = int(self.queues.column[row])
            nodes = self.outlook.classes[row].nodes[column]
            rest = f"it waits for room on {nodes} node{'s' if nodes > 1 else ''}"
            return f"; on more nodes it would be {slower(self.outlook, row, column):.1f} times slower, so {rest}"
        worse = run_s[: len(level)][level > 0].min(initial=np.inf) / run_s[self.queues.column[row]]
        return f"; on more nodes its graph makes it {worse:.1f} times slower" if 1.0 < worse < np.inf else ""

    def _places(self) -> np.ndarray:
        """How many jobs go before each in its pool, those that run included; shape (n,)."""
        outlook, queues = self.outlook, self.queues
        pools = outlook.pool_of[queues.column]
        place = np.zeros(len(pools), int)
        for pool in range(len(outlook.pools)):
            inside = np.flatnonzero(pools == pool)
            place[inside[np.argsort(queues.key[inside], kind="stable")]] = np.arange(len(inside))
        return place

    def _wanted(self, row: int) -> Placement:
        """The first place in its pool that would take the gang if nobody ran there."""
        outlook, arena = self.outlook, self.outlook.arena
        own, column = outlook.classes[row], int(self.queues.column[row])
        slots = own.slots[column]
        pool = outlook.pools[outlook.pool_of[column]]
        left, mapping = own.forms[column].workers, {}
        for slot in pool.slots if slots is None else slots:
            here = min(left, arena.capacity[slot])
            if here and (left <= arena.capacity[slot] or own.forms[column].max_nodes > 1):
                node, gpu_type = arena.slots[slot]
                mapping[node] = {gpu_type: here}
                left -= here
            if left == 0:
                return Placement.of(mapping)
        return EMPTY

    def _holding(self) -> dict[tuple[str, str], list[str]]:
        holding: dict[tuple[str, str], list[str]] = {}
        for job_id, placement in self.placements.items():
            for node, gpu_type, _ in placement.items():
                holding.setdefault((node, gpu_type), []).append(job_id)
        return holding
