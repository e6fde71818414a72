"""The page that a session shares with its broker: how far it is, and a lock that it holds within an iteration.

A turn that nobody else asks for stays with its holder, and costs it no message. Who else could tell the broker whether
it may take that turn away? The kernel: a session holds the lock (flock(2)) while it computes. Where the broker gets it,
the session is between two iterations, and can begin none until the broker has let go. The broker makes the file, in
memory and of one size, and sends it with the word that lets the session in.

That its turn is recalled a session reads there, too: at the end of an iteration, whose data has put all else out of the
CPU's caches, to ask the kernel for the line that says so takes longer than to give the turn back.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct

from slurm_hadar.sharing.broker.messages import Progress

__all__ = ["is_recalled", "locked", "made", "mapped", "read", "recall", "unlocked", "write"]

_FIELDS = struct.Struct("8q")
_RECALLED = _FIELDS.size  # a byte, the broker's
_SIZE = _FIELDS.size + 8


def made() -> tuple[int, int]:
    """A new file, opened twice, since a lock is that of an opening: ours and the session's."""
    ours = os.memfd_create("hadar-turn", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(ours, _SIZE)
    fcntl.fcntl(ours, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
    return ours, os.open(f"/proc/self/fd/{ours}", os.O_RDWR | os.O_CLOEXEC)


def mapped(file: int) -> mmap.mmap:
    """The file as a page. Raises ValueError for that of an older broker."""
    return mmap.mmap(file, _SIZE)


def read(page: mmap.mmap) -> Progress:
    """What the session has written last. It may be anything: it is the session's word."""
    return Progress(*_FIELDS.unpack_from(page))


def recall(page: mmap.mmap, recalled: bool) -> None:
    """Say that the session's turn is recalled, or that it has it: before the line that says the same."""
    page[_RECALLED] = recalled


def is_recalled(page: mmap.mmap) -> bool:
    """Whether the broker has said so."""
    return page[_RECALLED] != 0


def write(page: mmap.mmap, progress: Progress) -> None:
    """By the session; its numbers are whole, but need not be of one moment."""
    _FIELDS.pack_into(page, 0, *progress)


def locked(file: int) -> bool:
    """Take the lock; False where the other side has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def unlocked(file: int) -> None:
    """Let go of it, if it is ours."""
    fcntl.flock(file, fcntl.LOCK_UN)
