"""Who may be connected to the channel, and how much they may say: nobody keeps others out, or takes all files.

ZeroMQ accepts whoever comes. Its monitor tells of each connection, and a message of the one that it came by; a
connection is cut by shutting its socket down, which ZeroMQ takes as the peer's own leaving.
"""

from __future__ import annotations

import contextlib
import resource
import socket
from collections.abc import Callable, Hashable

__all__ = ["Connections", "Rates", "raise_file_limit"]

_MOST_FILES = 65536  # programs that are started from here close them all first
_MOST_STRANGERS = 1000  # connections that have not brought a believed report; each takes some 30 kB
_MOST_PEERS = 4096


def raise_file_limit() -> int:
    """Let this process open as many files as the system allows it; returns how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with contextlib.suppress(OSError, ValueError):  # a sandbox may forbid it
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return most
    return _MOST_FILES if soft == resource.RLIM_INFINITY else soft


class Connections:
    """The connections of the channel, by file descriptor.

    One of them may speak for a job: that which brought its last believed report. All others are strangers, be they
    silent or agents whose job is not known yet; when these are too many the one that has been silent longest is cut. So
    are they when three quarters of the ``files`` that this process may open are connections. ``cut`` counts.
    """

    def __init__(self, files: int) -> None:
        self._most_strangers = min(_MOST_STRANGERS, files // 4)
        self._most = files * 3 // 4
        self._strangers: dict[int, object] = {}  # in the order in which they were heard last; where each comes from
        self._speakers: dict[int, tuple[str, object]] = {}
        self._of_job: dict[str, int] = {}
        self.cut = 0

    def __len__(self) -> int:
        return len(self._strangers) + len(self._speakers)

    def accepted(self, descriptor: int) -> None:
        """A connection was made."""
        self.gone(descriptor)
        self._strangers[descriptor] = _peer(descriptor)
        while self._strangers and (len(self._strangers) > self._most_strangers or len(self) > self._most):
            self._cut(next(iter(self._strangers)))

    def gone(self, descriptor: int) -> None:
        """A connection is over."""
        self._strangers.pop(descriptor, None)
        if descriptor in self._speakers:
            job, _ = self._speakers.pop(descriptor)
            del self._of_job[job]

    def heard(self, descriptor: int, job: str, believed: bool) -> None:
        """A connection has brought a good report."""
        peer = self._strangers.pop(descriptor, None)
        if peer is None:  # it speaks for a job already, or has gone since
            return
        if not believed:
            self._strangers[descriptor] = peer
            return
        self._estrange(job)
        self._speakers[descriptor], self._of_job[job] = (job, peer), descriptor

    def speaks(self, descriptor: int) -> bool:
        """Whether a connection speaks for a job."""
        return descriptor in self._speakers

    def review(self, speaks: Callable[[str], bool]) -> None:
        """Whoever spoke for a job that is over, by ``speaks``, is a stranger again. From time to time."""
        for job in [job for job in self._of_job if not speaks(job)]:
            self._estrange(job)

    def cut_all(self) -> None:
        """Cut every connection, as of one who does not listen any more."""
        for job in list(self._of_job):
            self._estrange(job)
        for descriptor in list(self._strangers):
            self._cut(descriptor)

    def _estrange(self, job: str) -> None:
        if job in self._of_job:
            descriptor = self._of_job.pop(job)
            self._strangers[descriptor] = self._speakers.pop(descriptor)[1]

    def _cut(self, descriptor: int) -> None:
        peer = self._strangers.pop(descriptor)
        if _peer(descriptor) != peer:  # it is another file by now
            return
        self.cut += 1
        with contextlib.suppress(OSError):
            connection = socket.socket(fileno=descriptor)
            try:
                connection.shutdown(socket.SHUT_RDWR)
            finally:
                connection.detach()  # it is ZeroMQ's to close


class Rates:
    """How many messages each peer may send: ``per_s`` in the long run, ``burst`` at once.

    Of very many peers those are forgotten that have been silent longest.
    """

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._left: dict[Hashable, tuple[float, float]] = {}

    def allow(self, peer: Hashable, now: float) -> bool:
        """Whether the peer may send one more at ``now`` (monotonic seconds)."""
        left, at = self._left.pop(peer, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._per_s)
        allowed = left >= 1.0
        self._left[peer] = (left - allowed, now)
        if len(self._left) > _MOST_PEERS:
            del self._left[next(iter(self._left))]
        return allowed


def _peer(descriptor: int) -> object:
    """Where a connection comes from; None if it is none, or none any more."""
    with contextlib.suppress(OSError):
        connection = socket.socket(fileno=descriptor)
        try:
            return connection.getpeername()
        finally:
            connection.detach()
    return None
