"""A job's side of a broker: iterations by turns."""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar import joblog
from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker import progress
from slurm_hadar.sharing.broker.ledger import RETURN_S
from slurm_hadar.sharing.broker.messages import Message, Progress
from slurm_hadar.sharing.broker.queries import place_of, trusted
from slurm_hadar.sharing.broker.wire import Lines, credentials, decoded, encoded
from slurm_hadar.sharing.lanes import Demand

__all__ = ["Session", "Work"]

_RETRY_S = 0.1
_FIRST_S = 1.0  # so long a broker that is just being started, or changes hands, is waited for
_MOST = 65536
_AGAIN_S = 5.0  # so often who has found no broker looks for one
_TIMEVAL = struct.Struct("ll")  # of socket(7)'s SO_SNDTIMEO and SO_RCVTIMEO
_TELL_S = 10.0  # who is not let in for so long is told why nothing goes on
_LOOK_S = 1.0  # so often who waits, or keeps its turn, looks whether another broker has come in its broker's place


@dataclass(frozen=True)
class Work:
    """What a job tells of itself: its memory, how long it takes alone (for ``srtf`` and ``fsp``), its class (for
    ``priority``), a name for people, and whether it can keep its ephemeral memory between turns, and give it back when
    it is asked to, also while it has no turn (:meth:`Session.heed`, a few times a second)."""

    demand: Demand
    total_s: float = 0.0
    group: str = ""
    label: str = ""
    can_keep: bool = False


