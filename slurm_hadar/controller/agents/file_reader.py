"""The process that touches users' files for the controller: run by its path, with the standard library alone.

A directory on a dead mount holds up whoever opens it, for ever and beyond all signals. So the controller leaves that to
this process, which it can give up (:mod:`slurm_hadar.controller.agents.user_files`). One JSON object per line, in and
out::

    {"tail": [folder, [name, ...], user, offset, most]}     {"text": "...", "begin": n, "size": n}
    {"whole": [path, user, most]}                           {"text": "..."}
                                                            {"fault": "why not", "absent": true or false}

A line of several requests (a list) is answered by one line for each, as soon as it is read. Bytes stand as Latin-1.
"""

from __future__ import annotations

import functools
import json
import os
import pwd
import signal
import stat
import sys
from collections.abc import Sequence
from typing import Any

__all__ = ["RefusedError", "answer", "tail", "whole"]

_PLAIN = os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK  # a pipe must not hold the reader up


class RefusedError(Exception):
    """Why a file is not read."""


def tail(folder: str, names: Sequence[str], user: str, offset: int, most: int) -> dict[str, Any]:
    """What a growing file has from ``offset`` on: of more than ``most`` bytes the last, of one that has shrunk all.

    The file is ``names`` below ``folder``. No link is followed on the way from there, and it must be a regular file of
    ``user`` or of root: a user must not lead a reader that may read more than they to what is not theirs. Raises
    RefusedError and OSError.
    """
    descriptor = _below(folder, names)
    try:
        status = _regular(descriptor)
        if status.st_uid != 0 and not _owned(status, user):
            raise RefusedError(f"belongs to user {status.st_uid}, not to {user}")
        begin = max(offset if offset <= status.st_size else 0, status.st_size - most)
        return {"text": os.pread(descriptor, most, begin).decode("latin-1"), "begin": begin, "size": status.st_size}
    finally:
        os.close(descriptor)


def whole(path: str, user: str, most: int) -> dict[str, Any]:
    """The file, at most ``most`` bytes of it. Links are followed, but it must be a regular file that belongs to
    ``user`` or that all may read. Raises RefusedError and OSError."""
    descriptor = os.open(path, _PLAIN)
    try:
        status = _regular(descriptor)
        if not status.st_mode & stat.S_IROTH and not _owned(status, user):
            raise RefusedError(f"neither belongs to {user} nor is readable by all")
        return {"text": os.pread(descriptor, most, 0).decode("latin-1")}
    finally:
        os.close(descriptor)


def _below(folder: str, names: Sequence[str]) -> int:
    """Open step by step, since what was looked at before may be another thing at the next step."""
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names[:-1]:
            below = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(place)
            place = below
        return os.open(names[-1], _PLAIN | os.O_NOFOLLOW, dir_fd=place)
    finally:
        os.close(place)


def _regular(descriptor: int) -> os.stat_result:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise RefusedError("is not a regular file")
    return status


@functools.lru_cache(maxsize=4096)  # of those that there are: who is missing may come
def _uid(user: str) -> int:
    """The user's number; Slurm shows the number of who has no name. Raises KeyError if there is no such user."""
    return int(user) if user.isascii() and user.isdigit() else pwd.getpwnam(user).pw_uid


def _owned(status: os.stat_result, user: str) -> bool:
    try:
        return status.st_uid == _uid(user)
    except (KeyError, ValueError):
        return False


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """What is answered to one request; never raises."""
    try:
        return tail(*request["tail"]) if "tail" in request else whole(*request["whole"])
    except RefusedError as why:
        return {"fault": str(why), "absent": False}
    except FileNotFoundError:
        return {"fault": "there is no such file", "absent": True}
    except (OSError, ValueError, TypeError, LookupError, OverflowError) as error:
        fault = getattr(error, "strerror", None) or error
        return {"fault": f"cannot be read: {fault}", "absent": isinstance(error, PermissionError)}


def main() -> None:
    """Answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: who asks decides when this ends
    print(flush=True)  # it has begun
    for line in sys.stdin:
        for request in json.loads(line):
            print(json.dumps(answer(request)), flush=True)


if __name__ == "__main__":
    main()
