"""Free TCP ports for daemons that bind them only later."""

from __future__ import annotations

import random
import socket
from types import TracebackType

from slurm_hadar.errors import ClusterError

__all__ = ["PortReservation"]

# Below the kernel's ephemeral range, so that no outgoing connection takes a port between two starts of a daemon.
_LOW, _HIGH = 20000, 32000


class PortReservation:
    """Ports that stay ours until the daemons listen on them.

    Each port is held by a bound, not listening socket. Another cluster's test bind fails on it, while a daemon, which
    binds with SO_REUSEADDR as Slurm's do, may listen beside it. The kernel lets go of all of them when this process
    ends, however it ends, so no lock file can go stale.
    """

    def __init__(self, count: int, low: int = _LOW, high: int = _HIGH) -> None:
        self._sockets: list[socket.socket] = []
        self.ports: tuple[int, ...] = ()
        candidates = list(range(low, high))
        random.shuffle(candidates)
        for port in candidates:
            if len(self._sockets) == count:
                break
            self._hold(port)
        if len(self._sockets) < count:
            free = len(self._sockets)
            self.release()
            raise ClusterError(
                f"{count} free TCP ports are needed between {low} and {high}, only {free} are; "
                "stop other clusters (hadar cluster down) or ask for fewer nodes"
            )
        self.ports = tuple(sorted(s.getsockname()[1] for s in self._sockets))

    def _hold(self, port: int) -> None:
        holder = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            holder.bind(("0.0.0.0", port))
        except OSError:
            holder.close()
            return
        # only after the bind: the bind itself must fail on a port that anybody else holds
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._sockets.append(holder)

    def release(self) -> None:
        """Let go of the ports."""
        for holder in self._sockets:
            holder.close()
        self._sockets.clear()

    def __enter__(self) -> PortReservation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