class Session:
    """A job's place on a GPU. ``with session.iteration():`` waits for the turn and gives it back. A turn that nobody
    else asks for stays with the job: its next iteration waits for nobody.

    The caller leaves an iteration only when the GPU has done it (``torch.cuda.synchronize()``), and has given its
    ephemeral memory back where others need it (:attr:`may_keep`); or leaves that to what it gives :meth:`give_back`.
    ``free`` gives back what was kept, when the broker asks for it between two iterations. Without a broker the job
    runs as if alone, and ``say`` is told so, once; one that dies is waited for ``return_s`` to come back, and joined
    between two iterations if it comes later. Raises ChannelError if the broker refuses the job, but not one that has
    run as if alone: it goes on so.

    A forked child does not use its parent's place: what it leaves is not its own, and for a turn it joins by itself.
    """

    def __init__(
        self, path: Path, work: Work, *, return_s: float = RETURN_S, say: Callable[[str], None] = joblog.say
    ) -> None:
        self._path, self._work, self._return_s = path, work, return_s
        self._say = say
        self._sock: socket.socket | None = None
        self._pid = os.getpid()
        self._mark = secrets.token_hex(8)  # by which the next broker knows it again
        self._lines = Lines()
        self._told: list[str] = []
        self._file: int | None = None
        self._page: mmap.mmap | None = None
        self._says = select.poll()
        self._has_turn = False
        self._rests = threading.Event()  # it keeps its turn, and is or was between two iterations
        self._progress = Progress()
        self._first_ns: int | None = None  # when it first asked for a turn
        self._waited_ns = 0
        self._settle: Callable[[], tuple[int, int]] | None = None
        #: Whether nobody needs this job's ephemeral memory between its turns.
        self.may_keep = False
        self.free: Callable[[], None] | None = None
        self._asked = False  # to give it back
        self._place: int | None = None
        self._broker: tuple[int, int | None] | None = None  # that was joined last: its process and place
        self._look_at = 0.0
        self._again_ns = 0.0  # when one without a broker looks for one
        self._come_back(min(_FIRST_S, return_s))

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
        asked_ns = time.monotonic_ns()
        if self._sock is not None and (os.getpid() != self._pid or self._is_deposed()):
            self._come_back()
        elif self._sock is None and asked_ns >= self._again_ns:
            self._look_again()
        if self._has_turn and not (self._settle and self.heed()) and self._locked():
            if self._page is None or not progress.is_recalled(self._page):
                self._began(asked_ns)
                self._write()
                return
            self._hand_over()  # the broker took it back, and has died, or was about to
        self._lose_turn()
        try:
            while self._sock is not None and not self._has_turn:
                try:
                    self._send("want")
                    while self._next() != Message.TURN:  # it was recalled, and given or taken back before that was read
                        pass
                    self._has_turn = True
                    self._began(asked_ns)
                except OSError:
                    self._come_back()
        except BaseException:  # a signal's: what the broker says next would be taken for an answer to the next turn
            if self._sock is not None:
                self._sock.close()
            raise

    def _look_again(self) -> None:
        """Join a broker that has come since there was none."""
        try:
            self._empty()
            self._join()
            self._say(f"a broker serves at {self._path}: this job takes turns from now on")
        except OSError:
            self._later(_AGAIN_S)
        except ChannelError as error:
            self._say(f"{error}; it runs as if the GPU were its own")
            self._later(math.inf)

    def _is_deposed(self) -> bool:
        """Whether another broker serves now; looked for from time to time."""
        if (now := time.monotonic()) < self._look_at:
            return False
        self._look_at = now + _LOOK_S
        return place_of(self._path) not in (None, self._place)

    def _began(self, asked_ns: int) -> None:
        so_far, now = self._progress, time.monotonic_ns()
        if self._first_ns is None:
            self._first_ns = asked_ns
        away_ns = max(0, asked_ns - self._first_ns - self._waited_ns - so_far.used_ns)
        self._waited_ns += now - asked_ns
        # no _replace, here and at the end: a step leaves caches in which Python takes three to six times as long
        iterations, used_ns, _, ended_ns, persistent, ephemeral, _, switch_ns = so_far
        self._progress = Progress(iterations, used_ns, now, ended_ns, persistent, ephemeral, away_ns, switch_ns)

    def took(self, persistent_bytes: int, ephemeral_bytes: int) -> None:
        """What the job's memory was in the iteration that is about to end; told with its end, and for people and later
        runs alone: what is reserved is what was declared."""
        most = self._progress
        self._progress = most._replace(
            persistent_bytes=max(most.persistent_bytes, persistent_bytes),
            ephemeral_bytes=max(most.ephemeral_bytes, ephemeral_bytes),
        )

    def _locked(self) -> bool:
        return self._file is not None and progress.locked(self._file)

    def give_back(self, settle: Callable[[], tuple[int, int]] | None = None, spent_ns: int | None = None) -> None:
        """End the turn that :meth:`take` has waited for, when somebody else asks for it: now, or while the job is
        between two iterations. ``settle`` is called before that is told: until then a GPU may still be at work, and the
        job's ephemeral memory its own; it returns the nanoseconds of the GPU's work that were not told of yet, and
        those that the hand-over costs the GPU. Where there is one, the turn ends between two iterations only in
        :meth:`heed`. ``spent_ns`` is how long the GPU worked since it was last told; None: as long as the turn took."""
        if os.getpid() != self._pid or not self._has_turn:
            return
        now, so_far = time.monotonic_ns(), self._progress
        spent_ns = now - so_far.began_ns if spent_ns is None else spent_ns
        iterations, used_ns, began_ns, _, *rest = so_far
        self._progress = Progress(iterations + 1, used_ns + spent_ns, began_ns, now, *rest)
        self._settle = settle
        if settle is not None:  # nobody else may begin before it is done
            self._locked()
        self._write()
        if self._page is not None and progress.is_recalled(self._page):
            self._hand_over()
            self.heed()  # of what else was said
            return
        if settle is None:
            self._unlock()
        # last: whom the broker has recalled before the lock was free, it waits for
        if not self.heed() and self._has_turn:
            self._rests.set()

    def heed(self) -> bool:
        """Hand the turn over if the broker has asked for it and the job is between two iterations; whether it has. What
        is kept is given back if it has asked for that."""
        had = self._has_turn
        if os.getpid() != self._pid or self._sock is None or not (self._told or self._says.poll(0)):
            return False
        try:
            self._hear(socket.MSG_DONTWAIT)
        except BlockingIOError:
            pass
        except OSError:  # it is found out, and mended, at the next turn
            self._lose_turn()
        if not had or not self._between or (self._has_turn and Message.RECALL not in self._told):
            return False
        self._hand_over()
        return True

    @property
    def _between(self) -> bool:
        """Whether the job is between two iterations."""
        return self._progress.ended_ns >= self._progress.began_ns

    def _hand_over(self) -> None:
        self._told.clear()
        self._lose_turn()
        try:
            if self._settle is not None:
                spent_ns, switch_ns = self._settle()
                used_ns = self._progress.used_ns + spent_ns
                self._progress = self._progress._replace(used_ns=used_ns, switch_ns=switch_ns)
                self._write()
        finally:  # of a GPU that has failed, too
            with contextlib.suppress(OSError):
                self._send("done")
            self._unlock()

    def _lose_turn(self) -> None:
        self._has_turn = False
        self._rests.clear()

    def _unlock(self) -> None:
        if self._file is not None:
            progress.unlocked(self._file)

    def until_said(self, seconds: float) -> None:
        """Wait until the broker says something to a job that keeps its turn, or the time is over."""
        if not self._rests.wait(seconds):
            return
        sock = self._sock
        if sock is None or Message.RECALL in self._told:
            time.sleep(seconds)
            return
        poll = select.poll()  # not the other thread's
        with contextlib.suppress(OSError, ValueError):  # closed meanwhile
            poll.register(sock, select.POLLIN)
            poll.poll(1000 * seconds)

    def close(self) -> None:
        """Leave the GPU to the others."""
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        if self._file is not None:
            os.close(self._file)
            self._file = self._page = None
        self._lose_turn()

    def _come_back(self, patience_s: float | None = None) -> None:
        until = time.monotonic() + (self._return_s if patience_s is None else patience_s)
        lost = None
        while True:
            self.close()
            self._broker = None
            try:
                self._empty()  # another broker knows of nothing that is kept
                self._join()
                return
            except OSError as error:
                if self._broker not in (None, lost):  # the same one again: it does not want this job
                    lost, until = self._broker, time.monotonic() + self._return_s
                if time.monotonic() >= until:
                    self._give_up(error)
                    return
                time.sleep(_RETRY_S)

    def _join(self) -> None:
        self._place = place_of(self._path)
        self._check(self._path.stat().st_uid)  # before anything is waited for
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(round(_FIRST_S), 0))
            sock.connect(str(self._path))  # waits for one that stands still and has others waiting
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, 0))
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL.pack(round(_LOOK_S), 0))
            pid, uid = credentials(sock)
            self._check(uid)
        except (OSError, ChannelError):
            sock.close()
            raise
        self._sock, self._lines, self._told, self._pid = sock, Lines(), [], os.getpid()
        self._broker = pid, self._place
        self.may_keep = self._asked = False
        self._progress, self._first_ns, self._waited_ns = Progress(), None, 0
        work = self._work
        self._send(
            "join", label=work.label, persistent_bytes=work.demand.persistent_bytes,
            ephemeral_bytes=work.demand.ephemeral_bytes, total_s=work.total_s, group=work.group, can_keep=work.can_keep,
            mark=self._mark,
        )  # fmt: skip
        self._admitted()

    def _check(self, uid: int) -> None:
        if not trusted(uid):
            raise ChannelError(f"the broker at {self._path} is one of user {uid}: another path is needed")

    def _send(self, op: str, **values: object) -> None:
        if self._sock is not None:
            self._sock.sendall(encoded(op, **values))

    def _admitted(self) -> None:
        assert self._sock is not None
        self._says = select.poll()
        self._says.register(self._sock, select.POLLIN)
        self._await()
        data, files, _, _ = socket.recv_fds(self._sock, _MOST, 1)
        if files:
            self._file = files[0]
            try:
                self._page = progress.mapped(files[0])
            except ValueError:
                raise OSError(errno.EPROTO, "it is of an older release") from None
        self._take_in(data)
        if self._told != [Message.ADMITTED] or self._file is None:
            raise ChannelError(f"the broker at {self._path} says {self._told} where {Message.ADMITTED} is expected")
        self._told.clear()

    def _next(self) -> str:
        """What the broker says, waited for."""
        while not self._told:
            try:
                self._hear(0)
            except BlockingIOError:
                self._look_for_another()
        if (said := self._told.pop(0)) not in (Message.TURN, Message.RECALL):
            raise ChannelError(f"the broker at {self._path} says {said!r} where {Message.TURN} is expected")
        return said

    def _await(self) -> None:
        """Until the broker says something; told of where that is long."""
        tell_at = time.monotonic() + _TELL_S
        while not self._says.poll(1000 * _LOOK_S):
            self._look_for_another()
            if time.monotonic() >= tell_at:
                tell_at = math.inf
                self._say(
                    "it waits to be let in on the shared GPU, as where its memory has no room beside the others'; "
                    "hadar share status shows who is there"
                )

    def _look_for_another(self) -> None:
        if self._is_deposed():
            raise ConnectionResetError("another broker has taken its place")

    def _hear(self, flags: int) -> None:
        assert self._sock is not None
        self._take_in(self._sock.recv(_MOST, flags))

    def _take_in(self, data: bytes) -> None:
        if not data:
            raise ConnectionResetError("the broker has gone")
        for line in self._lines.feed(data):
            said = decoded(line)
            if said["op"] == "refused":
                self.close()
                raise ChannelError(f"the broker at {self._path} refuses this job: {said.get('reason')}")
            if said["op"] in (Message.KEEP, Message.FREE):
                self.may_keep = said["op"] == Message.KEEP
                self._asked = self._asked or not self.may_keep
            else:
                self._told.append(said["op"])
        if self._asked:
            self._asked = False
            if self._between:  # else what is in use is its turn's, and given back with that
                self._empty()
            self._send("freed")

    def _empty(self) -> None:
        if self.free is not None:
            self.free()

    def _write(self) -> None:
        if self._page is not None:
            progress.write(self._page, self._progress)

    def _later(self, seconds: float) -> None:
        """Without a broker, and looking for one after so long."""
        self.close()
        self._again_ns = time.monotonic_ns() + 1e9 * seconds

    def _give_up(self, error: OSError) -> None:
        self._later(_AGAIN_S)
        self._say(f"no broker at {self._path} ({error.strerror or error}): this job runs as if the GPU were its own")
