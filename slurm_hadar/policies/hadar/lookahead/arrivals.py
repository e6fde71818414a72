"""Whether jobs keep coming, and how many are taken to come. Our definition."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from slurm_hadar.model import Job
from slurm_hadar.policies.hadar.lookahead.outlook import Outlook

__all__ = ["endless", "per_gpu", "stream"]

_ARRIVING = 0.15  # jobs per GPU that are taken to wait behind all others where jobs keep coming, at most
_BEHIND = 0.5  # of the jobs that are there: so many are taken to wait behind one, as in a queue in balance
_A_STREAM = 10  # so many arrivals, at different times, make a stream


def per_gpu(outlook: Outlook) -> float:
    """How many are still to come for each GPU, where jobs keep coming; nobody after a lone batch. They are taken to be
    as many as are there, of which on average one half is behind."""
    present = len(outlook.jobs) + len(outlook.arena.kept)
    return min(_ARRIVING, _BEHIND * present / max(1.0, float(outlook.gpus.sum()))) * stream(outlook)


def stream(outlook: Outlook) -> float:
    """Whether jobs keep coming, from 0 to 1: by how many of those that wait, or may be moved, came of late."""
    return min(1.0, max(0, _came_of_late(outlook, outlook.jobs) - 1) / _A_STREAM)


def endless(outlook: Outlook) -> float:
    """Whether the queue is that of a stream, from 0 to 1. A lone batch has a last job, whose end is worth aiming at; a
    stream has none, of whatever size. On a small cluster few come at a time, but half of those that are there did."""
    there = [*outlook.jobs, *(outlook.arena.snapshot.job[job_id] for job_id in outlook.arena.kept)]
    return min(1.0, max(0, _came_of_late(outlook, there) - 1) / min(_A_STREAM, max(1.0, 0.5 * len(there))))


def _came_of_late(outlook: Outlook, jobs: Iterable[Job]) -> int:
    """How many came, at different times, within the last mean run time of those that wait or may be moved."""
    now = outlook.arena.snapshot.time
    ages = np.array([now - j.arrival for j in jobs])
    return len(np.unique(np.floor(ages[(ages >= 0) & (ages < outlook.best_s.mean())])))
