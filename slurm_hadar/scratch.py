"""Temporary directories of processes that may be killed before they remove them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path

from slurm_hadar.errors import ConfigError

__all__ = ["LONGEST_PATH", "join", "make", "make_for_sockets", "remove_abandoned"]

LONGEST_PATH = 107  # of a Unix socket's, unix(7)
_LOCK = "alive"
_held: list[int] = []  # until this process ends, and those that it has forked


def make(prefix: str) -> Path:
    """A new directory, named ``prefix`` and more, for this user only and known as in use while this process lives.
    Raises OSError where there is no room for one."""
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    with contextlib.suppress(OSError):  # one without a lock stays where its process is killed
        lock, file = tempfile.mkstemp(dir=directory)
        _held.append(lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        Path(file).rename(directory / _LOCK)  # never seen without its lock
    return directory


def make_for_sockets(prefix: str, names: Iterable[str]) -> Path:
    """As :func:`make`, for Unix sockets of these names. Raises ConfigError too, where their paths would be too long."""
    directory = make(prefix)
    if any(len(os.fsencode(directory / name)) > LONGEST_PATH for name in names):
        shutil.rmtree(directory, ignore_errors=True)
        raise ConfigError(f"{directory} is too long for a socket's path: set TMPDIR to a shorter one")
    return directory


def join(directory: Path) -> None:
    """A directory that several processes have together, made by whoever comes first, for this user only and known as in
    use while one of them lives. Raises OSError."""
    while True:
        directory.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # it was just removed, as one that nobody had any more
            lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_SH)
            if os.fstat(lock).st_nlink:
                _held.append(lock)
                return
            os.close(lock)


def remove_abandoned(prefix: str) -> None:
    """Remove directories of this user that :func:`make` and :func:`join` have made for processes of this machine which
    are gone. ``prefix``: of their names, or of their paths where they are not among the temporary ones."""
    pattern = Path(tempfile.gettempdir(), f"{prefix}*")
    for directory in pattern.parent.glob(pattern.name):
        with contextlib.suppress(OSError):
            _remove_if_abandoned(directory)


def _remove_if_abandoned(directory: Path) -> None:
    about = directory.lstat()
    if about.st_uid != os.geteuid() or not stat.S_ISDIR(about.st_mode):
        return
    lock = os.open(directory / _LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)
