"""Answers to "when will my job start, who is before it, and what if it took another GPU type?"."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from random import Random

from slurm_hadar.config import Config
from slurm_hadar.controller.answers.foresee import Future, play, remaining_s, unknown_runtime_s
from slurm_hadar.controller.answers.lengths import drawn_steps, uncertainty
from slurm_hadar.controller.steering.time_limits import Overtime
from slurm_hadar.model import Job, Placement, Snapshot
from slurm_hadar.policies.base import Policy

__all__ = ["Answer", "Holder", "Interval", "Peek", "WhatIf", "answer", "starts"]

_MOST_HOLDERS = 8
_DRAWS, _IN_TIME = 20, 16  # futures that are drawn, and those in which the job's end comes in time: four in five


@dataclass(frozen=True)
class Peek:
    """What the next round would see, who would decide about it, which jobs keep their place once they run, and which do
    not get done within their time limits."""

    snapshot: Snapshot
    policy: Policy
    stays: Set[str] = frozenset()
    overtime: Mapping[str, Overtime] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Interval:
    """Epoch seconds between which something is expected. ``high`` is None where the time that could be played does not
    reach so far."""

    low: float
    high: float | None


@dataclass(frozen=True, slots=True)
class Holder:
    """Who runs on the GPUs that the job waits for: how many of them, and for how many more seconds as expected (None =
    nobody knows)."""

    job_id: str
    user: str
    gpus: int
    left_s: float | None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The same job on one GPU type only. ``accepted``: whether its owner allows that type already. ``why`` says why it
    could not run there at all, "" if it could."""

    gpu_type: str
    accepted: bool
    start: Interval | None
    end: float | None
    steps_per_s: float | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """All that is expected of one steerable job, if nothing else is submitted. ``start`` is None for a job that runs,
    and for one that is not seen to start by ``until``; ``where`` is where it would start. ``overtime``: where it does
    not get done within its time limit, if so. ``end_80``: the epoch second by which it is done in four of five drawn
    futures; None where its length is not known, or that cannot be looked at in time. ``outrun_steps``: how many steps
    a job is taken to make in all that has outrun what was stated; None for others."""

    job_id: str
    runs: bool
    start: Interval | None
    end: Interval | None
    where: Placement
    until: float
    holders: tuple[Holder, ...]
    what_if: tuple[WhatIf, ...]
    overtime: Overtime | None = None
    end_80: float | None = None
    outrun_steps: float | None = None


def answer(peek: Peek, job_id: str, config: Config, cpu_s: float = 10.0) -> Answer | None:
    """What is expected of ``job_id``, with some ``cpu_s`` CPU seconds of looking ahead; None for a job that is not
    there or not steered."""
    job = peek.snapshot.job.get(job_id)
    if job is None or not job.steerable:
        return None
    runs = job.running
    types = [] if runs else sorted({t for node in peek.snapshot.nodes for t in node.gpus})
    share = cpu_s / (6 + 3 * len(types))  # three for the drawn futures
    low, middle, high = _three(peek, config, job_id, share)
    fate = middle.fates[job_id]
    what_if = tuple(_what_if(peek, config, job, t, share) for t in types)
    return Answer(
        job_id,
        runs,
        None if runs else _interval([f.fates[job_id].start for f in (low, middle, high)]),
        _interval([f.fates[job_id].end for f in (low, middle, high)]),
        fate.where,
        min(f.until for f in (low, middle, high)),
        () if runs else _holders(peek, job, fate.where),
        what_if,
        peek.overtime.get(job_id),
        _end_80(peek, config, job, 3 * share),
        job.expected_steps if job.overrun else None,
    )


def _end_80(peek: Peek, config: Config, job: Job, cpu_s: float) -> float | None:
    """By when ``job`` is done in four of five drawn futures; one that takes more than its part of ``cpu_s`` CPU seconds
    counts as late."""
    if job.unknown_length or job.overrun:
        return None
    ends: list[float | None] = []
    began = time.thread_time()
    for number, left in enumerate(_drawn(peek)):
        limit_s = max(0.0, cpu_s - (time.thread_time() - began)) / (_DRAWS - number)
        future = play(
            peek.snapshot, peek.policy, config, stays=peek.stays, left=left, wanted={job.job_id}, cpu_s=limit_s
        )
        ends.append(future.fates[job.job_id].end)
        if ends.count(None) >= _DRAWS - _IN_TIME:
            return None
    seen = sorted(end for end in ends if end is not None)
    return (seen[_IN_TIME - 1] + seen[_IN_TIME]) / 2


