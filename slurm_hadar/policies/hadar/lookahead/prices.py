"""Prices that look ahead: which pool each job should wait for, and what a GPU-second there costs the jobs behind it.

Hadar's price ``k_h^r(t)`` of a GPU in a later slot is what the jobs lose that could have had it. In the fluid limit,
in which all GPUs of a pool serve one job after the other, it can be written down: jobs of weight w that wait for pool r
are served in the order of ``area / w`` (Smith's rule, area = workers * seconds), job j waits for the areas ``B`` before
it and delays the weights ``A`` behind it, so that running it in column k costs, over all jobs,

    cost(j, k) = w_j * (run_s[j, k] + q * B / C_r) + area[j, k] * (q * A + terminal_r) / C_r

and ``(A + terminal_r) / C_r`` is the price of a GPU-second of pool r at the time when j runs. But GPUs serve as many
as fit, and while there is room nobody waits: ``q`` says how much of a fluid the pool is, of which j takes the share u
of the GPUs together with all others there. Of a batch it is

    1 - 1 / (2 * u) for u > 1, else 0

by which what another of many equal jobs costs is less than in the fluid: u * C of them wait for C * u * (u - 1) / 2 run
times in all. Where jobs keep coming what is free may not stay so, and q is

    min(1, u) ** (sqrt(2 * (m + 1)) - 2)

with m gangs as wide as j that the pool holds, the factor by which one waits less for m servers that are busy for a
share u of the time than for one that is as fast as all of them (Sakasegawa 1977, "An approximation formula L_q = alpha
* rho^beta / (1 - rho)"). Nobody leaves a place before somebody has come who wants it: where j runs, room is room. With
elastic jobs q is 1: they take all the room that there is.

Each job wants the column of least cost; where none can improve, the assignment is a local optimum, in full pools of the
weighted sum of completion times. For one-GPU jobs it is the assignment problem of AlloX (EuroSys 2020) with its
positions made continuous. All but q is our definition.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from slurm_hadar.model import Mix
from slurm_hadar.policies.hadar.lookahead import arrivals
from slurm_hadar.policies.hadar.lookahead.estimates import doubt
from slurm_hadar.policies.hadar.lookahead.makespan import shadow_prices, with_leftovers
from slurm_hadar.policies.hadar.lookahead.outlook import Bools, Floats, Ints, Outlook

__all__ = ["Aim", "Queues", "Target", "as_planned", "assign", "balance", "per_pool", "set_target"]

_COLD_SWEEPS, _WARM_SWEEPS = 40, 6
_TURN = 20.0  # restarts, of which a critical job's turn is worth no fewer
_MOST_WORK = 80_000  # sweeps times jobs: with very many jobs one job's column means little


@dataclass(frozen=True, slots=True)
class Aim:
    """What the frontier parameter means in figures.

    ``slack``: how far above its lower bound the makespan may end, as a share; ``margin``: a job is critical when the
    time that it may take reaches ``1 - margin`` of the time left.
    """

    slack: float
    margin: float

    @classmethod
    def of(cls, frontier: float) -> Aim | None:
        """None at 0, where no makespan is aimed at. Our definition: 3 % at 0.5, nothing at 1, ever more towards 0; from
        0.5 on the margin grows to 1, where all jobs are critical and proceed in step, the longest first."""
        if frontier <= 0:
            return None
        return cls(0.03 * ((1.0 - frontier) / frontier) ** 1.6, max(0.02, (2.0 * frontier - 1.0) ** 3))


@dataclass
class Target:
    """When all work shall be done, and which jobs cannot wait any longer for that.

    ``end``: epoch second. ``price[p]``: what a GPU of the pool is worth for the makespan, 1 on average. ``column[n]``:
    where each job costs least at these prices; ``need_s[n]``: its run time there, and some restarts more where it runs
    there: it goes on until it is ahead of the others by these. ``critical[n]``.
    """

    end: float
    price: Floats
    column: Ints
    need_s: Floats
    critical: Bools
    left_s: float


def set_target(outlook: Outlook, aim: Aim, area: Floats, before: float, fresh: bool) -> Target:
    """The makespan to aim at, from the one aimed at before.

    The lower bound is the larger of the fluid makespan and the longest run time. With ``fresh`` jobs in the queue the
    target may move to ``1 + slack`` times the bound; otherwise it moves only as far as the bound forces it to.
    """
    now = outlook.arena.snapshot.time
    capacity = np.maximum(outlook.gpus, 1.0)
    price, bound = shadow_prices(per_pool(outlook, area), capacity)
    for taken in _with_leftovers(outlook, capacity):
        larger = outlook.run_s * taken
        other, higher = shadow_prices(per_pool(outlook, larger), capacity)
        if higher > bound:
            price, bound, area = other, higher, larger
    best_s = outlook.best_s
    longest_s = float(best_s[np.isfinite(best_s)].max(initial=0.0))
    # where the longest job ends last whatever the others do, no pool is short of time, and nobody needs to leave one
    paid = price[outlook.pool_of] * area if bound >= longest_s else outlook.run_s
    bound = max(bound, longest_s)
    end = max(before, now + bound * (1.0 + (aim.slack if fresh else 0.0)))
    left_s = end - now
    worth = np.where(outlook.run_s <= 1.0001 * bound, paid, np.inf)
    column = worth.argmin(axis=1)
    need_s = outlook.run_s[outlook.rows, column] + np.where(outlook.held == column, _TURN * outlook.restart_s, 0.0)
    return Target(end, price, column, need_s, _late(outlook, column, need_s, left_s * (1.0 - aim.margin)), left_s)


def _with_leftovers(outlook: Outlook, capacity: Floats) -> list[Floats]:
    """None where a gang may be on several pools at once."""
    if any(job.form.mix is not Mix.NEVER for job in outlook.jobs):
        return []
    return with_leftovers(outlook.workers, capacity[outlook.pool_of], np.isfinite(outlook.run_s))


def _late(outlook: Outlook, column: Ints, need_s: Floats, most_s: float) -> Bools:
    """Who may need so long in its column, or longer: who is not started in time because it seemed faster or shorter
    than it is cannot be made up for. Few are near enough to be looked at one by one."""
    late = need_s >= most_s
    for row in np.flatnonzero(~late & (need_s * doubt.MOST >= most_s)).tolist():
        k = column[row]
        gpu_type = outlook.pools[outlook.pool_of[k]].gpu_type
        late[row] = need_s[row] * doubt.longer(outlook.jobs[row], gpu_type, int(outlook.workers[row, k])) >= most_s
    return late


def per_pool(outlook: Outlook, area: Floats) -> Floats:
    """The least area of each job per pool, shape (n, pools)."""
    pools = len(outlook.pools)
    least: Floats = area.reshape(len(area), -1, pools).min(axis=1)
    return least


@dataclass(frozen=True)
class Queues:
    """Who waits for which column, and the prices that follow.

    ``column[n]``; ``key[n]``: the order of service, area / weight there if no plan says otherwise; ``turn_s[n]``: how
    long the work before it takes; ``after[n]``: weight of the jobs behind it, over the pool's GPUs, terminal weight
    included: the price of a GPU-second at its turn. ``price[p]``: the same in front of all jobs, that is now.
    """

    column: Ints
    key: Floats
    turn_s: Floats
    after: Floats
    price: Floats


@dataclass(frozen=True, slots=True)
class _Supply:
    """What a pool's queue is served with: GPUs, how many of them are taken by whom no queue has, the work that goes
    before it, and the weight assumed behind all. ``stream``: whether jobs keep coming, from 0 to 1."""

    gpus: Floats
    taken: Floats
    ahead: Floats
    terminal: Floats
    stream: float


def assign(
    outlook: Outlook, seconds: Floats, weights: Floats, column: Ints, terminal: Floats, sweeps: int = _WARM_SWEEPS
) -> Queues:
    """Best responses from ``column`` (-1: not assigned yet) until nobody gains, or ``sweeps`` times.

    ``seconds[n, k]``: run time with the cost of getting there. ``terminal[p]``: weight that is assumed to wait behind
    all others. A queue that is mostly new gets more sweeps. O(sweeps * jobs * columns * log jobs); deterministic.
    """
    area, supply = seconds * outlook.workers, _supply(outlook, terminal)
    rows = outlook.rows
    lost = (column < 0) | ~np.isfinite(area[rows, column])
    column = np.where(lost, area.argmin(axis=1), column)
    if 2 * lost.sum() > len(column):
        sweeps = _COLD_SWEEPS
    for sweep in range(min(sweeps, _MOST_WORK // max(1, len(column)) + 3)):
        cost = _costs(outlook, seconds, weights, column, supply)
        moved = _respond(cost, area, column, sweep)
        if moved is None:
            break
        column = moved
    mine = area[outlook.rows, column]
    return _queues(outlook, mine, weights, column, mine / weights, supply)


def as_planned(
    outlook: Outlook, seconds: Floats, weights: Floats, column: Ints, place: Ints, start_s: Floats, terminal: Floats
) -> Queues:
    """The queues of a plan that was found otherwise, with the prices that follow from its order: ``place[n]`` of each
    job in it, and ``start_s[n]`` when its turn comes."""
    mine = (seconds * outlook.workers)[outlook.rows, column]
    queues = _queues(outlook, mine, weights, column, place.astype(float), _supply(outlook, terminal))
    return replace(queues, turn_s=start_s)


def _supply(outlook: Outlook, terminal: Floats) -> _Supply:
    free = outlook.free > 0
    gpus = np.where(free, outlook.free, np.maximum(outlook.gpus, 1.0)).astype(float)
    return _Supply(
        gpus, np.where(free, 0.0, gpus), np.where(free, 0.0, outlook.ahead), terminal, arrivals.stream(outlook)
    )


def _queues(outlook: Outlook, mine: Floats, weights: Floats, column: Ints, key: Floats, supply: _Supply) -> Queues:
    """Each pool serves the jobs of its columns in the order of ``key[n]``; ``mine[n]`` is what each takes there."""
    gpus, ahead, terminal = supply.gpus, supply.ahead, supply.terminal
    turn_s, after, price = np.zeros(len(column)), np.zeros(len(column)), terminal / gpus
    for pool in range(len(outlook.pools)):
        inside = np.flatnonzero(outlook.pool_of[column] == pool)
        order = inside[np.argsort(key[inside], kind="stable")]
        if len(order):
            total, work = np.cumsum(weights[order]), np.cumsum(mine[order])
            after[order] = (total[-1] - total + terminal[pool]) / gpus[pool]
            turn_s[order] = (work - mine[order] + ahead[pool]) / gpus[pool]
            price[pool] = (total[-1] + terminal[pool]) / gpus[pool]
    return Queues(column, key, turn_s, after, price)


def _costs(outlook: Outlook, seconds: Floats, weights: Floats, column: Ints, supply: _Supply) -> Floats:
    """Cost of each job in each column while all others stay, shape (n, k)."""
    area = seconds * outlook.workers
    cost = np.full(area.shape, np.inf)
    own, elastic = outlook.pool_of[column], bool(outlook.elastic.any())
    mine, wide = area[outlook.rows, column], outlook.workers[outlook.rows, column]
    for pool, size in enumerate(supply.gpus):
        inside = np.flatnonzero(own == pool)
        keys = mine[inside] / weights[inside]
        order = np.argsort(keys, kind="stable")
        keys, inside = keys[order], inside[order]
        areas = np.concatenate(([0.0], np.cumsum(mine[inside])))
        behind = np.concatenate(([0.0], np.cumsum(weights[inside])))
        taken = wide[inside].sum() + supply.taken[pool]
        for k in np.flatnonzero(outlook.pool_of == pool):
            able = np.flatnonzero(np.isfinite(area[:, k]))
            place = np.searchsorted(keys, area[able, k] / weights[able], "left")
            here = own[able] == pool
            itself_before = here & (mine[able] < area[able, k])
            before = areas[place] - np.where(itself_before, mine[able], 0.0)
            after = behind[-1] - behind[place] - np.where(here & ~itself_before, weights[able], 0.0)
            workers = outlook.workers[able, k]
            share = (taken - np.where(here, wide[able], 0) + workers) / size
            keeps = (outlook.held[able] == k) & (share <= 1.0)  # until somebody comes who wants it
            queues = 1.0 if elastic else _queue_share(share, size / workers, supply.stream) * ~keeps
            cost[able, k] = weights[able] * (seconds[able, k] + (queues * before + supply.ahead[pool]) / size)
            cost[able, k] += area[able, k] * (queues * np.maximum(after, 0.0) + supply.terminal[pool]) / size
    return cost


def _queue_share(taken: Floats, gangs: Floats, stream: float) -> Floats:
    """``q`` of the module's docstring, by u and m."""
    batch = np.maximum(0.0, 1.0 - 0.5 / taken) * (taken > 1.0)
    coming: Floats = np.minimum(1.0, taken) ** (np.sqrt(2.0 * (gangs + 1.0)) - 2.0)
    return stream * coming + (1.0 - stream) * batch


