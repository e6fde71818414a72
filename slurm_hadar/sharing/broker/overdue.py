"""Who lets the others wait for too long."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping

from slurm_hadar.sharing.broker.arbiter.arbiter import Arbiter
from slurm_hadar.sharing.broker.connections import Connection
from slurm_hadar.sharing.broker.settings import Limits

__all__ = ["Overdue"]

NS = 1_000_000_000


class Overdue:
    """``say`` is told of each that is overdue, once; its process is killed where the limits want that."""

    def __init__(
        self, arbiter: Arbiter, connections: Mapping[str, Connection], limits: Limits, say: Callable[[str], None]
    ) -> None:
        self._arbiter, self._connections, self._limits, self._say = arbiter, connections, limits, say

    def deadlines_ns(self) -> list[int]:
        """When :meth:`look` has something to do if nothing else happens."""
        moments = []
        recalled = self._arbiter.recalled()
        for name, since_ns in [*recalled.items(), *self._arbiter.asked().items()]:
            if not self._connections[name].reported:
                moments.append(since_ns + round(self._limits.report_s * NS) + 1)
        if self._limits.kill_s is not None:
            for name, since_ns in recalled.items():
                if not self._connections[name].killed:
                    moments.append(since_ns + round(self._limits.kill_s * NS) + 1)
        return moments

    def look(self, now_ns: int) -> None:
        """Say who is overdue by now, and end it where that is wanted."""
        for name, since_ns in self._arbiter.asked().items():
            connection, for_s = self._connections[name], (now_ns - since_ns) / NS
            self._report(connection, for_s, "has not given its cache of memory back", "who needs it waits")
        for name, since_ns in self._arbiter.recalled().items():
            connection, for_s = self._connections[name], (now_ns - since_ns) / NS
            self._report(connection, for_s, "has held its turn", "the others of its lane wait")
            if self._limits.kill_s is not None and for_s > self._limits.kill_s and not connection.killed:
                connection.killed = True
                self._say(f"{connection} is killed: it has held its turn for {for_s:.0f} s")
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(connection.process, signal.SIGKILL)

    def _report(self, connection: Connection, for_s: float, what: str, so: str) -> None:
        if for_s > self._limits.report_s and not connection.reported:
            connection.reported = True
            self._say(f"{connection} {what} for {for_s:.0f} s; {so}")
