"""At most one controller acts on one scope: two would undo each other's work round by round."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
import struct
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from slurm_hadar.errors import ControllerRunning, StoreError
from slurm_hadar.slurm.survey import name_of

__all__ = ["ScopeLock", "holder"]

LOCK_FILE = "controller.lock"
_SOCKETS = Path("/proc/self/net/unix")  # also seen by a service that sees no more of /proc than processes
_EVERYBODY = ""
_CREDENTIALS = struct.Struct("3i")  # struct ucred: process, user, group
_LISTENS = "00010000"  # the kernel's __SO_ACCEPTCON
_WAITING = 4096  # connections that the kernel keeps for a socket until they are let go


class _Claim(NamedTuple):
    """Who says on this host that a user's jobs are steered, or everybody's: an account and a process of it, 0 where it
    is of another namespace."""

    user: str
    uid: int
    pid: int

    def __str__(self) -> str:
        whose = "" if self.uid == os.geteuid() else f" of user {name_of(self.uid)}"
        return f"process {self.pid}{whose}" if self.pid else f"a process{whose}"


class ScopeLock:
    """Held while a controller runs; ends with the process, however it ends.

    A file lock in the state directory guards against a second controller with the same memory; names in the kernel's
    abstract socket space, one for each user or one for everybody, against one on this host with another memory but
    jobs of the same cluster and users. One for everybody is not refused for those of some, which are to stand by
    (:meth:`overruled`). A user must not be able to shut out the administrator's, and anybody may take any name: of whom
    one is, the kernel tells, and only those count who may change the jobs (``may_steer``, by uid; root's and this
    user's always do). The others are in ``ignored``, in words. Raises ControllerRunning naming the process, StoreError
    if the directory cannot be used.
    """

    def __init__(
        self, state_dir: Path, cluster: str, users: tuple[str, ...], may_steer: Callable[[int], bool] | None = None
    ) -> None:
        self.path = state_dir / LOCK_FILE
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+")
        except OSError as error:
            raise StoreError(f"state directory {state_dir} cannot be used: {error.strerror}") from None
        self.ignored: list[str] = []
        self._sockets: list[socket.socket] = []
        self._cluster, self._users = cluster, users
        try:
            self._take(may_steer or (lambda _uid: False))
        except ControllerRunning:
            self.release()
            raise
        except OSError as error:  # a full disk, or a file system without locks
            self.release()
            raise StoreError(f"{self.path} cannot be locked and written: {error.strerror}") from None

    def overruled(self) -> str:
        """Who of root or this user steers everybody's jobs where this is a controller for some users, and who of root
        does where it is another user's, in words; empty if nobody does."""
        for one in self._sockets:
            _let_go(one)
        over = {0, os.geteuid()} if self._users else {0} - {os.geteuid()}
        with contextlib.suppress(OSError):
            return next((str(claim) for claim in self._others((_EVERYBODY,), over)), "")
        return ""

    def _take(self, may_steer: Callable[[int], bool]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            raise ControllerRunning(
                f"another controller (process {holder}) already uses {self.path.parent}; stop it first"
            ) from None
        mine = dict.fromkeys(self._users or (_EVERYBODY,))
        free = [self._bind(_name(self._cluster, os.geteuid(), user)) for user in mine]
        with contextlib.suppress(OSError):
            others = list(self._others(mine))
            counts = {uid: uid in (0, os.geteuid()) or may_steer(uid) for uid in {claim.uid for claim in others}}
            if held := [claim for claim in others if counts[claim.uid]]:
                raise ControllerRunning(_refusal(self._cluster, held))
            self.ignored += [
                f"{claim} claims to steer {_whose([claim])}, too; it may change that user's own jobs only"
                for claim in others
            ]
        if not all(free):
            self.ignored.append(
                "another account has taken this one's name, so a second controller would not be noticed"
            )
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def _bind(self, name: str) -> bool:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._sockets.append(one)
        try:
            one.bind("\0" + name)
            one.listen(_WAITING)
        except OSError:
            return False
        return True

    def _others(self, users: Collection[str], uids: Container[int] | None = None) -> Iterator[_Claim]:
        """The claims of other controllers to these users, of these accounts. Raises OSError."""
        mine = {str(os.fstat(one.fileno()).st_ino) for one in self._sockets}
        return _claims(self._cluster, users, uids, mine)

    def release(self) -> None:
        """Let others steer these users' jobs."""
        for one in self._sockets:
            one.close()
        with contextlib.suppress(OSError):  # of what could not be written; it is closed all the same
            self._file.close()


def _mark(cluster: str) -> str:
    return f"slurm-hadar-{hashlib.sha256(cluster.encode()).hexdigest()[:20]}-"


def _name(cluster: str, uid: int, user: str) -> str:
    """The name of a socket by which an account says that this user's jobs are steered; everybody's for "". The kernel
    takes 107 bytes."""
    return f"{_mark(cluster)}{uid}-{_short(user)}"


def _short(user: str) -> str:
    return quote(user, safe="")[:60]


def _claims(
    cluster: str, users: Collection[str], uids: Container[int] | None = None, but: Container[str] = ()
) -> Iterator[_Claim]:
    """What is claimed of these users of this cluster, by these accounts (None = by any), but for sockets with these
    inodes. Raises OSError."""
    mark, wanted = _mark(cluster), {_short(user): user for user in users}
    # 0000000000000000: 00000002 00000000 00010000 0001 01 4711 @name
    lines = (line.split() for line in _SOCKETS.read_text(errors="replace").splitlines())
    for words in lines:
        if len(words) != 8 or words[3] != _LISTENS or words[6] in but:
            continue
        name = words[7].removeprefix("@")
        uid, _, user = name.removeprefix(mark).partition("-")
        if not name.startswith(mark) or not uid.isdecimal() or user not in wanted:
            continue
        if (uids is None or int(uid) in uids) and (pid := _owned(name, int(uid), words[6])) is not None:
            yield _Claim(wanted[user], int(uid), pid)


def _owned(name: str, uid: int, inode: str) -> int | None:
    """The process that listens at a name, if that is one of this account: anybody may take any name, and may keep
    others from connecting to one."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as one:
        try:
            one.connect("\0" + name)
        except BlockingIOError:
            return _holder(uid, inode)
        pid, real, _ = _CREDENTIALS.unpack(one.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
        return int(pid) if real == uid else None
    return None


def _holder(uid: int, inode: str) -> int | None:
    """The process of this account that has this socket open, of those whose files may be seen: root sees all, others
    their own."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            for file in folder.iterdir() if folder.parent.stat().st_uid == uid else ():
                with contextlib.suppress(OSError):  # closed meanwhile
                    if file.readlink() == Path(f"socket:[{inode}]"):
                        return int(folder.parent.name)
    return None


def _let_go(listening: socket.socket) -> None:
    """Of those that have asked whose it is."""
    with contextlib.suppress(OSError):
        for _ in range(_WAITING):
            listening.accept()[0].close()


def _whose(claims: Sequence[_Claim]) -> str:
    users = sorted(claim.user for claim in claims)
    return f"users {', '.join(users)}" if all(users) else "all users"


def _refusal(cluster: str, held: Sequence[_Claim]) -> str:
    return (
        f"another controller on this host already steers {_whose(held)} of cluster {cluster.split()[0]} ({held[0]}); "
        "stop it first"
    )


def holder(state_dir: Path, cluster: str, users: tuple[str, ...]) -> str:
    """Who has this state directory, or steers one of these users by name, or everybody where there are none, in words;
    empty if nobody.

    Takes no lock, not even for a moment, so that a controller that starts meanwhile is not refused. Raises StoreError
    if the kernel's tables of locks and sockets cannot be read.
    """
    try:
        locks, claims = Path("/proc/locks").read_text(), list(_claims(cluster, users or (_EVERYBODY,)))
        path = state_dir / LOCK_FILE
        file = path.stat() if path.exists() else None
    except OSError as error:
        raise StoreError(f"{error.filename} cannot be read: {error.strerror}") from None
    device = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}" if file else ""
    for line in locks.splitlines():
        # 1: FLOCK  ADVISORY  WRITE 4711 08:01:123456 0 EOF
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == device:
            return f"process {words[4]} with the state directory {state_dir}"
    return f"{claims[0]} with another state directory" if claims else ""
