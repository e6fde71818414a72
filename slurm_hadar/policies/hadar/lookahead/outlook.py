"""The jobs and GPU pools of a round as arrays: what Hadar's look-ahead prices are computed on.

A *pool* is a set of slots that jobs can hardly tell apart: same GPU type, same partitions, same number of GPUs on the
node; or several such sets, where a gang may lie on nodes of more than one. A *column* is one pool together with one of
a job's gang sizes and, where a job graph says that more nodes make the job slower, with some of the numbers of nodes
that it may have; where there is nothing of both there is one column per pool. Jobs with the same form, partition and
factors form a *class*, so that what they may use is worked out once.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from slurm_hadar.model import Form, Job, Mix, Speed
from slurm_hadar.policies.hadar.lookahead.estimates.lifetimes import Lifetimes, ends_s
from slurm_hadar.policies.toolkit.arena import Arena, open_nodes
from slurm_hadar.policies.toolkit.gangs import node_counts

__all__ = ["PREFERRED", "JobClass", "Outlook", "Pool", "survey"]

PREFERRED = 1.1  # the types an owner prefers count as this much faster than they are
_ALIKE = 0.95  # numbers of nodes on which a job runs at this share of its speed on the fewest of them count as one
_LEVELS = 3  # so many such sets of numbers of nodes are told apart; the last one has all the rest

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
_Known = TypeVar("_Known")
_ByNodes = tuple[tuple[int, str, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Pool:
    """Interchangeable slots. ``key`` names the pool over rounds; ``room`` are the GPUs of this type on a whole node, on
    the largest one."""

    key: str
    gpu_type: str
    room: int
    slots: tuple[int, ...]


@dataclass(slots=True, eq=False)
class JobClass:
    """What jobs with the same form, partition and factors have in common, per column. There is one of each.

    ``workers``: gang size; ``forms``: the form with that gang size and these numbers of nodes; ``slots``: those of the
    pool's slots that are open to it, None for all of them; ``nodes``: the fewest nodes of the pool that can take the
    gang, 0 if none can. ``level``: 0 on the numbers of nodes where the job is fastest, then 1, 2, ...
    """

    workers: list[float]
    forms: list[Form]
    slots: list[tuple[int, ...] | None]
    nodes: list[int]
    level: list[int]


@dataclass
class Outlook:
    """The jobs to decide about (n) and the columns (k) as arrays.

    ``run_s[n, k]``: seconds to finish, ``inf`` where it cannot run. ``workers[n, k]``: gang size. ``pool_of[k]``.
    ``steps[n]``: what remains. ``held[n]``: the column that it runs in; -1 if it does not run, or runs across pools.
    ``restart_s[n]``: what a start costs. ``gpus[p]``: GPUs of a pool; ``free[p]``: those that may be handed out;
    ``ahead[p]``: GPU-seconds that jobs which must stay where they are still need there, and ``until_s[s]`` for how long
    they need each of their GPUs on a slot. ``loose`` are jobs that fit no pool but may mix GPU types.
    """

    arena: Arena
    jobs: list[Job]
    loose: list[Job]
    pools: list[Pool]
    classes: list[JobClass]
    run_s: Floats
    workers: Floats
    pool_of: Ints
    steps: Floats
    held: Ints
    running: Bools
    restart_s: Floats
    gpus: Floats
    free: Ints
    ahead: Floats
    until_s: list[list[float]]

    @property
    def best_s(self) -> Floats:
        """Seconds to finish in the fastest column, shape (n,)."""
        best_s: Floats = self.run_s.min(axis=1, initial=np.inf)
        return best_s

    @property
    def grown(self) -> Floats:
        """The whole of each job over what remains of it, shape (n,)."""
        done = np.array([j.done_steps for j in self.jobs], float)
        grown: Floats = 1.0 + done / np.maximum(self.steps, 1e-9)
        return grown

    def away(self, known: Mapping[str, _Known]) -> dict[str, _Known]:
        """What is ``known`` of jobs that are not decided about for now, as while they start: they are not new
        afterwards."""
        return {job_id: known[job_id] for job_id in (*self.arena.kept, *self.arena.bound) if job_id in known}

    @cached_property
    def age_s(self) -> Floats:
        """Seconds since each job came, shape (n,); below 0 where a clock was set back."""
        return self.arena.snapshot.time - np.array([j.arrival for j in self.jobs], float)

    @property
    def rows(self) -> Ints:
        return np.arange(len(self.jobs))

    @cached_property
    def elastic(self) -> Bools:
        """Whether the job may have gangs of several sizes, shape (n,)."""
        return np.array([bool(j.form.sizes) for j in self.jobs], bool)

    @cached_property
    def guessed(self) -> Bools:
        """Whether the job is elastic and nobody knows its length, shape (n,): what size does it best is a guess."""
        return np.array([bool(j.form.sizes) and j.unknown_length for j in self.jobs], bool)

    @cached_property
    def fixed(self) -> Bools:
        """Whether the job cannot be moved again once it runs, shape (n,)."""
        return np.array([j.unmovable is not None for j in self.jobs], bool)


def survey(arena: Arena, lifetimes: Lifetimes) -> Outlook:
    """Lay out pools, columns and jobs.

    Of jobs whose steps nobody knows, ``lifetimes`` tells what remains. O(jobs x columns + classes x slots).
    """
    pools = _pools(arena)
    maker = _Classes(arena, pools)
    jobs, loose, classes, rated = [], [], [], []
    for job in arena.movers:
        job_class = maker.of(job)
        found = maker.rates(job, job_class)
        if any(found):
            jobs.append(job)
            classes.append(job_class)
            rated.append(found)
        elif job.form.mix is not Mix.NEVER:
            loose.append(job)
    orders = max((len(found) for found in rated), default=0) // max(1, len(pools))
    width = len(pools) * orders
    rates = _padded(rated, 0.0, width)
    # where there is no column the run time is infinite, and an area has to be, too
    workers = _padded([c.workers for c in classes], 1.0, width)
    steps = _remaining_steps(jobs, rates, lifetimes)
    with np.errstate(divide="ignore"):
        run_s = steps[:, None] / rates
    gpus, free, ahead, until_s = _room(arena, pools, lifetimes, one_by_one=not any(j.form.sizes for j in jobs))
    return Outlook(
        arena,
        jobs,
        loose,
        pools,
        classes,
        run_s,
        workers,
        np.tile(np.arange(len(pools)), orders),
        steps,
        _held(arena, jobs, classes, pools),
        np.array([j.running for j in jobs], bool),
        np.array([j.restart_cost_s for j in jobs], float),
        gpus,
        free,
        ahead,
        until_s,
    )


def _padded(rows: Sequence[list[float]], filler: float, width: int) -> Floats:
    """Rows of unlike lengths as an array of this width."""
    same = [row if len(row) == width else row + [filler] * (width - len(row)) for row in rows]
    return np.array(same, float).reshape(len(rows), width)


def _remaining_steps(jobs: Sequence[Job], rates: Floats, lifetimes: Lifetimes) -> Floats:
    """At the fastest column's rate."""
    best = rates.max(axis=1, initial=0.0).tolist()
    return np.array([lifetimes.steps_to_go(j, rate) for j, rate in zip(jobs, best, strict=True)], float)


