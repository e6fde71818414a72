"""What it is worth that jobs are placed by GPU type, against GPUs that are chosen without a look at their type.

A job that runs at r steps/s would run at b steps/s on average where its GPUs were drawn blindly from those that it
accepts, each type as often as the cluster has GPUs of it. The steps that it makes in t GPU-seconds then take t r / b.
What is gained is the difference, summed over all steered jobs: whoever is on slower GPUs than the average counts as
a loss. With b the mean of rates, and not of times per step, the figure is the lower of the two: a job that stays on
the GPUs that it has drawn would lose more. Speeds are those that the policy reckons with; a job of which only data
sheets are known is left out, and how much of the rest was measured here is kept beside it. What all jobs would have
done under another scheduler is not told by this: for that there is ``hadar replay``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slurm_hadar.controller.journal import Gain
from slurm_hadar.model import Basis, Job, Placement, Plan, Snapshot

__all__ = ["blind_rate", "gain_of", "saved", "shadow"]


def capacity_of(snapshot: Snapshot) -> dict[str, int]:
    """GPUs per type on nodes that can be used."""
    total: dict[str, int] = {}
    for node in snapshot.nodes:
        if node.available:
            for gpu_type, count in node.gpus.items():
                total[gpu_type] = total.get(gpu_type, 0) + count
    return total


def blind_rate(job: Job, workers: int, nodes: int, capacity: Mapping[str, int]) -> float | None:
    """Steps/s of a gang on so many nodes, on average over the GPUs that the job accepts; None where the speed on one of
    their types is not known."""
    speeds, total, weighted = job.speeds_at(workers), 0, 0.0
    for gpu_type, count in capacity.items():
        if job.form.admits_type(gpu_type):
            speed = speeds.get(gpu_type)
            if speed is None or speed.basis is Basis.UNKNOWN:
                return None
            total, weighted = total + count, weighted + count * speed.on(nodes)
    return weighted / total if total and weighted > 0 else None


def gain_of(snapshot: Snapshot, plan: Plan | None, mode: str, since: float | None) -> Gain:
    """Of one round. ``since`` is when the round before looked (epoch seconds), None = nothing is counted yet; ``plan``
    is None where there is none."""
    capacity = capacity_of(snapshot)
    gpu_s = blind_s = measured_s = unknown_s = worth = 0.0
    planned = 0.0
    for job in snapshot.steerable_jobs:
        held = job.placement
        if job.running and held:
            ratio, began = _ratio(job, held, capacity), job.started or snapshot.time
            served = held.workers * max(0.0, snapshot.time - max(began, since)) if since is not None else 0.0
            worth += held.workers * ratio if ratio is not None else 0.0
            if ratio is None:
                unknown_s += served
            else:
                gpu_s, blind_s = gpu_s + served, blind_s + served * ratio
                known = (job.speeds_at(held.workers).get(t) for t in held.by_type)
                measured_s += served if all(s is not None and s.basis is Basis.MEASURED for s in known) else 0.0
        wanted = plan.placement(job.job_id) if plan is not None else held
        ratio = _ratio(job, wanted, capacity) if wanted else None
        planned += wanted.workers * ratio if ratio is not None else 0.0
    return Gain(
        snapshot.time, mode, gpu_s, blind_s, measured_s, unknown_s, worth, planned if plan is not None else None
    )


def saved(gains: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What decisions that were carried out have gained, of a journal's ``gains()``; None as long as nothing is known.
    ``share`` is that of the work: 0.2 = blindly chosen GPUs would have taken 20 % more GPU time."""
    for sums in gains:
        if sums["mode"] == "act" and sums["gpu_s"] > 0:
            return {
                "since": sums["since"], "rounds": sums["rounds"], "gpu_s": sums["gpu_s"],
                "saved_gpu_s": sums["blind_s"] - sums["gpu_s"], "share": sums["blind_s"] / sums["gpu_s"] - 1.0,
                "measured_share": sums["measured_s"] / sums["gpu_s"], "unknown_gpu_s": sums["unknown_s"],
            }  # fmt: skip
    return None


def shadow(gains: Iterable[Mapping[str, Any]]) -> dict[str, Any] | None:
    """What the decisions of modes that only look would have gained, round by round; None where there were none."""
    found = [sums for sums in gains if sums["mode"] != "act" and sums["worth"] > 0 and sums["planned"] > 0]
    if not found:
        return None
    worth, planned = sum(s["worth"] for s in found), sum(s["planned"] for s in found)
    return {
        "since": min(s["since"] for s in found),
        "rounds": sum(s["rounds"] for s in found),
        "share": planned / worth - 1.0,
    }


def _ratio(job: Job, placement: Placement, capacity: Mapping[str, int]) -> float | None:
    """How much faster the job is there than blindly; None where that is not known."""
    blind = blind_rate(job, placement.workers, len(placement.nodes), capacity)
    rate = job.rate(placement)
    return rate / blind if blind and rate > 0 else None
