"""The processes that are connected to a broker: who they are, by the kernel's word, and what they say, a few lines at a
time, so that none keeps the others from being heard."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_hadar.procstat import stat_of
from slurm_hadar.sharing.broker import progress
from slurm_hadar.sharing.broker.messages import NOTHING, Message, Progress
from slurm_hadar.sharing.broker.settings import Limits
from slurm_hadar.sharing.broker.wire import Lines, credentials, decoded, encoded

__all__ = ["Connection", "Connections"]

#: What needs no session. A user's next question waits so many times as long as the last one took, so that nobody's take
#: more than a twentieth of the time in which turns are given.
_QUESTIONS = ("status", "give_way")
_REST = 20
_AT_ONCE = 8  # lines of one process, before it is the others' turn to be heard
#: What is said of a user's processes that were refused, lest who comes again and again fill the log.
_MOST_SAID, _SAID_NS = 10, 60_000_000_000


@dataclass(eq=False)
class Connection:
    """One process, ``name`` for the broker's ears only."""

    sock: socket.socket
    name: str
    pid: int
    uid: int
    process: int  # a pidfd: readable when the process has ended, and never another process
    began: int
    mark: str = ""
    label: str = ""
    lines: Lines = field(default_factory=Lines)
    unread: deque[bytes] = field(default_factory=deque)
    file: int | None = None  # of the page that it shares with us, once it is let in
    page: mmap.mmap | None = None
    locked: bool = False  # by us
    reported: bool = False  # that it lets others wait
    killed: bool = False

    def __str__(self) -> str:
        return f"process {self.pid}" + (f" ({self.label})" if self.label else "")

    def progress(self) -> Progress:
        """What it says of its iterations."""
        return NOTHING if self.page is None else progress.read(self.page)

    def receive(self) -> bytes | None:
        """What it has sent; None: nothing new; empty: it has hung up."""
        try:
            return self.sock.recv(65536)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    def tell(self, message: Message) -> None:
        """Raises OSError where it is dead or does not read."""
        if message is Message.ADMITTED:
            self.file, theirs = progress.made()
            self.page = progress.mapped(self.file)
            try:
                socket.send_fds(self.sock, [encoded(message)], [theirs])
            finally:
                os.close(theirs)
            return
        if self.page is not None and message in (Message.TURN, Message.RECALL):
            progress.recall(self.page, message is Message.RECALL)
        if message is Message.TURN and self.locked:
            assert self.file is not None
            self.locked = False
            progress.unlocked(self.file)
        self.sock.send(encoded(message))

    def refuse(self, reason: str) -> None:
        """Say why it is dropped, if it listens."""
        with contextlib.suppress(OSError):
            self.sock.send(encoded("refused", reason=reason))

    def lock(self) -> bool:
        """Let it begin no iteration until its next turn; False where it is in one."""
        assert self.file is not None
        self.locked = progress.locked(self.file)
        return self.locked

    def close(self) -> None:
        """Forget it."""
        self.sock.close()
        if self.page is not None:
            self.page.close()
        for file in (self.process, self.file):
            if file is not None:
                os.close(file)