def _pools(arena: Arena) -> list[Pool]:
    node = arena.snapshot.node
    groups: dict[tuple[str, tuple[str, ...], int], list[int]] = {}
    for slot, (name, gpu_type) in enumerate(arena.slots):
        where = node[name]
        groups.setdefault((gpu_type, where.partitions, where.gpus[gpu_type]), []).append(slot)
    return [
        Pool(
            "|".join(f"{gpu_type}/{'+'.join(partitions)}/{room}" for _, partitions, room in keys),
            gpu_type,
            max(room for *_, room in keys),
            tuple(sorted(slot for key in keys for slot in groups[key])),
        )
        for gpu_type, keys in _joined(arena, groups)
    ]


_Group = tuple[str, tuple[str, ...], int]


def _joined(arena: Arena, groups: Mapping[_Group, list[int]]) -> Iterator[tuple[str, list[_Group]]]:
    """The groups of slots that make a pool: those of a type on whose nodes one gang may lie together."""
    of = {slot: key for key, slots in groups.items() for slot in slots}
    by_type = Counter(gpu_type for gpu_type, *_ in groups)
    together: dict[_Group, _Group] = {key: key for key in groups}  # the first of those that it is joined with

    def join(keys: Iterable[_Group]) -> None:
        for gpu_type in {key[0] for key in keys}:
            firsts = {together[key] for key in keys if key[0] == gpu_type}
            first = min(firsts)
            together.update({key: first for key, its in together.items() if its in firsts})

    if any(count > 1 for count in by_type.values()):
        reaches = [arena.reach(job) for job in arena.movers if _may_spread(job.form)]
        for reach in {id(reach): reach for reach in reaches}.values():
            join({of[slot] for node in reach.nodes for slot in node})
        for job in arena.movers:
            join({of[slot] for slot, _ in arena.gang(job.placement)} if job.placement else ())
    pools: dict[_Group, list[_Group]] = {}
    for key, first in together.items():
        pools.setdefault(first, []).append(key)
    yield from ((first[0], keys) for first, keys in pools.items())


