"""What other jobs, those that are over too, tell of one that has not run yet."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from itertools import chain
from statistics import median

from slurm_hadar.controller.journal import JobRecord, PastJob

__all__ = ["Peers"]


class Peers:
    """Of one round. ``records``: of all jobs that are not over; ``past``: of those that are, the last of them last."""

    def __init__(self, records: Collection[JobRecord], past: Iterable[PastJob] = ()) -> None:
        self._saving = {record.user for record in records if record.resumable}
        self._kin_saves: dict[tuple[str, str], bool] = {}
        took = defaultdict[tuple[str, ...], list[float]](list)
        for job in chain[PastJob | JobRecord](past, records):
            if job.resumable or job.final == "COMPLETED":  # who has failed may not have come to say so
                self._kin_saves[job.user, job.model or job.name] = job.resumable
            if job.start_s is not None:
                took[job.user, job.model].append(job.start_s)
                took[job.user,].append(job.start_s)
        self._start_s: dict[tuple[str, ...], float] = {key: median(times) for key, times in took.items()}
        # a user counts once, so that nobody's slow starts become everybody's
        users = [time for key, time in self._start_s.items() if len(key) == 1]
        self._start_s |= {(): median(users)} if users else {}

    def save(self, user: str, model: str, name: str) -> bool:
        """Whether a job of the user's is expected to save when asked: as the last one of its model did, or where no
        model is stated, of its name; where there was none, if another of the user's that is not over does."""
        return self._kin_saves.get((user, model or name), user in self._saving)

    def start_s(self, user: str, model: str) -> float | None:
        """Seconds from a start to the first step: the median of the user's jobs of that model, else of all of the
        user's, else of the users; None where no start was measured."""
        return next((self._start_s[key] for key in ((user, model), (user,), ()) if key in self._start_s), None)
