"""At most one controller acts on one scope: two would undo each other's work round by round."""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
from pathlib import Path

from slurm_hadar.errors import ControllerRunning, StoreError

__all__ = ["ScopeLock"]


class ScopeLock:
    """Held while a controller runs; ends with the process, however it ends.

    A file lock in the state directory guards against a second controller with the same memory; a name in the kernel's
    abstract socket space against one on this host with another memory but the same cluster and users. Raises
    ControllerRunning naming the process, StoreError if the directory cannot be used.
    """

    def __init__(self, state_dir: Path, cluster: str, users: tuple[str, ...]) -> None:
        self.path = state_dir / "controller.lock"
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
        scope = f"{cluster}|{','.join(sorted(users))}"
        name = "\0slurm-hadar-" + hashlib.sha256(scope.encode()).hexdigest()[:24]
        try:
            self._socket.bind(name)
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
