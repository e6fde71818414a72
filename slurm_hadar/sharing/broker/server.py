"""The broker's loop: a Unix socket, one user's processes, one GPU."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_hadar.errors import ChannelError
from slurm_hadar.fields import LONGEST_S
from slurm_hadar.procstat import stat_of
from slurm_hadar.sharing.broker import ledger, progress
from slurm_hadar.sharing.broker.desk import Desk
from slurm_hadar.sharing.broker.lane import EQUAL
from slurm_hadar.sharing.broker.looking import place_of
from slurm_hadar.sharing.broker.place import listening, locked
from slurm_hadar.sharing.broker.rows import row
from slurm_hadar.sharing.broker.seats import NOTHING, Note, Progress, Seat, Told
from slurm_hadar.sharing.broker.settings import Limits, Rules
from slurm_hadar.sharing.broker.wire import Lines, credentials, decoded, encoded
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.sizes import MOST_BYTES

__all__ = ["Broker"]

NS = 1_000_000_000
#: What needs no session. A user's next question waits so many times as long as the last one took, so that nobody's take
#: more than a twentieth of the time in which turns are given.
_QUESTIONS = ("status", "give_way")
_REST = 20
_STOOD_STILL_NS = NS // 2
_AT_ONCE = 8  # lines of one process, before it is the others' turn to be heard
#: For how long a session may be told to give way at once: who told it so may be gone.
LONGEST_WAY_S = 60.0


@dataclass(eq=False)
class _Peer:
    sock: socket.socket
    name: str
    pid: int
    uid: int
    process: int  # a pidfd: readable when the process has ended, and never another process
    began: int
    mark: str = ""
    lines: Lines = field(default_factory=Lines)
    unread: deque[bytes] = field(default_factory=deque)
    progress: int | None = None  # the file that it shares with us, once it is let in
    page: mmap.mmap | None = None  # that
    locked: bool = False  # by us
    label: str = ""
    reported: bool = False
    killed: bool = False

    def told(self) -> Progress:
        """What it says of its iterations."""
        return NOTHING if self.page is None else progress.read(self.page)

    def close(self) -> None:
        """Forget it."""
        self.sock.close()
        if self.page is not None:
            self.page.close()
        for file in (self.process, self.progress):
            if file is not None:
                os.close(file)


class Broker:
    """Give turns until nobody is left. ``say`` is told what people should know, a line each.

    Only processes of this user are served, unless the limits say ``all_users``: the kernel says who they are
    (SO_PEERCRED). What a process says or does
    costs nobody else anything: who breaks the protocol, does not read or dies is gone, with turn and lane. ``left`` is
    told the label of each session that has gone, and where it stood.
    """

    def __init__(
        self,
        path: Path,
        rules: Rules,
        limits: Limits,
        say: Callable[[str], None],
        left: Callable[[str, Seat], None] | None = None,
    ) -> None:
        self._path, self._rules, self._limits, self._say, self._left = path, rules, limits, say, left
        self._desk = Desk(rules)
        self._peers: dict[str, _Peer] = {}
        self._parked: dict[str, int] = {}  # who has said too much, or asks too early: not read till then
        self._rests_ns: dict[int, int] = {}  # until when a user's next question waits
        self._selector = selectors.DefaultSelector()
        self._accepted = 0
        self._mute = False  # that the ledger cannot be written has been said
        self._alone_since_ns = time.monotonic_ns()
        self._lock = locked(path)
        self._formers: dict[str, ledger.Former] = {}
        self._expect(ledger.present(path))
        self._listener = listening(path, 0o111 if limits.all_users else 0o177)
        self._place = place_of(path)
        self._looked_ns = time.monotonic_ns()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def serve(self, until: int | None = None) -> None:
        """Until nobody has been there for ``linger_s``, a signal handler's exception ends it, the descriptor ``until``
        is readable, or another broker has come in the place of one that stood still (``depose``)."""
        if until is not None:
            self._selector.register(until, selectors.EVENT_READ)
        while not self._deposed():
            ready = self._selector.select(self._timeout_s())
            if not ready and self._lonely():  # who has come meanwhile is looked at first
                return
            for key, _ in ready:
                if key.fd == until:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.data.name in self._peers:
                    if key.fileobj is key.data.sock:
                        self._read(key.data)
                    else:  # ended; a child of it may still have the socket open
                        self._drop(key.data)
                elif key.data.name in self._formers:
                    self._forget(key.data)
                    self._tell(self._desk.leave(key.data.name, self._account()))
            self._unpark()
            self._tell(self._desk.look(self._account()))
            self._watch()

    def close(self) -> None:
        """Leave no socket behind; the sessions run on as if alone, or join the next broker."""
        for peer in self._peers.values():
            peer.close()
        for former in self._formers.values():
            os.close(former.process)
        self._listener.close()
        if place_of(self._path) == self._place:
            self._path.unlink(missing_ok=True)
            if not self._desk.in_order():
                ledger.remove(self._path)
        self._selector.close()
        os.close(self._lock)

    def _deposed(self) -> bool:
        """Whether another one serves now; looked for where this one may have stood still."""
        before, self._looked_ns = self._looked_ns, time.monotonic_ns()
        return self._looked_ns - before > _STOOD_STILL_NS and place_of(self._path) != self._place

    def _lonely(self) -> bool:
        linger_s = self._limits.linger_s
        return linger_s is not None and not self._peers and time.monotonic_ns() - self._alone_since_ns > linger_s * NS

    def _timeout_s(self) -> float | None:
        now = time.monotonic_ns()
        moments = [self._desk.deadline_ns()]
        if not self._peers and self._limits.linger_s is not None:
            moments.append(round(self._alone_since_ns + self._limits.linger_s * NS) + 1)
        moments += self._parked.values()
        recalled = self._desk.recalled()
        for name, since_ns in [*recalled.items(), *self._desk.asked().items()]:
            if not self._peers[name].reported:
                moments.append(since_ns + round(self._limits.report_s * NS) + 1)
        for name, since_ns in recalled.items():
            peer = self._peers[name]
            if self._limits.kill_s is not None and not peer.killed:
                moments.append(since_ns + round(self._limits.kill_s * NS) + 1)
        due = [moment for moment in moments if moment is not None]
        return max(0.0, (min(due) - now) / NS) if due else None

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # gone already, or no descriptors left
            return
        pid, uid = credentials(sock)
        if not self._serves(uid):
            self._say(f"process {pid} of user {uid} was refused")
            sock.close()
            return
        try:
            process, began = _process_of(pid, uid)
        except OSError as error:
            self._say(f"process {pid} of user {uid} was refused: {error.strerror}")
            sock.close()
            return
        sock.setblocking(False)
        self._accepted += 1
        peer = _Peer(sock, str(self._accepted), pid, uid, process, began)
        self._peers[peer.name] = peer
        self._selector.register(sock, selectors.EVENT_READ, peer)
        self._selector.register(process, selectors.EVENT_READ, peer)

    def _serves(self, uid: int) -> bool:
        if len(self._peers) >= self._limits.connections:
            return False
        if self._limits.all_users:  # one user's connections must leave room for the others'
            return sum(peer.uid == uid for peer in self._peers.values()) < self._limits.per_user
        return uid == os.getuid()

    def _read(self, peer: _Peer) -> None:
        try:
            data = peer.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(peer)
            return
        self._hear(peer, data)

    def _hear(self, peer: _Peer, data: bytes = b"") -> None:
        """What it has said. Who may not say that is refused."""
        try:
            peer.unread.extend(peer.lines.feed(data))
            self._answer_some(peer)
        except ChannelError as error:
            self._say(f"{_shown(peer)} was refused: {error}")
            with contextlib.suppress(OSError):
                peer.sock.send(encoded("refused", reason=str(error)))
            self._drop(peer)

    def _answer_some(self, peer: _Peer) -> None:
        """What it has said, some lines of it, and no question that comes too early. For the rest it is parked."""
        for _ in range(_AT_ONCE):
            if not peer.unread or peer.name not in self._peers:
                return
            said = decoded(peer.unread[0])
            if said["op"] not in _QUESTIONS:
                peer.unread.popleft()
                self._tell(self._answer(peer, said))
                continue
            if time.monotonic_ns() < (due_ns := self._rests_ns.get(peer.uid, 0)):
                self._park(peer, due_ns)
                return
            peer.unread.popleft()
            began = time.thread_time_ns()
            self._tell(self._answer(peer, said))
            self._rests_ns[peer.uid] = time.monotonic_ns() + _REST * (time.thread_time_ns() - began)
        if peer.unread and peer.name in self._peers:
            self._park(peer, 0)

    def _park(self, peer: _Peer, until_ns: int) -> None:
        self._selector.unregister(peer.sock)
        self._parked[peer.name] = until_ns

    def _unpark(self) -> None:
        now = time.monotonic_ns()
        for name in [name for name, until_ns in self._parked.items() if until_ns <= now]:
            if self._parked.pop(name, None) is None:  # dropped meanwhile
                continue
            peer = self._peers[name]
            self._selector.register(peer.sock, selectors.EVENT_READ, peer)
            self._hear(peer)

    def _answer(self, peer: _Peer, said: dict[str, Any]) -> list[Note]:
        now = self._account()
        match said["op"]:
            case "want":
                return self._desk.want(peer.name, now, peer.told())
            case "done":
                peer.reported = False
                return self._desk.done(peer.name, now, peer.told())
            case "join":
                peer.label = "".join(c for c in str(said.get("label", ""))[:64] if c.isprintable())
                demand = Demand(_bytes(said, "persistent_bytes"), _bytes(said, "ephemeral_bytes"))
                total_s = said.get("total_s", 0)
                if isinstance(total_s, bool) or not isinstance(total_s, int | float) or not 0 <= total_s <= LONGEST_S:
                    raise ChannelError(f"total_s must be a number from 0 to {LONGEST_S:g}")
                return self._join(peer, said, demand, round(total_s * NS), now)
            case "freed":
                peer.reported = False
                return self._desk.freed(peer.name, now)
            case "status":
                try:
                    peer.sock.send(encoded("status", **self._status(now, peer.uid)))
                except BlockingIOError:  # who asks and does not read gets no answer
                    pass
                except OSError:  # gone: nobody waits for the answers to its other questions
                    peer.unread.clear()
                return []
            case "give_way":
                return self._give_way(peer.uid, said, now)
        raise ChannelError("is no op that is known: join, want, done, freed, status, give_way")

    def _join(self, peer: _Peer, said: dict[str, Any], demand: Demand, total_ns: int, now: int) -> list[Note]:
        peer.mark = str(said.get("mark", ""))[:64]
        group, can_keep = str(said.get("group", ""))[:64], said.get("can_keep") is True
        known = (f for f in self._formers.values() if (f.entry.pid, f.entry.mark) == (peer.pid, peer.mark))
        was = next((f for f in known if f.entry.demand == demand), None)
        back = was.name if was else None
        notes = self._desk.join(peer.name, demand, total_ns, group, now, can_keep=can_keep, back=back)
        if was is not None:
            self._forget(was)
        self._note()
        return notes

    def _expect(self, formers: list[ledger.Former]) -> None:
        until_ns = time.monotonic_ns() + round(ledger.RETURN_S * NS)
        for former in formers:
            self._formers[former.name] = former
            self._desk.expect(former.name, former.entry.demand, former.entry.admitted, until_ns)
            self._selector.register(former.process, selectors.EVENT_READ, former)

    def _forget(self, former: ledger.Former) -> None:
        del self._formers[former.name]
        self._selector.unregister(former.process)
        os.close(former.process)

    def _note(self) -> None:
        """For the broker after this one: before anybody is told that it is let in."""
        if place_of(self._path) != self._place:  # deposed: the file is the other one's
            return
        entries = []
        for name in self._desk.in_order():
            if (former := self._formers.get(name)) is not None:
                entries.append(former.entry)
            elif (seat := self._desk.seat(name, 0)) is not None:
                peer = self._peers[name]
                sizes = seat.demand.persistent_bytes, seat.demand.ephemeral_bytes
                admitted = self._desk.is_in(name)
                entries.append(ledger.Entry(peer.pid, peer.began, peer.mark, peer.uid, peer.label, *sizes, admitted))
        try:
            ledger.write(self._path, entries)
        except OSError as error:
            if not self._mute:
                self._mute = True
                self._say(f"{self._path}.sessions cannot be written ({error.strerror}): a broker after this one will "
                          "not know whose memory is on the GPU")  # fmt: skip

    def _give_way(self, uid: int, said: dict[str, Any], now: int) -> list[Note]:
        """The sessions of a job, which are its user's, give way. Any process of that user may say that of them,
        nobody else."""
        share, for_s, name = said.get("share"), said.get("for_s"), f"job {str(said.get('job', ''))[:64]}"
        for value, most in ((share, EQUAL), (for_s, LONGEST_WAY_S)):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
                raise ChannelError(f"share must be a number from 0 to {EQUAL:g}, for_s one to {LONGEST_WAY_S:g}")
        notes = []
        for peer in [p for p in self._peers.values() if p.uid == uid and f"{p.label} ".startswith(f"{name} ")]:
            if self._desk.is_in(peer.name):
                notes += self._desk.give_way(peer.name, float(share), now + round(for_s * NS), now)  # type: ignore
        return notes

    def _status(self, now: int, uid: int) -> dict[str, Any]:
        memory, rows = self._desk.memory, []
        for peer in self._peers.values():
            if (seat := self._desk.seat(peer.name, now)) is not None:
                rows.append(row(peer.name, peer.pid, peer.uid, peer.label, seat, peer.told()))
        for name, former in self._formers.items():
            if (seat := self._desk.seat(name, now)) is not None:
                entry = former.entry
                rows.append(row(name, entry.pid, entry.uid, entry.label, seat, NOTHING))
        used_s = sum(one["used_s"] for one in rows)
        for one in rows:
            one["share"] = one["used_s"] / used_s if used_s else 0.0
            if uid not in {one["user"], os.getuid()}:
                one["label"] = ""
        held = self._desk.holders()
        lanes = []
        for lane in memory.lanes:
            holder = next((name for name in lane.members if name in held), None)
            lanes.append({"lane": lane.number, "bytes": lane.size_bytes, "sessions": list(lane.members),
                          "turn": holder, "held_s": (now - held[holder]) / NS if holder else None})  # fmt: skip
        reserved = memory.reserved_bytes + self._desk.absent_bytes
        return {"policy": self._rules.policy, "memory_bytes": memory.capacity_bytes, "reserved_bytes": reserved,
                "lanes": lanes, "sessions": rows}  # fmt: skip

    def _account(self, going: _Peer | None = None) -> int:
        """Before anything depends on it: what those did whose turn nobody else wanted. Until when that is: the clock is
        read after what they tell, lest that is of later than now."""
        told = {}
        for name in self._desk.holders().keys() - self._desk.recalled().keys():
            peer = self._peers.get(name) or going
            assert peer is not None
            told[name] = peer.told()
        now = time.monotonic_ns()
        for name, progress_told in told.items():
            self._desk.kept(name, progress_told, now)
        return now

    def _tell(self, notes: list[Note]) -> None:
        if any(note.told is Told.ADMITTED for note in notes):
            self._note()
        for note in notes:
            peer = self._peers.get(note.name)
            if peer is None:
                continue
            try:
                self._send(peer, note.told)
            except OSError:  # dead, or it does not read
                self._drop(peer)
                continue
            if note.told is Told.RECALL:
                self._take_back(peer)

    def _send(self, peer: _Peer, told: Told) -> None:
        if told is Told.ADMITTED:
            peer.progress, theirs = progress.made()
            peer.page = progress.mapped(peer.progress)
            try:
                socket.send_fds(peer.sock, [encoded(told)], [theirs])
            finally:
                os.close(theirs)
            return
        if peer.page is not None and told in (Told.TURN, Told.RECALL):
            progress.recall(peer.page, told is Told.RECALL)
        if told is Told.TURN and peer.locked:
            assert peer.progress is not None
            peer.locked = False
            progress.unlocked(peer.progress)
        peer.sock.send(encoded(told))

    def _take_back(self, peer: _Peer) -> None:
        """At once, if it is between two iterations; else it hears of it at the end of this one."""
        assert peer.progress is not None
        if self._desk.keeps(peer.name, peer.told()) and progress.locked(peer.progress):
            peer.locked = True
            self._tell(self._desk.take_back(peer.name, peer.told(), time.monotonic_ns()))

    def _drop(self, peer: _Peer) -> None:
        if self._peers.pop(peer.name, None) is None:
            return
        if self._parked.pop(peer.name, None) is None:
            self._selector.unregister(peer.sock)
        self._selector.unregister(peer.process)
        now = self._account(peer)
        peer.close()
        seat = self._desk.seat(peer.name, now)
        if seat is None:  # it has only looked
            return
        self._alone_since_ns = now
        if self._left is not None:
            self._left(peer.label, seat)
        notes = self._desk.leave(peer.name, now)
        self._note()
        self._tell(notes)

    def _watch(self) -> None:
        """Say who lets the others wait for too long, and end it where that is wanted."""
        now = time.monotonic_ns()
        for name, since_ns in self._desk.asked().items():
            self._report(
                self._peers[name], (now - since_ns) / NS, "has not given its cache of memory back", "who needs it waits"
            )
        for name, since_ns in self._desk.recalled().items():
            peer, held_s = self._peers[name], (now - since_ns) / NS
            self._report(peer, held_s, "has held its turn", "the others of its lane wait")
            if self._limits.kill_s is not None and held_s > self._limits.kill_s and not peer.killed:
                peer.killed = True
                self._say(f"{_shown(peer)} is killed: it has held its turn for {held_s:.0f} s")
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(peer.process, signal.SIGKILL)

    def _report(self, peer: _Peer, for_s: float, what: str, so: str) -> None:
        if for_s > self._limits.report_s and not peer.reported:
            peer.reported = True
            self._say(f"{_shown(peer)} {what} for {for_s:.0f} s; {so}")


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


def _shown(peer: _Peer) -> str:
    return f"process {peer.pid}" + (f" ({peer.label})" if peer.label else "")


def _bytes(said: dict[str, Any], key: str) -> int:
    value = said.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST_BYTES:
        raise ChannelError(f"{key} must be a whole number from 0 to {MOST_BYTES:.0e}")
    return value
