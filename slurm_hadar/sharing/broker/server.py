"""The broker's loop: a Unix socket, one user's processes, one GPU."""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_hadar.errors import ChannelError
from slurm_hadar.fields import LONGEST_S
from slurm_hadar.sharing.broker import ledger
from slurm_hadar.sharing.broker.arbiter.arbiter import Arbiter
from slurm_hadar.sharing.broker.arbiter.lane import EQUAL
from slurm_hadar.sharing.broker.connections import Connection, Connections
from slurm_hadar.sharing.broker.messages import Message, Notice, SessionView
from slurm_hadar.sharing.broker.overdue import Overdue
from slurm_hadar.sharing.broker.place import listening, locked
from slurm_hadar.sharing.broker.queries import place_of
from slurm_hadar.sharing.broker.settings import Limits, Rules
from slurm_hadar.sharing.broker.status import Process, status
from slurm_hadar.sharing.broker.wire import encoded
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.sizes import MOST_BYTES

__all__ = ["Broker"]

NS = 1_000_000_000
_STOOD_STILL_NS = NS // 2
#: For how long a session may be told to give way at once: who told it so may be gone.
LONGEST_WAY_S = 60.0


class Broker:
    """Give turns until nobody is left. ``say`` is told what people should know, a line each.

    Only processes of this user are served, unless the limits say ``all_users``: the kernel says who they are
    (SO_PEERCRED). What a process says or does costs nobody else anything: who breaks the protocol, does not read or
    dies is gone, with turn and lane. ``left`` is told the label of each session that has gone, and where it stood.
    """

    def __init__(
        self,
        path: Path,
        rules: Rules,
        limits: Limits,
        say: Callable[[str], None],
        left: Callable[[str, SessionView], None] | None = None,
    ) -> None:
        self._path, self._rules, self._limits, self._say, self._left = path, rules, limits, say, left
        self._lock = locked(path)  # who stands by asks again and again: nothing may be open yet
        self._arbiter = Arbiter(rules)
        self._selector = selectors.DefaultSelector()
        self._mute = False  # that the ledger cannot be written has been said
        self._alone_since_ns = time.monotonic_ns()
        self._formers: dict[str, ledger.Former] = {}
        self._expect(ledger.present(path))
        self._listener = listening(path, 0o111 if limits.all_users else 0o177)
        self._place = place_of(path)
        self._looked_ns = time.monotonic_ns()
        self._connections = Connections(self._listener, self._selector, limits, say)
        self._by_name = self._connections.by_name
        self._overdue = Overdue(self._arbiter, self._by_name, limits, say)

    def serve(self, until: int | None = None) -> None:
        """Until nobody has been there for ``linger_s``, the descriptor ``until`` is readable, or another broker has
        come in the place of one that stood still (``depose``)."""
        if until is not None:
            self._selector.register(until, selectors.EVENT_READ)
        while not self._deposed():
            ready = self._selector.select(self._timeout_s())
            if not ready and self._lonely():  # who has come meanwhile is looked at first
                return
            for key, _ in ready:
                if key.fd == until:
                    return
                self._attend(key)
            for connection in self._connections.unparked():
                self._hear(connection)
            self._tell(self._arbiter.look(self._account()))
            self._overdue.look(time.monotonic_ns())

    def close(self) -> None:
        """Leave no socket behind; the sessions run on as if alone, or join the next broker."""
        self._connections.close()
        for former in self._formers.values():
            os.close(former.process)
        self._listener.close()
        if place_of(self._path) == self._place:
            self._path.unlink(missing_ok=True)
            if not self._arbiter.in_order():
                ledger.remove(self._path)
        self._selector.close()
        os.close(self._lock)

    def _deposed(self) -> bool:
        """Whether another one serves now; looked for where this one may have stood still."""
        before, self._looked_ns = self._looked_ns, time.monotonic_ns()
        return self._looked_ns - before > _STOOD_STILL_NS and place_of(self._path) != self._place

    def _lonely(self) -> bool:
        linger_s = self._limits.linger_s
        return linger_s is not None and not self._by_name and time.monotonic_ns() - self._alone_since_ns > linger_s * NS

    def _timeout_s(self) -> float | None:
        now = time.monotonic_ns()
        moments = [*self._connections.deadlines_ns(), *self._overdue.deadlines_ns()]
        if (deadline_ns := self._arbiter.deadline_ns()) is not None:
            moments.append(deadline_ns)
        if not self._by_name and self._limits.linger_s is not None:
            moments.append(round(self._alone_since_ns + self._limits.linger_s * NS) + 1)
        return max(0.0, (min(moments) - now) / NS) if moments else None

    def _attend(self, key: selectors.SelectorKey) -> None:
        if key.fileobj is self._listener:
            self._connections.accept()
        elif key.data.name in self._by_name:
            if key.fileobj is not key.data.sock:  # ended; a child of it may still have the socket open
                self._drop(key.data)
            elif data := key.data.receive():
                self._hear(key.data, data)
            elif data is not None:
                self._drop(key.data)
        elif key.data.name in self._formers:
            self._forget(key.data)
            self._tell(self._arbiter.leave(key.data.name, self._account()))

    def _hear(self, connection: Connection, data: bytes = b"") -> None:
        """Act on what it has said. Who may not say that is refused."""
        try:
            for message in self._connections.messages(connection, data):
                self._tell(self._act(connection, message))
        except ChannelError as error:
            self._connections.say_refused(connection.uid, f"{connection} was refused: {error}")
            connection.refuse(str(error))
            self._drop(connection)

    def _act(self, connection: Connection, message: dict[str, Any]) -> list[Notice]:
        now = self._account()
        match message["op"]:
            case "want":
                return self._arbiter.want(connection.name, now, connection.progress())
            case "done":
                connection.reported = False
                return self._arbiter.done(connection.name, now, connection.progress())
            case "join":
                return self._join(connection, message, now)
            case "freed":
                connection.reported = False
                return self._arbiter.freed(connection.name, now)
            case "status":
                self._answer(connection, now)
                return []
            case "give_way":
                return self._give_way(connection.uid, message, now)
        raise ChannelError("is no op that is known: join, want, done, freed, status, give_way")

    def _join(self, connection: Connection, message: dict[str, Any], now: int) -> list[Notice]:
        connection.label = "".join(c for c in str(message.get("label", ""))[:64] if c.isprintable())
        demand = Demand(_bytes(message, "persistent_bytes"), _bytes(message, "ephemeral_bytes"))
        total_s = message.get("total_s", 0)
        if isinstance(total_s, bool) or not isinstance(total_s, int | float) or not 0 <= total_s <= LONGEST_S:
            raise ChannelError(f"total_s must be a number from 0 to {LONGEST_S:g}")
        connection.mark = str(message.get("mark", ""))[:64]
        group, can_keep = str(message.get("group", ""))[:64], message.get("can_keep") is True
        was = self._former_of(connection, demand)
        back = was.name if was else None
        notices = self._arbiter.join(
            connection.name, demand, round(total_s * NS), group, now, can_keep=can_keep, back=back
        )
        if was is not None:
            self._forget(was)
        self._write_ledger()
        return notices

    def _answer(self, connection: Connection, now: int) -> None:
        processes = [Process(c.name, c.pid, c.uid, c.label, c.progress()) for c in self._by_name.values()]
        for name, former in self._formers.items():
            processes.append(Process(name, former.entry.pid, former.entry.uid, former.entry.label))
        answer = status(self._arbiter, self._rules.policy, processes, connection.uid, now)
        try:
            connection.sock.send(encoded("status", **answer))
        except BlockingIOError:  # who asks and does not read gets no answer
            pass
        except OSError:  # gone: nobody waits for the answers to its other questions
            connection.unread.clear()

    def _give_way(self, uid: int, message: dict[str, Any], now: int) -> list[Notice]:
        """The sessions of a job, which are its user's, give way. Any process of that user may say that of them,
        nobody else."""
        share, for_s, name = message.get("share"), message.get("for_s"), f"job {str(message.get('job', ''))[:64]}"
        for value, most in ((share, EQUAL), (for_s, LONGEST_WAY_S)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
                raise ChannelError(f"share must be a number from 0 to {EQUAL:g}, for_s one to {LONGEST_WAY_S:g}")
        notices = []
        for one in [c for c in self._by_name.values() if c.uid == uid and f"{c.label} ".startswith(f"{name} ")]:
            if self._arbiter.is_in(one.name):
                notices += self._arbiter.give_way(one.name, float(share), now + round(for_s * NS), now)  # type: ignore
        return notices

    def _expect(self, formers: list[ledger.Former]) -> None:
        until_ns = time.monotonic_ns() + round(ledger.RETURN_S * NS)
        for former in formers:
            self._formers[former.name] = former
            self._arbiter.expect(former.name, former.entry.demand, former.entry.admitted, until_ns)
            self._selector.register(former.process, selectors.EVENT_READ, former)

    def _former_of(self, connection: Connection, demand: Demand) -> ledger.Former | None:
        """Which of the sessions that are expected back this is."""
        known = (f for f in self._formers.values() if (f.entry.pid, f.entry.mark) == (connection.pid, connection.mark))
        return next((former for former in known if former.entry.demand == demand), None)

    def _forget(self, former: ledger.Former) -> None:
        del self._formers[former.name]
        self._selector.unregister(former.process)
        os.close(former.process)

    def _write_ledger(self) -> None:
        """For the broker after this one: before anybody is told that it is let in."""
        if place_of(self._path) != self._place:  # deposed: the file is the other one's
            return
        entries = []
        for name in self._arbiter.in_order():
            if (former := self._formers.get(name)) is not None:
                entries.append(former.entry)
            elif (view := self._arbiter.view(name, 0)) is not None:
                it, admitted = self._by_name[name], self._arbiter.is_in(name)
                sizes = view.demand.persistent_bytes, view.demand.ephemeral_bytes
                entries.append(ledger.Entry(it.pid, it.began, it.mark, it.uid, it.label, *sizes, admitted))
        try:
            ledger.write(self._path, entries)
        except OSError as error:
            if not self._mute:
                self._mute = True
                self._say(f"{self._path}.sessions cannot be written ({error.strerror}): a broker after this one will "
                          "not know whose memory is on the GPU")  # fmt: skip

    def _account(self, going: Connection | None = None) -> int:
        """Before anything depends on it: what those did whose turn nobody else wanted. Until when that is: the clock is
        read after what they tell, lest that is of later than now."""
        told, recalled = {}, self._arbiter.recalled()
        for name in self._arbiter.holders():
            if name not in recalled:
                connection = self._by_name.get(name) or going
                assert connection is not None
                told[name] = connection.progress()
        now = time.monotonic_ns()
        for name, progress in told.items():
            self._arbiter.account(name, progress, now)
        return now

    def _tell(self, notices: list[Notice]) -> None:
        if any(notice.message is Message.ADMITTED for notice in notices):
            self._write_ledger()
        for notice in notices:
            connection = self._by_name.get(notice.name)
            if connection is None:
                continue
            try:
                connection.tell(notice.message)
            except OSError:  # dead, or it does not read
                self._drop(connection)
                continue
            if notice.message is Message.RECALL:
                self._take_back(connection)

    def _take_back(self, connection: Connection) -> None:
        """At once, if it is between two iterations; else it hears of it at the end of this one."""
        if self._arbiter.has_iterated(connection.name, connection.progress()) and connection.lock():
            self._tell(self._arbiter.take_back(connection.name, connection.progress(), time.monotonic_ns()))

    def _drop(self, connection: Connection) -> None:
        if not self._connections.remove(connection):
            return
        now = self._account(connection)
        connection.close()
        view = self._arbiter.view(connection.name, now)
        if view is None:  # it has only looked
            return
        self._alone_since_ns = now
        if self._left is not None:
            self._left(connection.label, view)
        notices = self._arbiter.leave(connection.name, now)
        self._write_ledger()
        self._tell(notices)


def _bytes(message: dict[str, Any], key: str) -> int:
    value = message.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_BYTES:
        raise ChannelError(f"{key} must be a whole number from 0 to {MOST_BYTES:.0e}")
    return value
