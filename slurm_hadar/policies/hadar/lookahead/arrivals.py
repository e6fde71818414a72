"""Whether jobs keep coming, and how many are taken to come. Our definition."""

from __future__ import annotations

import numpy as np

from slurm_hadar.policies.hadar.lookahead.outlook import Floats, Outlook

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
    return min(1.0, max(0, _came_of_late(outlook, outlook.age_s) - 1) / _A_STREAM)


def endless(outlook: Outlook) -> float:
    """Whether the queue is that of a stream, from 0 to 1. A lone batch has a last job, whose end is worth aiming at; a
    stream has none, of whatever size. On a small cluster few come at a time, but half of those that are there did."""
    snapshot = outlook.arena.snapshot
    kept_s = [snapshot.time - snapshot.job[job_id].arrival for job_id in outlook.arena.kept]
    there_s = np.concatenate((outlook.age_s, kept_s))
    return min(1.0, max(0, _came_of_late(outlook, there_s) - 1) / min(_A_STREAM, max(1.0, 0.5 * len(there_s))))


def _came_of_late(outlook: Outlook, age_s: Floats) -> int:
    """How many of these came, at different times, within the last mean run time of those that wait or may be moved."""
    return len(np.unique(np.floor(age_s[(age_s >= 0) & (age_s < outlook.best_s.mean())])))
