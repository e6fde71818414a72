"""What is known of jobs that may share a GPU beside their speeds: duty, memory, and the room on their GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from slurm_hadar.controller.observe.company import on_gpus
from slurm_hadar.controller.observe.jobs.facts import JobFacts
from slurm_hadar.controller.observe.sources import Sources
from slurm_hadar.controller.observe.speeds.shared_gpus import most_taken
from slurm_hadar.controller.steering.nodes import NodeBook
from slurm_hadar.model import Job
from slurm_hadar.slurm.state import SlurmJob

__all__ = ["as_sharers"]


def as_sharers(
    jobs: Iterable[Job],
    known: Mapping[str, JobFacts | None],
    raw: Iterable[SlurmJob],
    nodes: NodeBook,
    sources: Sources,
) -> tuple[Job, ...]:
    """The same jobs; those with shards with what was measured of their user's jobs of their workload."""
    jobs = tuple(jobs)
    if not any(job.pairs_as for job in jobs):
        return jobs
    duties: Mapping[tuple[str, str], Mapping[str, float]] = {}
    if sources.profiles is not None:
        with sources.best_effort():
            duties = sources.profiles.duties()
    taken, room = most_taken(sources), _room(raw, nodes)
    return tuple(
        job
        if not job.pairs_as or (facts := known.get(job.job_id)) is None
        else replace(
            job,
            duty=duties.get((job.user, facts.workload(1)), {}),
            takes=taken.get((job.user, facts.workload(1))),
            parts=max(1, facts.record.shards or facts.job.shards),
            room=room.get(job.job_id),
        )
        for job in jobs
    )


def _room(raw: Iterable[SlurmJob], nodes: NodeBook) -> dict[str, int]:
    """The shards that nobody has of the GPU of each job that has some, where Slurm tells which GPU it is."""
    found: dict[str, int] = {}
    for (node, number), there in on_gpus(raw).items():
        if number is not None and node in nodes:
            left = max(0, nodes[node].per_gpu - sum(job.shards for job in there))
            found.update({job.job_id: left for job in there})
    return found
