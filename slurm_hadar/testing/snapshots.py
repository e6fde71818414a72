"""Hypothesis strategies for clusters and queues, odd ones included."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from slurm_hadar.model import EMPTY, Fork, Form, Job, JobState, Mix, Node, Partition, Placement, Plan, Snapshot, Speed
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.ledger import Ledger
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL

__all__ = ["GPU_TYPES", "carry_out", "empty_clusters", "forms", "pending_jobs", "snapshots", "speeds"]

GPU_TYPES = ("v100", "p100", "k80")
NOW = 1_000_000.0


# Strategies are made once: to make one takes longer than to draw from it.
_ROOM = st.sampled_from((1, 2, 4, 4, 8))
_NODE_TYPES = st.lists(st.sampled_from(GPU_TYPES), min_size=1, max_size=2, unique=True)
_STATES = st.sampled_from((JobState.RUNNING,) * 6 + (JobState.COMPLETING, JobState.SUSPENDED))
_FORKS = st.sampled_from((None, None, *Fork))


@functools.cache
def speeds(some: bool = True) -> st.SearchStrategy[Mapping[str, Speed]]:
    """Speeds on a few types; with ``some`` false, on all of them and never zero."""
    least = 0.0 if some else 0.01
    speed = st.builds(
        Speed,
        st.one_of(st.just(least), st.floats(0.01, 100.0)) if some else st.floats(least, 100.0),
        st.floats(0.1, 1.0),
    )
    if not some:
        return st.fixed_dictionaries(dict.fromkeys(GPU_TYPES, speed))
    return st.dictionaries(st.sampled_from(GPU_TYPES), speed, max_size=len(GPU_TYPES))


@functools.cache
def forms(node_names: tuple[str, ...] = ()) -> st.SearchStrategy[Form]:
    """Any form: gangs of 1 to 9 workers on 1 to 4 nodes, uniform or not, mixing or not, limited or not."""
    types = st.frozensets(st.sampled_from((*GPU_TYPES, "a100")), min_size=1)
    nodes = st.frozensets(st.sampled_from(node_names)) if node_names else st.just(frozenset[str]())

    def form(workers: int, min_nodes: int, more: int, *rest: Any) -> Form:
        return Form(workers, min_nodes, min_nodes + more, *rest)

    return st.builds(
        form,
        st.sampled_from((1, 1, 1, 2, 2, 3, 4, 6, 8, 9)),
        st.sampled_from((1, 1, 1, 1, 2, 3)),
        st.integers(0, 3),
        st.booleans(),
        st.sampled_from((Mix.NEVER, Mix.NEVER, *Mix)),
        st.one_of(st.none(), st.none(), types),
        st.one_of(st.none(), st.none(), st.none(), nodes),
    )


def pending_jobs(
    job_id: str, node_names: tuple[str, ...] = (), partitions: tuple[str, ...] = ("",)
) -> st.SearchStrategy[Job]:
    """A job that waits: known or unknown length, perhaps pinned, perhaps not movable once started."""
    return _pending(node_names, partitions).map(lambda job: replace(job, job_id=job_id))


@functools.cache
def _pending(node_names: tuple[str, ...], partitions: tuple[str, ...]) -> st.SearchStrategy[Job]:
    def job(total: float | None, done: float, age_s: float, **others: Any) -> Job:
        return Job("", total_steps=total, done_steps=done * (total or 0.0), arrival=NOW - age_s, **others)

    return st.builds(
        job,
        total=st.one_of(st.none(), st.floats(1.0, 1e6)),
        done=st.sampled_from((0.0, 0.0, 0.3, 1.0)),
        age_s=st.floats(0.0, 1e5),
        form=forms(node_names),
        partition=st.sampled_from(partitions),
        speeds=speeds(),
        pinned=st.sampled_from((None, None, None, None, "asks for a GPU type by name")),
        unmovable=st.sampled_from((None, None, None, "saves no checkpoint")),
        restart_cost_s=st.sampled_from((0.0, 30.0, 300.0)),
        weight=st.sampled_from((1.0, 1.0, 0.1, 5.0)),
        deadline=st.one_of(st.none(), st.floats(NOW - 1e4, NOW + 1e5)),
    )


@st.composite
def empty_clusters(draw: st.DrawFn, least: int = 0) -> tuple[Node, ...]:
    """Up to five nodes, some with GPUs of two types, all up and empty."""
    nodes = []
    for i in range(draw(st.integers(least, 5))):
        types = draw(_NODE_TYPES)
        nodes.append(Node(f"n{i}", {t: draw(_ROOM) for t in types}))
    return tuple(nodes)


@st.composite
def snapshots(draw: st.DrawFn, max_jobs: int = 8) -> Snapshot:
    """A cluster at work: taken GPUs, partitions, running, pending, pinned, unmovable, completing and suspended jobs,
    copies of forked jobs, and nodes that were drained while jobs run there. What runs never exceeds what there is."""
    nodes = draw(empty_clusters())
    names = tuple(n.name for n in nodes)
    partitions = draw(_partitions(names))
    nodes = tuple(replace(n, partitions=tuple(p.name for p in partitions if n.name in p.nodes)) for n in nodes)
    known = ("", "elsewhere", *[p.name for p in partitions])
    jobs = [draw(pending_jobs(str(i), names, known)) for i in range(draw(st.integers(0, max_jobs)))]
    jobs = [copy for job in jobs for copy in draw(_copies(job))]
    nodes = tuple(replace(n, taken=draw(_taken(n))) for n in nodes)
    nodes, jobs = _start_some(draw, nodes, jobs, partitions)
    nodes = tuple(_drained(n) if draw(st.integers(0, 5)) == 0 else n for n in nodes)
    return Snapshot(NOW, nodes, tuple(jobs), partitions)


@st.composite
def _copies(draw: st.DrawFn, job: Job) -> list[Job]:
    """The job itself, or now and then one to four copies of it, most of which can be moved if the job can."""
    fork = draw(_FORKS)
    if fork is None:
        return [job]
    form = replace(job.form, min_nodes=1, max_nodes=1) if draw(st.integers(0, 3)) else job.form
    copies = []
    for number in range(draw(st.integers(1, 4))):
        unmovable = draw(st.sampled_from((job.unmovable, job.unmovable, None, "started just now")))
        copies.append(
            replace(
                job, job_id=f"{job.job_id}_{number}", array_id=job.job_id, fork=fork, form=form, unmovable=unmovable
            )
        )
    return copies


@st.composite
def _partitions(draw: st.DrawFn, names: tuple[str, ...]) -> tuple[Partition, ...]:
    found = []
    for name in ("long", "short")[: draw(st.integers(0, 2))]:
        members = draw(st.lists(st.sampled_from(names), unique=True)) if names else []
        found.append(Partition(name, tuple(members), up=draw(st.integers(0, 4)) > 0))
    return tuple(found)


def _taken(node: Node) -> st.SearchStrategy[dict[str, int]]:
    return st.fixed_dictionaries(
        {t: st.one_of(st.just(0), st.just(0), st.integers(0, n)) for t, n in node.gpus.items()}
    )


def _start_some(
    draw: st.DrawFn, nodes: tuple[Node, ...], jobs: list[Job], partitions: tuple[Partition, ...]
) -> tuple[tuple[Node, ...], list[Job]]:
    """Let some jobs run where they fit. A pinned job's GPUs count as taken from the policy's point of view."""
    arena = Arena.of(Snapshot(NOW, nodes, (), partitions))
    ledger = Ledger(arena)
    taken = {n.name: dict(n.taken) for n in nodes}
    started = []
    for job in jobs:
        gang = None
        if draw(st.booleans()):
            found = (ledger.find(job.form, slots) for slots in arena.reach(job).by_type.values())
            gang = next((g for g in found if g), None)
        if not gang:
            started.append(job)
            continue
        ledger.take(gang)
        for slot, count in gang if job.pinned else ():
            node, gpu_type = arena.slots[slot]
            taken[node][gpu_type] = taken[node].get(gpu_type, 0) + count
        state = draw(_STATES)
        started.append(replace(job, state=state, placement=arena.placement(gang), started=job.arrival))
    return tuple(replace(n, taken=taken[n.name]) for n in nodes), started


def _drained(node: Node) -> Node:
    return replace(node, available=False, state="draining", reason="fan replaced tomorrow")


def _waiting(job: Job) -> Job:
    return replace(job, state=JobState.PENDING, placement=EMPTY, host=None)


def carry_out(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """The snapshot that follows if ``plan`` is carried out to the letter and no time passes."""
    if plan.abstains:
        return snapshot

    def follow(job: Job) -> Job:
        if job.state not in (JobState.PENDING, JobState.RUNNING) or not job.steerable:
            return job
        placement: Placement = plan.placement(job.job_id)
        if not placement:
            return job if job.running and not job.placement else _waiting(job)
        there: dict[str, Any] = {"host": plan.guests.get(job.job_id), "turns": plan.turns.get(job.job_id, EQUAL)}
        return replace(job, state=JobState.RUNNING, placement=placement, **there)

    return replace(snapshot, jobs=tuple(follow(job) for job in snapshot.jobs), memory=plan.memory)