class Connections:
    """Those of one broker, by their names, and when each is heard next. ``say`` is told who is refused."""

    def __init__(
        self,
        listener: socket.socket,
        selector: selectors.BaseSelector,
        limits: Limits,
        say: Callable[[str], None],
    ) -> None:
        self._listener, self._selector, self._limits, self._say = listener, selector, limits, say
        self.by_name: dict[str, Connection] = {}
        self._accepted = 0
        self._parked: dict[str, int] = {}  # who has said too much, or asks too early: not read till then
        self._rests_ns: dict[int, int] = {}  # until when a user's next question waits
        self._said: dict[int, tuple[int, int]] = {}  # of each user's refused ones: since when, and how often
        selector.register(listener, selectors.EVENT_READ)

    def accept(self) -> None:
        """The next one that has come, if the limits and the kernel allow."""
        try:
            sock, _ = self._listener.accept()
        except OSError:  # gone already, or no descriptors left
            return
        pid, uid = credentials(sock)
        if not self._serves(uid):
            self.say_refused(uid, f"process {pid} of user {uid} was refused")
            sock.close()
            return
        try:
            process, began = _process_of(pid, uid)
        except OSError as error:
            self.say_refused(uid, f"process {pid} of user {uid} was refused: {error.strerror}")
            sock.close()
            return
        sock.setblocking(False)
        self._accepted += 1
        connection = Connection(sock, str(self._accepted), pid, uid, process, began)
        self.by_name[connection.name] = connection
        self._selector.register(sock, selectors.EVENT_READ, connection)
        self._selector.register(process, selectors.EVENT_READ, connection)

    def say_refused(self, uid: int, line: str) -> None:
        """Of a user's process that was refused; only so often a minute."""
        since_ns, said = self._said.get(uid, (0, 0))
        if (now := time.monotonic_ns()) - since_ns > _SAID_NS:
            since_ns, said = now, 0
        self._said[uid] = since_ns, said + 1
        if said < _MOST_SAID:
            self._say(line)
        elif said == _MOST_SAID:
            self._say(f"further processes of user {uid} were refused, of which nothing is said for a minute")

    def messages(self, connection: Connection, data: bytes = b"") -> Iterator[dict[str, Any]]:
        """What it has said, with this ``data``: some lines of it, and no question that comes too early. For the rest it
        is parked. Each is to be acted on before the next is asked for: a question's time counts until then. Raises
        ChannelError for what is no message."""
        connection.unread.extend(connection.lines.feed(data))
        for _ in range(_AT_ONCE):
            if not connection.unread or connection.name not in self.by_name:
                return
            message = decoded(connection.unread[0])
            if message["op"] not in _QUESTIONS:
                connection.unread.popleft()
                yield message
                continue
            if time.monotonic_ns() < (due_ns := self._rests_ns.get(connection.uid, 0)):
                self._park(connection, due_ns)
                return
            connection.unread.popleft()
            began = time.thread_time_ns()
            yield message
            self._rests_ns[connection.uid] = time.monotonic_ns() + _REST * (time.thread_time_ns() - began)
        if connection.unread and connection.name in self.by_name:
            self._park(connection, 0)

    def unparked(self) -> Iterator[Connection]:
        """Those that are to be heard now of what they have said before."""
        now = time.monotonic_ns()
        for name in [name for name, until_ns in self._parked.items() if until_ns <= now]:
            if self._parked.pop(name, None) is None:  # removed meanwhile
                continue
            connection = self.by_name[name]
            self._selector.register(connection.sock, selectors.EVENT_READ, connection)
            yield connection

    def deadlines_ns(self) -> list[int]:
        """When :meth:`unparked` has somebody."""
        return list(self._parked.values())

    def remove(self, connection: Connection) -> bool:
        """It is heard no more; False: it was not any more."""
        if self.by_name.pop(connection.name, None) is None:
            return False
        if self._parked.pop(connection.name, None) is None:
            self._selector.unregister(connection.sock)
        self._selector.unregister(connection.process)
        return True

    def close(self) -> None:
        """All of them."""
        for connection in self.by_name.values():
            connection.close()

    def _serves(self, uid: int) -> bool:
        if len(self.by_name) >= self._limits.connections:
            return False
        if self._limits.all_users:  # one user's connections must leave room for the others'
            return sum(other.uid == uid for other in self.by_name.values()) < self._limits.per_user
        return uid == os.getuid()

    def _park(self, connection: Connection, until_ns: int) -> None:
        self._selector.unregister(connection.sock)
        self._parked[connection.name] = until_ns


def _process_of(pid: int, uid: int) -> tuple[int, int]:
    """A pidfd of the user's process, and when that began. Raises OSError where it has ended."""
    process = os.pidfd_open(pid)
    try:
        if _owner(pid) != uid:  # its number is another's by now, who is not to be killed in its place
            raise ProcessLookupError(errno.ESRCH, "it has ended")
        return process, stat_of(pid).began
    except OSError:
        os.close(process)
        raise


def _owner(pid: int) -> int:
    return Path(f"/proc/{pid}").stat().st_uid
