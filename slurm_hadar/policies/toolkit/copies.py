"""Forked jobs as the policies see them: which copies belong together, and which one a policy is shown that runs one.

A forked job (HadarE) is an array of copies that train at once. For a policy that knows nothing of this, two copies are
two jobs, and it would run the same work twice. So such a policy is shown one copy of each parent, and the others are
told to wait.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from slurm_hadar.model import Job, JobState, Plan, Snapshot, Tier, Wait

__all__ = ["Family", "fastest", "one_copy_each"]

_Allocate = Callable[[Any, Snapshot], Plan]


@dataclass(frozen=True)
class Family:
    """The active, steerable copies of one parent, in the order of their numbers.

    ``stuck`` are those that cannot be decided about now: on their way in or out, or running and not to be moved;
    ``running`` run and may be moved; ``waiting`` are pending.
    """

    parent: str
    copies: tuple[Job, ...]

    @classmethod
    def all_of(cls, snapshot: Snapshot) -> list[Family]:
        """The families of a snapshot, in order of arrival. A parent with a single copy left is a family too."""
        found: dict[str, list[Job]] = {}
        for job in snapshot.steerable_jobs:
            if job.fork is not None:
                found.setdefault(job.parent, []).append(job)
        return [cls(parent, tuple(sorted(copies, key=_number))) for parent, copies in found.items()]

    @property
    def stuck(self) -> tuple[Job, ...]:
        """Those that keep their places: they end, are suspended, or cannot be moved."""
        return tuple(j for j in self.copies if j.state is not JobState.PENDING and not _at_will(j))

    @property
    def running(self) -> tuple[Job, ...]:
        """Those that run and may be moved or stopped."""
        return tuple(j for j in self.copies if _at_will(j))

    @property
    def waiting(self) -> tuple[Job, ...]:
        """Those that hold nothing."""
        return tuple(j for j in self.copies if j.state is JobState.PENDING)


def _at_will(job: Job) -> bool:
    return job.running and bool(job.placement) and job.unmovable is None


def _number(job: Job) -> tuple[int, str]:
    number = job.job_id.rpartition("_")[2]
    return int(number) if number.isdecimal() else -1, job.job_id


def fastest(copies: tuple[Job, ...]) -> Job:
    """The copy that makes most steps per second where it runs; of equals the first."""
    return max(copies, key=lambda j: j.rate(j.placement))


def _shown(family: Family) -> tuple[Job, ...]:
    """The copies that a policy sees which runs one: what is on its way in or out or cannot be stopped, and unless that
    runs, the fastest that runs; else the first."""
    stuck = family.stuck
    if family.running and not any(j.running and j.placement for j in stuck):
        return (*stuck, fastest(family.running))
    return stuck or family.waiting[:1]


def one_copy_each(allocate: _Allocate) -> _Allocate:
    """``allocate`` of a policy that does not fork, made to see one copy of each parent.

    It sees it under the parent's id, so that what it remembers holds on when another copy takes over, and with the
    GPU-seconds that all copies attained. Where more than one cannot be stopped, all of those are seen as they are,
    since they hold GPUs. O(jobs).
    """

    @functools.wraps(allocate)
    def allocate_one_each(self: Any, snapshot: Snapshot) -> Plan:
        families = Family.all_of(snapshot)
        if not families:
            return allocate(self, snapshot)
        seen, alias, waits = _with_one_each(snapshot, families, self.name)
        plan = allocate(self, snapshot.with_jobs(seen))
        return replace(
            plan,
            placements={alias.get(j, j): p for j, p in plan.placements.items()},
            waits={**{alias.get(j, j): w for j, w in plan.waits.items()}, **waits},
            payoffs={alias.get(j, j): v for j, v in plan.payoffs.items()},
        )

    return allocate_one_each


def _with_one_each(
    snapshot: Snapshot, families: list[Family], policy: str
) -> tuple[list[Job], dict[str, str], dict[str, Wait]]:
    """The jobs to show, the copies behind parents' ids, and a Wait for each copy that is left out."""
    instead: dict[str, Job] = {}
    alias: dict[str, str] = {}
    waits: dict[str, Wait] = {}
    for family in families:
        shown = _shown(family)
        names = ", ".join(j.job_id for j in shown)
        why = f"copy of job {family.parent}; policy {policy} runs one copy ({names}); hadare forks"
        waits |= {j.job_id: Wait(Tier.POLICY, why) for j in family.copies if j not in shown}
        if len(shown) == 1 and family.parent not in snapshot.job:
            attained_s = sum(j.attained_s for j in family.copies)
            instead[shown[0].job_id] = replace(shown[0], job_id=family.parent, fork=None, attained_s=attained_s)
            alias[family.parent] = shown[0].job_id
    jobs = [instead.get(j.job_id, j) for j in snapshot.jobs if j.job_id not in waits]
    return jobs, alias, waits
