"""Who has joined a broker, in a file beside its socket, for the broker that comes after it.

A broker may be killed at any moment, and its sessions notice at the end of their iterations: until then nobody but this
file knows whose memory is still there. A process is known by its number and by when it began, so that another process
of that number is not taken for it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_hadar.procstat import stat_of
from slurm_hadar.sharing.lanes import Demand

__all__ = ["RETURN_S", "Entry", "Former", "present", "remove", "write"]

#: For how long sessions wait for another broker, and that one for them before it lets anybody new in.
RETURN_S = 5.0


class Entry(NamedTuple):
    """A session: its process, what it calls itself (``mark``: no other session of the process has it; "" of an older
    release), its user, its name for people, its memory in bytes, and whether it was let in."""

    pid: int
    began: int
    mark: str
    uid: int
    label: str
    persistent_bytes: int
    ephemeral_bytes: int
    admitted: bool

    @property
    def demand(self) -> Demand:
        """Its memory."""
        return Demand(self.persistent_bytes, self.ephemeral_bytes)


class Former(NamedTuple):
    """A session of the broker before; ``process`` is a pidfd."""

    name: str
    entry: Entry
    process: int


def present(path: Path) -> list[Former]:
    """The sessions of the broker before whose processes are there, in the order in which they came."""
    found = []
    for number, entry in enumerate(_read(path)):
        try:
            process = os.pidfd_open(entry.pid)
        except OSError:  # it has ended
            continue
        if _is_same(entry):
            found.append(Former(f"before {number}", entry, process))
        else:
            os.close(process)
    return found


def _is_same(entry: Entry) -> bool:
    """Whether the process is the one that had joined, and not another of its number."""
    try:
        return stat_of(entry.pid).began == entry.began
    except OSError:
        return False


def _read(path: Path) -> list[Entry]:
    try:
        file = os.open(_beside(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return []
    with os.fdopen(file, encoding="utf-8") as lines:
        if os.fstat(file).st_uid != os.geteuid():
            return []
        try:
            return [Entry(*values) for values in json.load(lines)]
        except (TypeError, ValueError):  # another release's
            return []


def write(path: Path, entries: Sequence[Entry]) -> None:
    """As a whole or not at all. Raises OSError."""
    new = Path(f"{_beside(path)}.new")
    file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(file, "w", encoding="utf-8") as lines:
        json.dump(entries, lines)
    new.replace(_beside(path))


def remove(path: Path) -> None:
    """Nobody is to come back to this broker."""
    _beside(path).unlink(missing_ok=True)


def _beside(path: Path) -> Path:
    return Path(f"{path}.sessions")