def _may_spread(form: Form) -> bool:
    return form.max_nodes > 1 and max(form.gang_sizes) > 1


def _room(
    arena: Arena, pools: Sequence[Pool], lifetimes: Lifetimes, *, one_by_one: bool
) -> tuple[Floats, Ints, Floats, list[list[float]]]:
    """GPUs, free GPUs, the work of jobs that must stay, per pool; and when each of their GPUs comes free, per slot.

    ``one_by_one``: of those of unknown length in a pool the first ends well before any is expected to, and the last
    well after. Where elastic jobs wait each is taken to end when it is expected: they lose by waiting for a chance end,
    since they could start smaller at once (measured on :mod:`benchmarks.regimes`)."""
    gpus = np.array([sum(arena.capacity[s] for s in p.slots) for p in pools], float)
    free = np.array([sum(arena.free[s] for s in p.slots) for p in pools], int)
    ahead, until_s = np.zeros(len(pools)), [list[float]() for _ in arena.slots]
    pool_of = {slot: i for i, p in enumerate(pools) for slot in p.slots}
    left_s, unknown = dict[str, float](), dict[int, list[str]]()
    for job_id, placement in arena.kept.items():
        job, gang = arena.snapshot.job[job_id], arena.gang(placement)
        rate = job.rate(placement)
        left_s[job_id] = lifetimes.steps_to_go(job, rate) / rate if rate > 0 else lifetimes.assumed_s
        for slot, count in gang:
            ahead[pool_of[slot]] += count * left_s[job_id]
        if one_by_one and job.unknown_length and gang:
            unknown.setdefault(pool_of[gang[0][0]], []).append(job_id)
    for there in unknown.values():
        there.sort(key=lambda job_id: (left_s[job_id], job_id))
        left_s |= zip(there, ends_s([left_s[job_id] for job_id in there]), strict=True)
    for job_id, placement in arena.kept.items():
        for slot, count in arena.gang(placement):
            until_s[slot] += [left_s[job_id]] * count
    return gpus, free, ahead, until_s


def _held(arena: Arena, jobs: Sequence[Job], classes: Sequence[JobClass], pools: Sequence[Pool]) -> Ints:
    pool_of = {slot: i for i, p in enumerate(pools) for slot in p.slots}
    held = np.full(len(jobs), -1)
    for row, (job, own) in enumerate(zip(jobs, classes, strict=True)):
        if not job.placement:
            continue
        gang = arena.gang(job.placement)
        touched = {pool_of[slot] for slot, _ in gang}
        if len(touched) == 1 and len(gang) == sum(len(counts) for _, counts in job.placement.shares):
            (pool,) = touched
            fitting = [k for k in range(pool, len(own.nodes), len(pools)) if own.workers[k] == job.placement.workers]
            nodes = len(job.placement.nodes)
            held[row] = next((k for k in fitting if nodes <= own.forms[k].max_nodes), fitting[-1] if fitting else -1)
    return held


def _by_nodes(job: Job) -> _ByNodes:
    """What a graph says of each gang size and GPU type; empty without one."""
    if job.form.max_nodes == 1 or not any(speed.by_nodes for speed in job.speeds.values()):
        return ()
    return tuple(
        (size, gpu_type, speed.by_nodes)
        for size in job.form.gang_sizes
        for gpu_type, speed in sorted(job.speeds_at(size).items())
        if speed.by_nodes
    )


