"""Lower bounds that no schedule of the trace can beat: what a policy's results are held against.

Both are linear programmes over the time that jobs spend on GPU types. They leave out node boundaries (but not that a
gang larger than every node runs at its spread speed), restarts, rounds and the order within an interval, so they bound
every schedule from below. A forked job may run in as many ways at a time as it has copies; consolidations are left out.
Our definition; the interval-indexed form follows Schulz and Skutella (SIAM J. Discrete Math. 15, 2002).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import optimize, sparse

from slurm_hadar.errors import TraceError
from slurm_hadar.model import Job, Mix, Node, Speed
from slurm_hadar.simulator.nodes import gpus_by_type

__all__ = ["MOST_VARIABLES", "lower_bounds"]

_RELEASES = 24  # arrival times from which on the rest of the work must fit
_MOST_INTERVALS, _LEAST_INTERVALS = 200, 12
MOST_VARIABLES = 70_000  # finer intervals give a better bound: so many as are solved in a few seconds
_TANGENTS = (0.0, 0.5, 1.0)  # which of a job's ways, by run time
_HORIZON = 3.0  # intervals end here, in units of the bound on the total time; what is later is free of capacity


@dataclass(frozen=True)
class _Columns:
    """One column per way in which a job can run: a gang size on a type. ``share`` is the fraction of the job's work
    that it does per second, ``gpus`` what it occupies."""

    job: np.ndarray
    gpu_type: np.ndarray
    share: np.ndarray
    gpus: np.ndarray


def lower_bounds(
    jobs: Sequence[Job],
    nodes: Sequence[Node],
    *,
    jct: bool = True,
    copies: Mapping[str, Sequence[float]] | None = None,
    variables: int = MOST_VARIABLES,
) -> dict[str, float]:
    """``ttd_s`` and, unless ``jct`` is false, ``avg_jct_s``, for the measured jobs alone: what others take from them
    only makes it later.

    No bound that counts the others as well could be higher. A schedule of the measured jobs alone becomes one of all
    jobs, in which no measured job ends later, when the others get what those leave free, or run after them. So the
    least that all schedules reach for the measured jobs is the same with and without the others.

    ``copies`` has, for each forked job, the rates of its copies if it were alone. ``variables``: about so many has the
    programme for ``avg_jct_s``; with more the bound is higher. Jobs that can run nowhere must be left out. Raises
    TraceError if a programme cannot be solved.
    """
    if not jobs:
        return {}
    capacity = gpus_by_type(nodes)
    ways = _columns(jobs, nodes, capacity)
    gpus = np.array([float(capacity[t]) for t in capacity])
    first = min(job.arrival for job in jobs)
    arrivals = np.array([job.arrival - first for job in jobs])
    alone = _Alone.of(jobs, ways, copies or {})
    ttd_s = _ttd(ways, arrivals, gpus, alone)
    found = {"ttd_s": ttd_s}
    if jct:
        intervals = min(_MOST_INTERVALS, max(_LEAST_INTERVALS, variables // len(ways.job)))
        found["avg_jct_s"] = _avg_jct(ways, arrivals, gpus, alone, _grid(arrivals, alone, _HORIZON * ttd_s, intervals))
    return found


@dataclass(frozen=True)
class _Alone:
    """What each job could do if it were alone: in how many ways it can run at a time, and its shortest run time."""

    at_once: np.ndarray
    shortest_s: np.ndarray

    @classmethod
    def of(cls, jobs: Sequence[Job], ways: _Columns, copies: Mapping[str, Sequence[float]]) -> _Alone:
        fastest = np.zeros(len(jobs))
        np.maximum.at(fastest, ways.job, ways.share)
        at_once = np.ones(len(jobs))
        for index, job in enumerate(jobs):
            if job.job_id in copies and job.total_steps:
                at_once[index] = max(1, len(copies[job.job_id]))
                fastest[index] = max(fastest[index], sum(copies[job.job_id]) / job.total_steps)
        return cls(at_once, 1.0 / fastest)


def _columns(jobs: Sequence[Job], nodes: Sequence[Node], capacity: Mapping[str, int]) -> _Columns:
    """Gangs of one type. A balanced mixed gang does what its workers' types would do for their share of the time, and
    a gated one less, so that mixed shapes need no columns of their own."""
    shapes = {tuple(sorted(n.gpus.items())) for n in nodes}
    order = {t: i for i, t in enumerate(capacity)}
    rows: list[tuple[int, int, float, float]] = []
    for index, job in enumerate(jobs):
        assert job.total_steps is not None
        for workers in job.form.gang_sizes:
            for gpu_type, rate in _rates(job, workers, capacity, shapes).items():
                rows.append((index, order[gpu_type], rate / job.total_steps, float(workers)))
    table = np.array(rows)
    return _Columns(table[:, 0].astype(int), table[:, 1].astype(int), table[:, 2], table[:, 3])


def _rates(
    job: Job, workers: int, capacity: Mapping[str, int], shapes: Iterable[tuple[tuple[str, int], ...]]
) -> dict[str, float]:
    """The highest rate at which a gang's workers on one type can move the job on, per type they can be on."""
    open_to = [t for t in capacity if job.form.admits_type(t)]
    known = job.speeds_at(workers)
    speeds = {t: known[t] for t in open_to if t in known and known[t].steps_per_s > 0}
    mixing = job.form.mix is not Mix.NEVER
    largest = {t: max(dict(shape).get(t, 0) for shape in shapes) for t in speeds}
    together = max(sum(n for t, n in shape if t in speeds) for shape in shapes)
    rates = {}
    for gpu_type, speed in speeds.items():
        fits = capacity[gpu_type] >= workers
        if not fits and (not mixing or sum(capacity[t] for t in speeds) < workers):
            continue
        must_spread = workers > (together if mixing else largest[gpu_type])
        slowed = (speeds.values() if mixing else (speed,)) if must_spread else ()
        factor = max((s.factor(n) for s in slowed for n in _several(s)), default=1.0)
        rates[gpu_type] = speed.steps_per_s * factor
    return rates


