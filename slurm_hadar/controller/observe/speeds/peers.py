"""What the jobs that are not over tell of one that has not run yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import median

from slurm_hadar.controller.journal import JobRecord

__all__ = ["Peers"]


class Peers:
    """Of one round. ``records``: of all jobs that are not over."""

    def __init__(self, records: Iterable[JobRecord]) -> None:
        self._saving = set[str]()
        took = defaultdict[tuple[str, ...], list[float]](list)
        for record in records:
            if record.resumable:
                self._saving.add(record.user)
            if record.start_s is not None:
                took[record.user, record.model].append(record.start_s)
                took[record.user,].append(record.start_s)
        self._start_s: dict[tuple[str, ...], float] = {key: median(times) for key, times in took.items()}
        # a user counts once, so that nobody's slow starts become everybody's
        users = [time for key, time in self._start_s.items() if len(key) == 1]
        self._start_s |= {(): median(users)} if users else {}

    def save(self, user: str) -> bool:
        """Whether one of the user's jobs has said that it saves when asked."""
        return user in self._saving

    def start_s(self, user: str, model: str) -> float | None:
        """Seconds from a start to the first step: the median of the user's jobs of that model, else of all of the
        user's, else of the users; None where no start was measured."""
        return next((self._start_s[key] for key in ((user, model), (user,), ()) if key in self._start_s), None)
