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

__all__ = ["LONGEST_PATH", "make", "make_for_sockets", "remove_abandoned"]

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


def remove_abandoned(prefix: str) -> None:
    """Remove directories of this user that :func:`make` has made for processes of this machine which are gone."""
    for directory in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
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
