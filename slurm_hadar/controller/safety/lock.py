"""At most one controller acts on one scope: two would undo each other's work round by round."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from pathlib import Path

from slurm_hadar.errors import ControllerRunning, StoreError

__all__ = ["ScopeLock", "holder"]

LOCK_FILE = "controller.lock"


class ScopeLock:
    """Held while a controller runs; ends with the process, however it ends.

    A file lock in the state directory guards against a second controller with the same memory; a name in the kernel's
    abstract socket space against one on this host with another memory but the same cluster and users. Raises
    ControllerRunning naming the process, StoreError if the directory cannot be used.
    """

    def __init__(self, state_dir: Path, cluster: str, users: tuple[str, ...]) -> None:
        self.path = state_dir / LOCK_FILE
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+")
        except OSError as error:
            raise StoreError(f"state directory {state_dir} cannot be used: {error.strerror}") from None
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            self._take(cluster, users)
        except ControllerRunning:
            self.release()
            raise

    def _take(self, cluster: str, users: tuple[str, ...]) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            raise ControllerRunning(
                f"another controller (process {holder}) already uses {self.path.parent}; stop it first"
            ) from None
        try:
            self._socket.bind("\0" + _scope_name(cluster, users))
        except OSError:
            whose = f"users {', '.join(users)}" if users else "all users"
            raise ControllerRunning(
                f"another controller on this host already steers {whose} of cluster {cluster.split()[0]}; stop it first"
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def release(self) -> None:
        self._socket.close()
        self._file.close()


def _scope_name(cluster: str, users: tuple[str, ...]) -> str:
    scope = f"{cluster}|{','.join(sorted(users))}"
    return "slurm-hadar-" + hashlib.sha256(scope.encode()).hexdigest()[:24]


def holder(state_dir: Path, cluster: str, users: tuple[str, ...]) -> str:
    """Who would make a :class:`ScopeLock` of these arguments refuse, in words; empty if nobody.

    Takes no lock, not even for a moment, so that a controller that starts meanwhile is not refused. Raises StoreError
    if the kernel's tables of locks and sockets cannot be read.
    """
    try:
        locks, sockets = Path("/proc/locks").read_text(), Path("/proc/net/unix").read_text(errors="replace")
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
    if any(line.endswith("@" + _scope_name(cluster, users)) for line in sockets.splitlines()):
        return "a process of this host with another state directory"
    return ""