def _several(speed: Speed) -> range:
    """The numbers of nodes above 1 that its factors tell apart."""
    return range(2, max(2, len(speed.by_nodes)) + 1)


def _solve(cost: np.ndarray, blocks: list[sparse.coo_matrix], limits: list[np.ndarray], what: str) -> float:
    """Minimise ``cost . x`` subject to ``rows x <= limits`` for the rows of all blocks, x >= 0.

    By interior points: ten times as fast here as HiGHS' own choice.
    """
    rows, most = sparse.vstack(blocks).tocsr(), np.concatenate(limits)
    solved = optimize.linprog(cost, A_ub=rows, b_ub=most, bounds=(0, None), method="highs-ipm")
    if solved.status != 0:
        raise TraceError(f"the lower bound on {what} cannot be computed: {solved.message}")
    return float(solved.fun)


def _ttd(ways: _Columns, arrivals: np.ndarray, gpus: np.ndarray, lone: _Alone) -> float:
    """Least T with: every job's work is done; a job runs in one way at a time (a forked one in as many as it has
    copies), from its arrival to T, and not faster than alone; and for some times t, what arrives at t or later fits on
    each type between t and T."""
    jobs, columns = len(arrivals), len(ways.job)
    each = np.arange(columns)
    done = sparse.coo_matrix((-ways.share, (ways.job, each)), (jobs, columns + 1))
    rows, cols = np.r_[ways.job, np.arange(jobs)], np.r_[each, np.full(jobs, columns)]
    alone = sparse.coo_matrix((np.r_[np.ones(columns), -lone.at_once], (rows, cols)), (jobs, columns + 1))
    blocks, limits = [done, alone], [-np.ones(jobs), -arrivals * lone.at_once]
    times = np.unique(np.quantile(arrivals, np.linspace(0, 1, _RELEASES), method="lower"))
    for moment in times:
        late = arrivals[ways.job] >= moment
        rows = np.r_[ways.gpu_type[late], np.arange(len(gpus))]
        cols = np.r_[each[late], np.full(len(gpus), columns)]
        blocks.append(sparse.coo_matrix((np.r_[ways.gpus[late], -gpus], (rows, cols)), (len(gpus), columns + 1)))
        limits.append(-gpus * moment)
    last = float((arrivals + lone.shortest_s).max())
    return max(last, _solve(np.r_[np.zeros(columns), 1.0], blocks, limits, "TTD"))