class _Classes:
    """Makes each class once, and the rates of each distinct set of speeds in it."""

    def __init__(self, arena: Arena, pools: Sequence[Pool]) -> None:
        self._arena = arena
        self._pools = pools
        self._made: dict[tuple[Form, str, _ByNodes], JobClass] = {}
        self._rates: dict[tuple[JobClass, int, frozenset[str]], list[float]] = {}
        self._open: dict[tuple[str, frozenset[str] | None], list[tuple[int, ...] | None]] = {}

    def of(self, job: Job) -> JobClass:
        key = (job.form, job.partition, _by_nodes(job))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = self._make(job)
        return found

    def _make(self, job: Job) -> JobClass:
        sizes, open_slots = job.form.gang_sizes, self._open_slots(job)
        several = bool(_by_nodes(job))
        parts: dict[tuple[int, int], list[Form]] = {}  # by gang size and pool, level by level
        for order, size in enumerate(sizes):
            form = job.form if not job.form.sizes else replace(job.form, workers=size, sizes=())
            for index, pool in enumerate(self._pools):
                speed = job.speeds_at(size).get(pool.gpu_type) if several else None
                gpus_per_node = self._gpus_of(pool, open_slots[index])
                parts[order, index] = ([] if speed is None else _levels(form, speed, gpus_per_node)) or [form]
        levels = max(map(len, parts.values()), default=1)
        made = JobClass([], [], open_slots * (len(sizes) * levels), [], [])
        for level, order, index in itertools.product(range(levels), range(len(sizes)), range(len(self._pools))):
            own, pool = parts[order, index], self._pools[index]
            form = own[min(level, len(own) - 1)]
            able = level < len(own) and form.admits_type(pool.gpu_type)
            made.forms.append(form)
            made.workers.append(float(sizes[order]))
            made.level.append(level)
            made.nodes.append(self._fewest_nodes(form, pool, open_slots[index]) if able else 0)
        return made

    def _gpus_of(self, pool: Pool, slots: tuple[int, ...] | None) -> list[int]:
        return [self._arena.capacity[s] for s in (pool.slots if slots is None else slots)]

    def _fewest_nodes(self, form: Form, pool: Pool, slots: tuple[int, ...] | None) -> int:
        gpus_per_node = self._gpus_of(pool, slots)
        return next((nodes for nodes in node_counts(form) if _holds(form, nodes, gpus_per_node)), 0)

    def rates(self, job: Job, job_class: JobClass) -> list[float]:
        """Steps/s per column, on the fewest nodes that can take the gang; 0 where it cannot run."""
        if job.scaled:
            return self._rated(job, job_class)
        # jobs alike have their speeds in one object, which lives as long as they do
        key = (job_class, id(job.speeds), job.prefer)
        found = self._rates.get(key)
        if found is None:
            found = self._rates[key] = self._rated(job, job_class)
        return found

    def _rated(self, job: Job, job_class: JobClass) -> list[float]:
        rates = [0.0] * len(job_class.nodes)
        count, sizes = len(self._pools), job.form.gang_sizes
        for order in range(len(rates) // max(1, count)):
            speeds = job.speeds_at(sizes[order % len(sizes)])
            for column in range(order * count, (order + 1) * count):
                nodes = job_class.nodes[column]
                speed = speeds.get(self._pools[column - order * count].gpu_type) if nodes else None
                if speed is not None and speed.steps_per_s > 0:
                    rates[column] = speed.on(nodes)
        if job.prefer:
            rates = [
                r * (PREFERRED if self._pools[k % count].gpu_type in job.prefer else 1.0) for k, r in enumerate(rates)
            ]
        return rates

    def _open_slots(self, job: Job) -> list[tuple[int, ...] | None]:
        key = (job.partition, job.form.nodes)
        if key not in self._open:
            nodes = open_nodes(self._arena.snapshot, job)
            found: list[tuple[int, ...] | None] = []
            for pool in self._pools:
                inside = tuple(s for s in pool.slots if self._arena.slots[s][0] in nodes)
                found.append(None if len(inside) == len(pool.slots) else inside)
            self._open[key] = found
        return self._open[key]


def _levels(form: Form, speed: Speed, gpus_per_node: Sequence[int]) -> list[Form]:
    """The form limited to the numbers of nodes on which the job is about as fast as on the fewest, and then to those on
    which it is slower."""
    counts = [n for n in node_counts(form) if _holds(form, n, gpus_per_node)]
    levels: list[list[int]] = []
    for count in counts:
        if not levels or (len(levels) < _LEVELS and speed.factor(count) < _ALIKE * speed.factor(levels[-1][0])):
            levels.append([])
        levels[-1].append(count)
    return [replace(form, min_nodes=level[0], max_nodes=level[-1]) for level in levels]


def _holds(form: Form, nodes: int, gpus_per_node: Sequence[int]) -> bool:
    """Whether a gang fits on exactly ``nodes`` of the nodes that have ``gpus_per_node`` GPUs."""
    if form.uniform or nodes == 1:
        return sum(1 for r in gpus_per_node if r * nodes >= form.workers) >= nodes
    largest = sorted((r for r in gpus_per_node if r > 0), reverse=True)[:nodes]
    return len(largest) == nodes and sum(largest) >= form.workers
