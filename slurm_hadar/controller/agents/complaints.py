"""Log lines about what users send and leave: a flood of it must not become a flood of lines."""

from __future__ import annotations

import logging
import threading

__all__ = ["Complaints"]

log = logging.getLogger(__name__)
_FIRST, _EACH = 20, 100


class Complaints:
    """Logs the first few of a kind, then only each hundredth, with the count. Thread-safe."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._lock = threading.Lock()
        self._count = 0

    def say(self, text: str, job_id: str = "") -> None:
        """One more; ``job_id`` if it is about a job."""
        with self._lock:
            self._count += 1
            count = self._count
        if count <= _FIRST or count % _EACH == 0:
            log.warning("%s (%s %d)", text, self._kind, count, extra={"job_id": job_id} if job_id else None)
