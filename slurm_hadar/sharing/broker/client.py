"""A job's side of a broker: iterations by turns."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker.desk import Told
from slurm_hadar.sharing.broker.wire import Lines, credentials, decoded, encoded
from slurm_hadar.sharing.lanes import Demand

__all__ = ["Session", "Work"]

_RETRY_S = 0.1


@dataclass(frozen=True)
class Work:
    """What a job tells of itself: its memory, how long it takes alone (for ``srtf`` and ``fsp``), its class (for
    ``priority``), and a name for people."""

    demand: Demand
    total_s: float = 0.0
    group: str = ""
    label: str = ""


class Session:
    """A job's place on a GPU. ``with session.iteration():`` waits for the turn and gives it back.

    The caller leaves an iteration only when the GPU has done it (``torch.cuda.synchronize()``), and has given its
    ephemeral memory back where others need it. Without a broker the job runs as if alone, and ``say`` is told so, once;
    one that dies is waited for ``return_s`` to come back. Raises ChannelError if the broker refuses the job.

    A forked child does not use its parent's place: what it leaves is not its own, and for a turn it joins by itself.
    """

    def __init__(
        self, path: Path, work: Work, *, return_s: float = 5.0, say: Callable[[str], None] | None = None
    ) -> None:
        self._path, self._work, self._return_s = path, work, return_s
        self._say = say or (lambda line: print(f"hadar: {line}", file=sys.stderr, flush=True))
        self._sock: socket.socket | None = None
        self._pid = os.getpid()
        self._lines = Lines()
        self._told: list[str] = []
        try:
            self._join()
        except OSError as error:
            self._give_up(error)

    @property
    def alone(self) -> bool:
        """Whether no broker gives turns."""
        return self._sock is None

    @contextlib.contextmanager
    def iteration(self) -> Iterator[None]:
        """One turn."""
        self.take()
        try:
            yield
        finally:
            self.give_back()

    def take(self) -> None:
        """Wait for the turn; for callers that cannot be a block."""
        if os.getpid() != self._pid and self._sock is not None:
            self._come_back()
        try:
            while self._sock is not None:
                try:
                    self._send("want")
                    self._await(Told.TURN)
                    return
                except OSError:
                    self._come_back()
        except BaseException:  # a signal's: what the broker says next would be taken for an answer to the next turn
            if self._sock is not None:
                self._sock.close()
            raise

    def give_back(self) -> None:
        """End the turn that :meth:`take` has waited for."""
        if os.getpid() == self._pid:
            with contextlib.suppress(OSError):  # it is found out, and mended, at the next turn
                self._send("done")

    def close(self) -> None:
        """Leave the GPU to the others."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None

    def _come_back(self) -> None:
        until = time.monotonic() + self._return_s
        while True:
            self.close()
            try:
                self._join()
                return
            except OSError as error:
                if time.monotonic() >= until:
                    self._give_up(error)
                    return
                time.sleep(_RETRY_S)

    def _join(self) -> None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.connect(str(self._path))
        except OSError:
            sock.close()
            raise
        uid = credentials(sock)[1]
        if uid != os.getuid():
            sock.close()
            raise ChannelError(f"the broker at {self._path} is one of user {uid}: another path is needed")
        self._sock, self._lines, self._told, self._pid = sock, Lines(), [], os.getpid()
        work = self._work
        self._send(
            "join", label=work.label, persistent_bytes=work.demand.persistent_bytes,
            ephemeral_bytes=work.demand.ephemeral_bytes, total_s=work.total_s, group=work.group,
        )  # fmt: skip
        self._await(Told.ADMITTED)

    def _send(self, op: str, **values: object) -> None:
        if self._sock is not None:
            self._sock.sendall(encoded(op, **values))

    def _await(self, told: Told) -> None:
        assert self._sock is not None
        while not self._told:
            data = self._sock.recv(65536)
            if not data:
                raise ConnectionResetError("the broker has gone")
            for line in self._lines.feed(data):
                said = decoded(line)
                if said["op"] == "refused":
                    self.close()
                    raise ChannelError(f"the broker at {self._path} refuses this job: {said.get('reason')}")
                self._told.append(said["op"])
        if (got := self._told.pop(0)) != told:
            raise ChannelError(f"the broker at {self._path} says {got!r} where {told} is expected")

    def _give_up(self, error: OSError) -> None:
        self.close()
        self._say(f"no broker at {self._path} ({error.strerror or error}): this job runs as if the GPU were its own")