def _avg_jct(ways: _Columns, arrivals: np.ndarray, gpus: np.ndarray, lone: _Alone, starts: np.ndarray) -> float:
    """Mean over jobs of their ends less their arrivals, minimised over the fractions of work per interval; the
    intervals begin at ``starts``.

    A job ends no earlier than its arrival and all the time for which it runs; and no earlier than M and what
    :func:`_after_the_middle` says. M is the fraction-weighted begin of the intervals, which no mean busy time is below.
    The last interval has no end.
    """
    shortest_s = lone.shortest_s
    ends = np.r_[starts[1:], np.inf]
    n_jobs, n_types = len(arrivals), len(gpus)
    # variables: seconds of column c in interval k where the job is there before its end; then the jobs' ends
    column, interval = np.nonzero(ends[None, :] > arrivals[ways.job][:, None])
    job, count = ways.job[column], len(column)
    begin = np.maximum(starts[interval], arrivals[job])
    each, tail = np.arange(count), count + np.arange(n_jobs)
    shape = (n_jobs, count + n_jobs)
    work = ways.share[column]
    done = sparse.coo_matrix((-work, (job, each)), shape)
    rows, cols = np.r_[job, np.arange(n_jobs)], np.r_[each, tail]
    least = sparse.coo_matrix((-np.ones(n_jobs), (np.arange(n_jobs), tail)), shape)
    run_s = np.r_[1.0 / lone.at_once[job], -np.ones(n_jobs)]
    ran = sparse.coo_matrix((run_s, (rows, cols)), shape)
    blocks, limits = [done, least, ran], [-np.ones(n_jobs), -(arrivals + shortest_s), -arrivals]
    for later_s, base_s in _after_the_middle(ways, lone):
        figures = np.r_[work * (begin + later_s[column]), -np.ones(n_jobs)]
        blocks.append(sparse.coo_matrix((figures, (rows, cols)), shape))
        limits.append(base_s)
    ending = np.flatnonzero(np.isfinite(ends[interval]))
    pair, row = np.unique(job[ending] * len(starts) + interval[ending], return_inverse=True)
    blocks.append(sparse.coo_matrix((np.ones(len(ending)), (row, ending)), (len(pair), shape[1])))
    pair_job, pair_interval = np.divmod(pair, len(starts))
    length_s = ends[pair_interval] - np.maximum(starts[pair_interval], arrivals[pair_job])
    limits.append(lone.at_once[pair_job] * length_s)
    cell = ways.gpu_type[column[ending]] * len(starts) + interval[ending]
    held = ways.gpus[column[ending]]
    blocks.append(sparse.coo_matrix((held, (cell, ending)), (n_types * len(starts), shape[1])))
    length = np.where(np.isfinite(ends), ends - starts, 0.0)
    limits.append((gpus[:, None] * length[None, :]).ravel())
    cost = np.r_[np.zeros(count), np.ones(n_jobs)]
    total = _solve(cost, blocks, limits, "average JCT")
    return total / n_jobs - float(arrivals.mean())


def _after_the_middle(ways: _Columns, lone: _Alone) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """How much later than its mean busy time a job ends at least: sum of w_c * later_c - base, for (later, base), of
    columns and of jobs; w_c is the fraction of its work that it does in way c.

    Of all orders of its ways the one with the fastest at the end has least work far from the end. It gives w' P w / 2,
    P_cd the shorter of the two ways' run times of the whole job: a convex function, of which tangents are taken where
    all work is done in one way: the fastest, the middle and the slowest. A forked job, which runs in several ways at a
    time, has that of its shortest run time. Our derivation; for one machine it is the bound of Schulz and Skutella.
    """
    run_s = 1.0 / ways.share
    order = np.lexsort((run_s, ways.job))
    count = np.bincount(ways.job)
    first = np.cumsum(count) - count
    for part in _TANGENTS:
        way = order[first + np.rint(part * (count - 1)).astype(int)]
        whole_s = np.where(lone.at_once > 1, lone.shortest_s, run_s[way])
        yield np.minimum(run_s, whole_s[ways.job]), whole_s / 2


def _grid(arrivals: np.ndarray, lone: _Alone, horizon_s: float, intervals: int) -> np.ndarray:
    """Begins of intervals: geometric from the shortest job to the horizon, and quantiles of the arrivals."""
    low = max(float(np.quantile(lone.shortest_s, 0.02)), horizon_s / 1e4)
    quantiles = np.unique(np.quantile(arrivals, np.linspace(0, 1, intervals // 2)))
    geometric = np.geomspace(low, horizon_s, intervals - len(quantiles) + 1)
    return np.unique(np.r_[0.0, geometric, quantiles])
