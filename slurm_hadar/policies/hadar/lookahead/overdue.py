"""Who has waited too long, and therefore goes before all others.

While shorter jobs keep coming, an order by length lets a long job, or a gang as wide as the cluster, wait without end.
Slurm and FIFO bound the wait by the order of arrival for all. Here it is bounded by the job's own length, so that short
jobs still go before long ones that have just come. Our definition; *stretch*, waiting measured in run times, is the
usual one (Bender, Chakrabarti and Muthukrishnan, SODA 1998).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slurm_hadar.policies.hadar.lookahead.outlook import Floats, Outlook

__all__ = ["Patience"]

# of the GPUs: no more go to those that go first. Under overload all become overdue, and lengths must still count
_SHARE = 0.1
_SHORTER = 2.0  # than all others: so such a job counts


@dataclass(frozen=True)
class Patience:
    """Since when each job has been there to be decided about (``since[n]``, epoch seconds), and ``first``: the rows of
    those that go before all others, in this order, with the moment from which each is overdue.

    Held jobs and those whose dependencies are not met are not decided about: they do not wait for GPUs.
    """

    since: Floats
    overdue: Mapping[int, float]

    @property
    def first(self) -> tuple[int, ...]:
        return tuple(self.overdue)

    @classmethod
    def of(cls, outlook: Outlook, most: float) -> Patience:
        """By the memory of the round before. ``most``: a job is overdue when it has waited so many times what it takes
        alone, its start included, and others have come since; 0 = never. Those that are overdue longest go first: one
        of them, or as many as need no more than a tenth of the GPUs. Who goes first stays it until it ends: it would be
        stopped as soon as it ran, and its start would have been in vain."""
        now, known = outlook.arena.snapshot.time, outlook.arena.snapshot.memory.get("since", {})
        since = np.array([known.get(job.job_id, now) for job in outlook.jobs], float)
        if not most:
            return cls(since, {})
        overdue = since + most * (outlook.best_s * outlook.grown + outlook.restart_s)
        newest = max((*since.tolist(), *outlook.away(known).values()), default=now)
        late = np.flatnonzero((overdue < now) & (since < newest))  # who came last has its turn anyway
        ran_s = np.array([outlook.jobs[row].attained_s / outlook.jobs[row].form.workers for row in late], float)
        late = late[overdue[late] + ran_s < now]
        before: dict[str, float] = outlook.arena.snapshot.memory.get("first", {})
        stays = {row: before[job.job_id] for row, job in enumerate(outlook.jobs) if job.job_id in before}
        found = stays | {row: float(overdue[row]) for row in late.tolist() if row not in stays}
        order = sorted(found, key=lambda row: (row not in stays, found[row], row))
        taken = np.cumsum(outlook.workers[order].min(axis=1))
        count = max(1, int(np.searchsorted(taken, _SHARE * outlook.gpus.sum(), side="right")))
        return cls(since, {row: found[row] for row in order[:count]})

    def memory(self, outlook: Outlook) -> dict[str, Any]:
        """For the next round. Who is not decided about for the moment, as while it starts, goes on waiting."""
        memory, jobs = outlook.arena.snapshot.memory, [job.job_id for job in outlook.jobs]
        since: dict[str, float] = outlook.away(memory.get("since", {}))
        first: dict[str, float] = outlook.away(memory.get("first", {}))
        first |= {jobs[row]: overdue for row, overdue in self.overdue.items()}
        return {
            "since": since | dict(zip(jobs, self.since.tolist(), strict=True)),
            **({"first": first} if first else {}),
        }

    def hurry(self, outlook: Outlook) -> Floats:
        """How many times as much a second's delay of each job counts, shape (n,): who goes first counts as if it took
        less GPU time than all others."""
        times, first = np.ones(len(self.since)), list(self.first)
        others = np.setdiff1d(outlook.rows, first)
        if first and len(others):
            area = (outlook.run_s * outlook.workers).min(axis=1) * outlook.grown
            times[first] = np.maximum(1.0, _SHORTER * area[first] / area[others].min())
        return times
