"""Gangs that are slower on more nodes than they need: when there will be a place for them on as few as they fit on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_hadar.policies.hadar.lookahead.outlook import Floats, JobClass, Outlook
from slurm_hadar.policies.toolkit.gangs import node_counts

__all__ = ["Together", "slower", "together"]


@dataclass(frozen=True, slots=True)
class Together:
    """Of each job in each column, (n, k): from ``ready_s`` on, seconds from now, the gang fits on the fewest nodes
    and runs as the outlook says; sooner only apart, on any nodes, where it runs ``longer_s`` more.

    Where more nodes cost no speed, and where the job runs already, ``ready_s`` is 0 and ``longer_s`` infinite.
    """

    ready_s: Floats
    longer_s: Floats


def together(outlook: Outlook) -> Together:
    """Our definition: nobody who runs is stopped for it, and nobody else takes the place.

    A gang that lies unevenly on several nodes is taken for one that lies evenly on them. O(classes x columns x slots +
    jobs x columns).
    """
    ready_s, longer_s = np.zeros(outlook.run_s.shape), np.full(outlook.run_s.shape, np.inf)
    free_s, ready = _free_s(outlook), dict[JobClass, list[float]]()
    for row, (job, own) in enumerate(zip(outlook.jobs, outlook.classes, strict=True)):
        if job.form.max_nodes == 1 or max(own.workers) == 1:
            continue
        if own not in ready:
            ready[own] = [_ready_s(outlook, own, column, free_s) for column in range(len(own.nodes))]
        for column in np.flatnonzero(np.isfinite(outlook.run_s[row])).tolist():
            times = slower(outlook, row, column)
            if times > 1.0 and column != outlook.held[row]:
                ready_s[row, column] = ready[own][column]
                longer_s[row, column] = (times - 1.0) * outlook.run_s[row, column]
    return Together(ready_s, longer_s)


def _free_s(outlook: Outlook) -> list[list[float]]:
    """When each GPU of each slot comes free if who runs goes on there, ascending."""
    arena, busy = outlook.arena, [list(times) for times in outlook.until_s]
    for row in np.flatnonzero(outlook.held >= 0).tolist():
        for slot, count in arena.gang(outlook.jobs[row].placement):
            busy[slot] += [float(outlook.run_s[row, outlook.held[row]])] * count
    return [
        ([0.0] * (capacity - len(times)) + sorted(times))[:capacity]
        for capacity, times in zip(arena.capacity, busy, strict=True)
    ]


def _ready_s(outlook: Outlook, own: JobClass, column: int, free_s: list[list[float]]) -> float:
    nodes = own.nodes[column]
    if not nodes:
        return np.inf
    each = -(-int(own.workers[column]) // nodes)
    slots = own.slots[column]
    if slots is None:
        slots = outlook.pools[outlook.pool_of[column]].slots
    times = sorted(free_s[slot][each - 1] for slot in slots if len(free_s[slot]) >= each)
    return times[nodes - 1] if len(times) >= nodes else np.inf


def slower(outlook: Outlook, row: int, column: int) -> float:
    """How many times as long the job takes on the most nodes that it may have there as on the fewest."""
    own, gpu_type = outlook.classes[row], outlook.pools[outlook.pool_of[column]].gpu_type
    speed = outlook.jobs[row].speeds_at(int(own.workers[column]))[gpu_type]
    return speed.factor(own.nodes[column]) / speed.factor(node_counts(own.forms[column])[-1])
