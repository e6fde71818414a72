"""A backend that tells somebody of every call: what it asks Slurm to change, before it does, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.state import ClusterState, Daemon, SlurmJob, Write, WriteResult

__all__ = ["Watcher", "WatchedBackend"]

_T = TypeVar("_T")


class Watcher(Protocol):
    """Who is told. Called on the thread of the call."""

    def asking(self, verb: str, words: Sequence[str]) -> None:
        """Slurm is about to be told to ``write``, ``signal`` or ``cancel``; ``words`` say what, word for word."""

    def called(self, name: str, seconds: float, failed: bool) -> None:
        """A call of the backend is over; ``name`` is that of its method."""


class WatchedBackend(Backend):
    """``inner``, watched. Raises what it raises."""

    def __init__(self, inner: Backend, watcher: Watcher) -> None:
        self._inner = inner
        self._watcher = watcher
        self.name = inner.name

    def version(self) -> str:
        return self._inner.version()

    def cluster_name(self) -> str:
        return self._inner.cluster_name()

    def identity(self) -> str:
        return self._inner.identity()

    def read(self) -> ClusterState:
        return self._timed("read", self._inner.read)

    def topology(self) -> str:
        return self._timed("topology", self._inner.topology)

    def daemons(self) -> tuple[Daemon, ...]:
        return self._timed("daemons", self._inner.daemons)

    def each_job(self) -> Iterator[SlurmJob]:
        return self._timed("read_jobs", self._inner.each_job)

    def read_jobs(self) -> tuple[SlurmJob, ...]:
        return self._timed("read_jobs", self._inner.read_jobs)

    def next_job_id(self) -> int | None:
        return self._timed("next_job_id", self._inner.next_job_id)

    def comments_since(self, first: int, end: int) -> tuple[str, ...]:
        return self._timed("comments_since", lambda: self._inner.comments_since(first, end))

    def gpus_in_use(self) -> dict[str, int]:
        return self._timed("gpus_in_use", self._inner.gpus_in_use)

    def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        if not writes:
            return []
        self._watcher.asking("write", [str(w) for w in writes])
        return self._timed("write", lambda: self._inner.write(writes))

    def signal(self, steps: Sequence[str], signal: str) -> None:
        self._watcher.asking("signal", [f"{signal} to {step}" for step in steps])
        self._timed("signal", lambda: self._inner.signal(steps, signal))

    def cancel(self, job_ids: Sequence[str]) -> list[WriteResult]:
        self._watcher.asking("cancel", list(job_ids))
        return self._timed("cancel", lambda: self._inner.cancel(job_ids))

    def clock_ahead_s(self) -> tuple[float, float] | None:
        return self._timed("clock_ahead_s", self._inner.clock_ahead_s)

    def close(self) -> None:
        self._inner.close()

    def _timed(self, name: str, call: Callable[[], _T]) -> _T:
        began, failed = time.monotonic(), True
        try:
            answer = call()
            failed = False
            return answer
        finally:
            self._watcher.called(name, time.monotonic() - began, failed)
