"""At most one controller acts on one scope: two would undo each other's work round by round."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote, unquote

from slurm_hadar.errors import ControllerRunning, StoreError

__all__ = ["ScopeLock", "holder"]

LOCK_FILE = "controller.lock"
_SOCKETS = Path("/proc/self/net/unix")  # also seen by a service that sees no more of /proc than processes


class ScopeLock:
    """Held while a controller runs; ends with the process, however it ends.

    A file lock in the state directory guards against a second controller with the same memory; names in the kernel's
    abstract socket space, one for each user or one for everybody, against one on this host with another memory but
    jobs of the same cluster and users. One for everybody is not refused for those of some, which are to stand by
    (:meth:`overruled`): a user must not be able to shut out the administrator's. Raises ControllerRunning naming the
    process, StoreError if the directory cannot be used.
    """

    def __init__(self, state_dir: Path, cluster: str, users: tuple[str, ...]) -> None:
        self.path = state_dir / LOCK_FILE
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+")
        except OSError as error:
            raise StoreError(f"state directory {state_dir} cannot be used: {error.strerror}") from None
        self._sockets: list[socket.socket] = []
        self._cluster, self._users = cluster, users
        self._everybodys = "", ""  # the socket of who steers everybody's jobs, and that process in words
        try:
            self._take()
        except ControllerRunning:
            self.release()
            raise

    def overruled(self) -> str:
        """Who steers everybody's jobs where this is a controller for some users, in words; empty if nobody does. Only
        one of root or of this user counts: any user may start one for everybody, which then steers that user's jobs."""
        inode = ""
        with contextlib.suppress(OSError):
            bound = _bound() if self._users else {}
            if not bound.keys().isdisjoint(_owner(self._cluster, uid) for uid in (0, os.geteuid())):
                inode = bound.get(_name(self._cluster, ""), "")
        if inode != self._everybodys[0]:
            self._everybodys = inode, _process(inode) if inode else ""
        return self._everybodys[1]

    def _take(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            raise ControllerRunning(
                f"another controller (process {holder}) already uses {self.path.parent}; stop it first"
            ) from None
        taken = [user for user in dict.fromkeys(self._users) or ("",) if not self._bind(_name(self._cluster, user))]
        if taken:
            raise ControllerRunning(_refusal(self._cluster, taken))
        if not self._users:
            self._bind(_owner(self._cluster, os.geteuid()))
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def _bind(self, name: str) -> bool:
        one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sockets.append(one)
        try:
            one.bind("\0" + name)
        except OSError:
            return False
        return True

    def release(self) -> None:
        for one in self._sockets:
            one.close()
        self._file.close()


def _name(cluster: str, user: str) -> str:
    """The name of a socket that says that this user's jobs are steered; everybody's for "". The kernel takes 107
    bytes."""
    return f"slurm-hadar-{hashlib.sha256(cluster.encode()).hexdigest()[:24]}-{quote(user, safe='')[:64]}"


def _owner(cluster: str, uid: int) -> str:
    """The name of a socket that says that who steers everybody's jobs is this user."""
    return f"slurm-hadar-by-{hashlib.sha256(cluster.encode()).hexdigest()[:24]}-{uid}"


def _bound() -> dict[str, str]:
    """The names in the abstract socket space, with the inodes of their sockets. Raises OSError."""
    # 0000000000000000: 00000002 00000000 00000000 0002 01 4711 @name
    lines = (line.split() for line in _SOCKETS.read_text(errors="replace").splitlines())
    return {words[7][1:]: words[6] for words in lines if len(words) == 8 and words[7].startswith("@")}


def _steered(cluster: str) -> dict[str, str]:
    """Whose jobs controllers of this host steer, "" for everybody's, with the inode of the socket that says so. Raises
    OSError."""
    mark = _name(cluster, "")
    return {unquote(name.removeprefix(mark)): inode for name, inode in _bound().items() if name.startswith(mark)}


def _refusal(cluster: str, taken: Sequence[str]) -> str:
    whose, inode = f"users {', '.join(taken)}" if taken[0] else "all users", ""
    with contextlib.suppress(OSError):
        inode = _steered(cluster).get(taken[0], "")
    return (
        f"another controller on this host already steers {whose} of cluster {cluster.split()[0]} ({_process(inode)}); "
        "stop it first"
    )


def _process(inode: str) -> str:
    """Whose socket this is, as far as this process may see others'."""
    for opened in Path("/proc").glob("[0-9]*/fd"):
        if _is_among(f"socket:[{inode}]", opened):
            return f"process {opened.parent.name}"
    return "a process of another account"


def _is_among(link: str, opened: Path) -> bool:
    """Whether a process has this file open, as far as it may be looked at and goes on meanwhile."""
    with contextlib.suppress(OSError):
        for descriptor in opened.iterdir():
            with contextlib.suppress(OSError):
                if str(descriptor.readlink()) == link:
                    return True
    return False


def holder(state_dir: Path, cluster: str, users: tuple[str, ...]) -> str:
    """Who has this state directory, or steers one of these users by name, or everybody where there are none, in words;
    empty if nobody.

    Takes no lock, not even for a moment, so that a controller that starts meanwhile is not refused. Raises StoreError
    if the kernel's tables of locks and sockets cannot be read.
    """
    try:
        locks, steered = Path("/proc/locks").read_text(), _steered(cluster)
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
    if not steered.keys().isdisjoint(users or ("",)):
        return "a process of this host with another state directory"
    return ""