def _respond(cost: Floats, area: Floats, column: Ints, sweep: int) -> Ints | None:
    """The jobs that gain most per GPU-second move to their best column; None if nobody gains.

    Not all at once, since each was computed as if the others stayed.
    """
    rows = np.arange(len(column))
    best = cost.argmin(axis=1)
    gain = cost[rows, column] - cost[rows, best]
    wants = np.flatnonzero((best != column) & (gain > 1e-9 * cost[rows, column]))
    if not len(wants):
        return None
    share = 0.5 if sweep < 4 else 0.3
    per_area = gain[wants] / np.maximum(area[wants, best[wants]], 1e-9)
    chosen = wants[np.argsort(-per_area, kind="stable")][: max(1, int(share * len(wants)))]
    moved = column.copy()
    moved[chosen] = best[chosen]
    return moved


def balance(outlook: Outlook, area: Floats, column: Ints, terminal: Floats, left_s: float) -> Floats:
    """Terminal weights adjusted so that no pool is busy longer than ``left_s``: dearer where the work takes longer.
    None rises faster than that of an idle pool falls, lest jobs be kept for hundreds of rounds from a pool that was far
    too busy once."""
    work = np.bincount(outlook.pool_of[column], weights=area[outlook.rows, column], minlength=len(outlook.pools))
    busy_s = (work + outlook.ahead) / np.maximum(outlook.gpus, 1.0)
    step = 0.5 * len(column) / max(1.0, outlook.gpus.sum())
    balanced: Floats = np.maximum(0.0, terminal + step * np.minimum(1.0, busy_s / max(left_s, 1.0) - 1.0))
    return balanced
