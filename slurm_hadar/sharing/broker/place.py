"""A broker's place: its socket, and the lock beside it that lets one broker serve there at a time."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

from slurm_hadar.errors import ChannelError
from slurm_hadar.procstat import stat_of
from slurm_hadar.sharing.broker.queries import place_of

__all__ = ["depose", "listening", "locked", "stands_still"]


def locked(path: Path) -> int:
    """One broker a socket: the lock of its neighbour file, which ends with the process. Raises ChannelError."""
    lock = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ChannelError(f"another broker serves {path}") from None
    if place_of(Path(f"{path}.lock")) != os.fstat(lock).st_ino:  # that of one that was deposed, and has ended
        os.close(lock)
        raise ChannelError(f"another broker comes to serve {path}")
    os.truncate(lock, 0)
    os.pwrite(lock, b"%d\n" % os.getpid(), 0)
    return lock


def stands_still(path: Path) -> bool:
    """Whether the process of the broker there is stopped, as all of a job are that Slurm suspends."""
    try:
        pid = int(Path(f"{path}.lock").read_text())
        return stat_of(pid).state in ("T", "t")
    except (OSError, ValueError):
        return False


def depose(path: Path) -> None:
    """Make room for another broker in the place of one that stands still. Its sessions notice, and it notices itself
    when it goes on."""
    lock = os.open(f"{path}.over", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stands_still(path):
            Path(f"{path}.lock").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
    finally:
        os.close(lock)


def listening(path: Path, mask: int) -> socket.socket:
    """The socket of a broker. The lock is ours: a socket that is there is one that a broker which died has left."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    before = os.umask(mask)
    try:
        listener.bind(str(path))
    finally:
        os.umask(before)
    listener.listen(64)
    return listener
