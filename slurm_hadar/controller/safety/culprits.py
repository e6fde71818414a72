"""Which jobs a policy fails on, found by halving the queue: the others are not to pay for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from slurm_hadar.model import Snapshot

__all__ = ["find_culprits"]

_MOST = 8  # more than these, and it is the policy that is at fault
_LONGEST_S = 20.0


def find_culprits(snapshot: Snapshot, fails: Callable[[Snapshot], bool]) -> list[str]:
    """Ids of the jobs without which ``fails`` is over; empty if no few single jobs are to blame.

    Each is found by O(log jobs) tries on parts of the queue.
    """
    deadline = time.monotonic() + _LONGEST_S
    found: list[str] = []
    left = [j.job_id for j in snapshot.steerable_jobs]

    def fails_with(jobs: Sequence[str]) -> bool:
        kept = set(jobs)
        return fails(snapshot.without({j.job_id: "left out" for j in snapshot.steerable_jobs if j.job_id not in kept}))

    if not left or fails_with(()):
        return []
    while fails_with(left):
        part = left
        while len(part) > 1:
            if time.monotonic() > deadline:
                return []
            half = len(part) // 2
            first, second = part[:half], part[half:]
            if fails_with(first):
                part = first
            elif fails_with(second):
                part = second
            else:
                return []  # it takes several of them together
        found += part
        left = [job_id for job_id in left if job_id not in found]
        if len(found) > _MOST:
            return []
    return found
