"""The folder that a call and its results lie in: its owner's alone, since what is read from it is run.

A pickle may do anything when it is loaded. So the folder is 0700 and looked at from ``.hadar`` on (no links, no other
user's), and a file is read only if it is a plain one of this user that nobody else may write.
"""

from __future__ import annotations

import os
import pickle
import secrets
import stat
from pathlib import Path
from typing import Any

from slurm_hadar.errors import HadarError
from slurm_hadar.runtime.launch import own

__all__ = ["CALL", "make_folder", "read_file", "write_file"]

CALL = "call.pickle"


def make_folder(base: Path) -> Path:
    """A new folder below ``base``, which all nodes of the job must see. Raises CheckpointError."""
    folder, _ = own.place(base, f"call-{secrets.token_hex(8)}")
    own.make(folder)
    return folder


def write_file(folder: Path, name: str, content: bytes) -> None:
    """Whole or not at all: what reads it meanwhile sees none, or the one before. Raises OSError."""
    fresh = folder / f".{name}.{secrets.token_hex(8)}"
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.rename(folder / name)
    except OSError:
        fresh.unlink(missing_ok=True)  # part of a result may be what fills the disk
        raise


def read_file(folder: Path, name: str) -> Any:
    """What was pickled there. Raises FileNotFoundError, HadarError if it is not this user's alone, and whatever
    unpickling raises."""
    if (fault := own.fault(folder)) is not None:
        raise HadarError(f"{fault}: nothing is read from it, since a pickle may run code")
    descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise HadarError(
                f"{folder / name} is not a file of yours alone: it is not read, since a pickle may run code"
            )
        return pickle.load(file)
