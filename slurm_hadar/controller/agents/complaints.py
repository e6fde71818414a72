"""Log lines about what users send and leave: a flood of it must not become a flood of lines, nor hide others' lines."""

from __future__ import annotations

import logging
import threading
import time

__all__ = ["Complaints"]

log = logging.getLogger(__name__)
_FIRST = 20
_MOST_JOBS = 200  # in a window
_WINDOW_S = 3600.0


class Complaints:
    """Logs within an hour the first few of a kind, the first about each of so many jobs, and of the rest one whenever
    their count has doubled, with it. Thread-safe."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._count, self._next = 0, 2 * _FIRST
        self._jobs = set[str]()
        self._since = time.monotonic()

    def say(self, text: str, job_id: str = "") -> None:
        """One more; ``job_id`` if it is about a job."""
        with self._lock:
            if time.monotonic() - self._since > _WINDOW_S:
                self._count, self._next, self._since = 0, 2 * _FIRST, time.monotonic()
                self._jobs.clear()
            self._count += 1
            count, new = self._count, bool(job_id) and job_id not in self._jobs and len(self._jobs) < _MOST_JOBS
            doubled = count == self._next
            tells = new or doubled or count <= _FIRST
            if doubled:
                self._next *= 2
            if new:
                self._jobs.add(job_id)
        if tells:
            log.warning("%s (%s %d)", text, self._kind, count, extra={"job_id": job_id} if job_id else None)
