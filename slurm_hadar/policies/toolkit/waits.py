"""Why a job cannot run now whatever a policy decides: the part of the explanation that all policies share."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import replace

from slurm_hadar.model import Form, Job, Mix, Placement, Tier, Wait
from slurm_hadar.policies.toolkit.arena import Arena, Reach, open_nodes
from slurm_hadar.policies.toolkit.gangs import find_gang, find_on_type, node_counts

__all__ = ["Obstacles", "fits", "holders", "listing"]


_LISTED = 4  # names, before the rest is counted
_REASONS = 2  # so many jobs that keep their GPUs are named with the reason


def fits(job: Job, reach: Reach, free: Sequence[int]) -> bool:
    """Whether the gang has any place among the ``free`` GPUs per slot."""
    if any(find_on_type(job.form, slots, free) for slots in reach.by_type.values()):
        return True
    return job.form.mix is not Mix.NEVER and find_gang(job.form, reach.nodes, free) is not None


def holders(placements: Iterable[tuple[str, Placement]], nodes: Iterable[str]) -> list[str]:
    """The jobs whose placement touches one of ``nodes``."""
    wanted = set(nodes)
    return [job_id for job_id, placement in placements if wanted.intersection(placement.nodes)]


def listing(names: Iterable[str]) -> str:
    """``a, b, c, d and 7 more``."""
    shown = list(names)
    if len(shown) <= _LISTED:
        return ", ".join(shown)
    return f"{', '.join(shown[:_LISTED])} and {len(shown) - _LISTED} more"


class Obstacles:
    """Answers, for the jobs of one snapshot, what keeps them from running even in an empty queue.

    The checks go from what only the owner can mend to what passes by itself: the form, the types, the size of the
    cluster, nodes that are drained or down, GPUs of jobs that are not steered, running jobs that must not move.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._known: dict[tuple[str, Form, frozenset[str]], Wait | None] = {}

    def of(self, job: Job) -> Wait | None:
        """The obstacle as a Wait, or None if a policy could start the job by giving it what others may lose."""
        key = (job.partition, job.form, frozenset([t for t, s in job.speeds.items() if s.steps_per_s > 0]))
        if key not in self._known:
            self._known[key] = self._find(job)
        return self._known[key]

    def _find(self, job: Job) -> Wait | None:
        return self._form(job) or self._types(job) or self._size(job) or self._held(job)

    def _form(self, job: Job) -> Wait | None:
        form = job.form
        if form.workers < 1:
            return Wait(Tier.CANNOT_RUN, "asks for no GPU")
        if not node_counts(form):
            evenly = "evenly " if form.uniform else ""
            return Wait(Tier.CANNOT_RUN, f"{form.workers} GPUs cannot be split {evenly}over {_span(form)} nodes")
        return None

    def _types(self, job: Job) -> Wait | None:
        snapshot = self._arena.snapshot
        listed = [p for p in snapshot.partitions if p.name in job.partition.split(",")]
        if listed and not any(p.up for p in listed):
            return Wait(Tier.TRANSIENT, f"partition {job.partition} is down")
        nodes = open_nodes(snapshot, job)
        offered = sorted({t for n in snapshot.nodes if n.name in nodes for t, c in n.gpus.items() if c > 0})
        if not offered:
            where = f"partition {job.partition}" if listed else "the cluster"
            return Wait(Tier.CANNOT_RUN, f"no node with GPUs in {where} is open to it")
        accepted = [t for t in offered if job.form.admits_type(t)]
        if not accepted:
            if short := job.form.shortage(offered):
                return Wait(Tier.CANNOT_RUN, f"no GPU type that is open to it will do: {short}")
            wanted = ", ".join(sorted(job.form.types or ()))
            return Wait(Tier.CANNOT_RUN, f"accepts only {wanted}, but the nodes open to it have {', '.join(offered)}")
        if not any(t in job.speeds and job.speeds[t].steps_per_s > 0 for t in accepted):
            return Wait(Tier.CANNOT_RUN, f"cannot run on {', '.join(accepted)}: no speed above zero is known there")
        return None

    def _size(self, job: Job) -> Wait | None:
        if fits(job, self._whole.reach(job), self._whole.capacity):
            return None
        form = job.form
        kind = "of one type " if form.mix is Mix.NEVER else ""
        where = "one node" if form.max_nodes == 1 else f"at most {form.max_nodes} nodes"
        if form.min_nodes > 1:
            where = f"{_span(form)} nodes"
        largest = self._largest(job)
        return Wait(
            Tier.CANNOT_RUN,
            f"needs {form.workers} GPUs {kind}on {where}, more than the nodes open to it have: {largest}",
        )

    def _largest(self, job: Job) -> str:
        whole = self._whole
        parts = []
        for gpu_type, slots in whole.reach(job).by_type.items():
            most = max(whole.capacity[s] for s in slots)
            parts.append(f"{len(slots)} node{'s' if len(slots) > 1 else ''} with up to {most} {gpu_type}")
        return ", ".join(parts)

    def _held(self, job: Job) -> Wait | None:
        arena = self._arena
        if fits(job, arena.reach(job), arena.free):
            return None
        if fits(job, arena.reach(job), arena.capacity):
            fixed = [*arena.kept.items(), *arena.bound.items()]
            wanted = {arena.slots[s][0] for slots in arena.reach(job).nodes for s in slots}
            return Wait(Tier.CAPACITY, self._held_by(holders(fixed, wanted)))
        nodes = open_nodes(arena.snapshot, job)
        if fits(job, self._untaken.reach(job), self._untaken.capacity):
            taken = [n.name for n in arena.snapshot.nodes if n.name in nodes and any(n.taken.values())]
            return Wait(Tier.CAPACITY, f"the GPUs it needs are held by jobs that are not steered, on {listing(taken)}")
        away = [
            f"{n.name} ({n.reason or n.state})"
            for n in arena.snapshot.nodes
            if n.name in nodes and not n.available and any(job.form.admits_type(t) for t in n.gpus)
        ]
        return Wait(Tier.TRANSIENT, f"would fit only on nodes that are not available now: {listing(away)}")

    def _held_by(self, job_ids: Sequence[str]) -> str:
        """Who holds the GPUs and keeps them, and why those do who are named."""
        jobs = self._arena.snapshot.job
        told, shown = set[str](), []
        for job_id in job_ids[:_REASONS]:
            why = jobs[job_id].unmovable or f"is {jobs[job_id].state}"
            shown.append(f"{job_id} ({'likewise' if why in told else why})")
            told.add(why)
        return f"the GPUs it needs are held by jobs that keep them now: {listing([*shown, *job_ids[_REASONS:]])}"

    @functools.cached_property
    def _untaken(self) -> Arena:
        """The available nodes as if nobody else had GPUs there."""
        snapshot = self._arena.snapshot
        return Arena.of(replace(snapshot, nodes=tuple(replace(n, taken={}) for n in snapshot.nodes), jobs=()))

    @functools.cached_property
    def _whole(self) -> Arena:
        """The whole cluster as if every node were up and empty."""
        snapshot = self._arena.snapshot
        nodes = tuple(replace(n, taken={}, available=True) for n in snapshot.nodes)
        return Arena.of(replace(snapshot, nodes=nodes, jobs=()))


def _span(form: Form) -> str:
    return str(form.min_nodes) if form.min_nodes == form.max_nodes else f"{form.min_nodes} to {form.max_nodes}"
