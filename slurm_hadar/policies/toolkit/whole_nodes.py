"""Jobs that have their nodes to themselves, as a policy sees them: gangs of all GPUs there.

Such a job trains on the GPUs that it asks for, and Slurm gives it the others of its nodes too: nobody else can have
them. A policy that took it for one of those few GPUs would plan others beside it, and reckon it as cheap as they are.
Our definition.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from slurm_hadar.model import Form, Job, JobState, Placement, Plan, Snapshot
from slurm_hadar.policies.toolkit.arena import open_nodes

__all__ = ["in_whole_nodes"]

_Allocate = Callable[[Any, Snapshot], Plan]
_Widths = dict[tuple[str, Form], int]


def in_whole_nodes(allocate: _Allocate) -> _Allocate:
    """``allocate``, shown such jobs as gangs of whole nodes; its plan gives them the GPUs that they ask for there."""

    @functools.wraps(allocate)
    def allocate_whole(self: Any, snapshot: Snapshot) -> Plan:
        widths: _Widths = {}
        wide = {job.job_id: shown for job in snapshot.jobs if (shown := _widened(snapshot, job, widths)) is not None}
        if not wide:
            return allocate(self, snapshot)
        plan = allocate(self, snapshot.with_jobs([wide.get(job.job_id, job) for job in snapshot.jobs]))

        def asked(job_id: str, placement: Placement) -> Placement:
            return _narrowed(snapshot.job[job_id], wide, placement) if job_id in wide and placement else placement

        placements = {job_id: asked(job_id, placement) for job_id, placement in plan.placements.items()}
        waits = {job_id: replace(wait, wanted=asked(job_id, wait.wanted)) for job_id, wait in plan.waits.items()}
        return replace(plan, placements=placements, waits=waits)

    return allocate_whole


def _widened(snapshot: Snapshot, job: Job, widths: _Widths) -> Job | None:
    """The job as a gang of whole nodes; None for one that is none. One that runs goes on with as many nodes as it has;
    one that waits, and may have more or fewer, is left as it is, and admission keeps others from its nodes."""
    form = job.form
    if not job.needs.exclusive or not job.steerable or job.fork is not None:
        return None
    if job.running:
        nodes, own, gpus = len(job.placement.nodes), job.placement.workers, job.held.workers
    elif job.state is JobState.PENDING and form.min_nodes == form.max_nodes and not form.sizes:
        key = (job.partition, form)
        if key not in widths:
            widths[key] = _width(snapshot, job)
        nodes, own, gpus = form.min_nodes, form.workers, widths[key]
    else:
        return None
    if gpus <= own:
        return None
    return replace(
        job,
        form=replace(form, workers=gpus, sizes=(), min_nodes=nodes, max_nodes=nodes),
        placement=job.held,
        speeds=job.speeds_at(own),
        scaled={},
        attained_s=job.attained_s * gpus / own,
    )


def _width(snapshot: Snapshot, job: Job) -> int:
    """GPUs of as many nodes as the job takes, by the smallest on which it has room. A gang is of one type: where a node
    has several, that of which it has most counts, and admission keeps others from the rest."""
    form, nodes = job.form, open_nodes(snapshot, job)
    there = [node.gpus for node in snapshot.nodes if node.name in nodes]
    sizes = (max((n for t, n in gpus.items() if form.admits_type(t)), default=0) for gpus in there)
    return form.min_nodes * min((n for n in sizes if 0 < form.workers <= n * form.min_nodes), default=0)


def _narrowed(job: Job, wide: Mapping[str, Job], placement: Placement) -> Placement:
    """What the job asks for of the whole nodes of ``placement``."""
    if job.running and placement == wide[job.job_id].placement:
        return job.placement
    each = (job.placement.workers if job.running else job.form.workers) // len(placement.nodes)
    return Placement.of({node: {counts[0][0]: each} for node, counts in placement.shares})