def _drawn(peek: Peek) -> Iterator[dict[str, float]]:
    """What each job has left in each future, by parent: from little to much at even steps, in an order of its own, so
    that few futures stand for all."""
    unknown_s = unknown_runtime_s(peek.policy)
    jobs = {job.parent: job for job in peek.snapshot.steerable_jobs}
    dice = {parent: Random(parent) for parent in jobs}
    ranks = {parent: dice[parent].sample(range(_DRAWS), _DRAWS) for parent in jobs}
    for number in range(_DRAWS):
        shares = {parent: (ranks[parent][number] + 0.5) / _DRAWS for parent in jobs}
        yield {p: drawn_steps(job, unknown_s, shares[p], dice[p]) for p, job in jobs.items()}


def starts(peek: Peek, config: Config, cpu_s: float) -> dict[str, Interval]:
    """When each job that waits is expected to start, for those that can be seen to within ``cpu_s`` CPU seconds."""
    futures = _three(peek, config, None, cpu_s / 3)
    found = {job_id: _interval([f.fates[job_id].start for f in futures]) for job_id in futures[0].fates}
    return {job_id: interval for job_id, interval in found.items() if interval is not None}


def _three(peek: Peek, config: Config, job_id: str | None, cpu_s: float) -> tuple[Future, Future, Future]:
    """The future if all jobs are done early, as expected, and late."""
    wanted = None if job_id is None else {job_id}

    def lean(by: float) -> Future:
        return play(peek.snapshot, peek.policy, config, stays=peek.stays, lean=by, wanted=wanted, cpu_s=cpu_s)

    return lean(-1.0), lean(0.0), lean(1.0)


def _interval(moments: list[float | None]) -> Interval | None:
    known = [m for m in moments if m is not None]
    if not known:
        return None
    return Interval(min(known), max(known) if len(known) == len(moments) else None)


def _what_if(peek: Peek, config: Config, job: Job, gpu_type: str, cpu_s: float) -> WhatIf:
    accepted = job.form.admits_type(gpu_type)
    if short := job.form.shortage([gpu_type]):
        return WhatIf(gpu_type, False, None, None, None, short)
    other = replace(job, form=replace(job.form, types=frozenset({gpu_type})), prefer=frozenset())
    jobs = [other if j.job_id == job.job_id else j for j in peek.snapshot.jobs]
    instead = replace(peek, snapshot=peek.snapshot.with_jobs(jobs))
    futures = _three(instead, config, job.job_id, cpu_s)
    why = futures[1].cannot_run(job.job_id)
    speed = job.speeds.get(gpu_type)
    start = None if why else _interval([f.fates[job.job_id].start for f in futures])
    return WhatIf(
        gpu_type,
        accepted,
        start,
        None if why else futures[1].fates[job.job_id].end,
        None if speed is None else speed.steps_per_s,
        why,
    )


def _holders(peek: Peek, job: Job, where: Placement) -> tuple[Holder, ...]:
    """Who runs on the nodes that it will start on; where none are known, on all GPUs that it accepts. Those who are
    done first come first."""
    wanted = {(node, t) for node, t, _ in where.items()}
    held: dict[str, int] = {}
    for other in peek.snapshot.jobs:
        for node, gpu_type, count in other.held.items():
            usable = (node, gpu_type) in wanted if wanted else _could_use(job, node, gpu_type)
            if usable and other.job_id != job.job_id:
                held[other.job_id] = held.get(other.job_id, 0) + count
    found = [
        _holder(peek.snapshot.job, job_id, count, unknown_runtime_s(peek.policy)) for job_id, count in held.items()
    ]
    return tuple(sorted(found, key=lambda h: (h.left_s is None, h.left_s or 0.0, h.job_id))[:_MOST_HOLDERS])


def _could_use(job: Job, node: str, gpu_type: str) -> bool:
    return job.form.admits_type(gpu_type) and job.form.admits_node(node)


def _holder(jobs: Mapping[str, Job], job_id: str, count: int, unknown_s: float) -> Holder:
    job = jobs[job_id]
    left = remaining_s(job, unknown_s) if uncertainty(job) < 0.9 else None
    return Holder(job_id, job.user, count, None if left is None or left == float("inf") else left)
