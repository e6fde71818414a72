"""Who has a part of which GPU, and together with whom, as Slurm says it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from slurm_hadar.slurm.state import SlurmJob

__all__ = ["companies", "on_gpus", "part_of_gpu"]


def on_gpus(jobs: Iterable[SlurmJob]) -> dict[tuple[str, int | None], list[SlurmJob]]:
    """Who has a part of which GPU, by node and number (None = nobody knows which), who has been there longest first."""
    found: dict[tuple[str, int | None], list[SlurmJob]] = {}
    for job in jobs:
        if job.shares and job.nodes and job.state.active:
            for node in job.nodes:
                found.setdefault((node, job.gpu_number), []).append(job)
    return {gpu: sorted(there, key=lambda j: (j.start or 0.0, j.raw_id)) for gpu, there in found.items()}


def companies(jobs: Iterable[SlurmJob]) -> dict[str, dict[str, Any]]:
    """Who has which GPU together with whom: ``gpu`` is its number on the node, None where nobody knows it, ``with`` are
    the ids of the others there."""
    found = {}
    for (_, number), there in on_gpus(jobs).items():
        for job in there:
            others = [other.job_id for other in there if other is not job] if number is not None else []
            found[job.job_id] = {"gpu": number, "with": others, "keeps": None, "known_by": ""}
    return found


def part_of_gpu(shares: Mapping[str, Any] | None) -> float:
    """How much of its GPU a job has, of what :func:`companies` says and is told of its turns, 0 to 1: its share of the
    turns, else as much as each of the others; 1 of one that has no company. The parts of all on a GPU are one GPU."""
    if not shares or not shares["with"]:
        return 1.0
    turns = shares.get("turns")
    return 1.0 / (1 + len(shares["with"])) if turns is None else float(turns)
