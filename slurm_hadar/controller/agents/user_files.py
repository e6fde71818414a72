"""Users' files, read without ever waiting for them: by a process beside (:mod:`.file_reader`) that can be given up."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm_hadar.controller.agents import file_reader

__all__ = ["Found", "Tail", "UserFiles"]

PATIENCE_S = 2.0  # a directory that takes longer to answer is one on a dead mount
_STARTS_WITHIN_S = 20.0  # of Python itself on a busy machine
_AGAIN_S, _AGAIN_MOST_S = 60.0, 3600.0  # a directory that did not answer is left alone for so long, doubled each time
_DEAD_FOLDERS = 3  # of one user, after which nothing else of theirs is tried
_MISSES, _MISSES_IN_S = 3, 30.0  # more are not waited for: no number of users may hold up a round
_STUCK_READERS = 8  # given up and not gone, as their mounts are dead: no more are started
_READER = Path(file_reader.__file__)


@dataclass(frozen=True, slots=True)
class Tail:
    """The end of a growing file of ``user``: ``names`` below ``folder``, from ``offset`` on and at most ``most`` bytes;
    no links below ``folder`` are followed."""

    folder: str
    names: tuple[str, ...]
    user: str
    offset: int
    most: int


@dataclass(frozen=True, slots=True)
class Found:
    """What was read. ``fault`` says why nothing was; ``absent`` that this is no fault of the file's owner. ``begin`` is
    where ``data`` stands in the file."""

    data: bytes = b""
    begin: int = 0
    fault: str = ""
    absent: bool = False


class UserFiles:
    """Reads through one process, which is started when it is needed and replaced when it does not answer in time.

    A directory that was not answered for is left alone for growing times; others are read meanwhile. ``misses`` counts
    the times that one did not answer. ``reader`` is the program to run.
    """

    def __init__(self, patience_s: float = PATIENCE_S, reader: Path = _READER) -> None:
        self._patience_s = patience_s
        self._argv = [sys.executable, "-I", "-S", str(reader)]
        self._process: subprocess.Popen[bytes] | None = None
        self._given_up: list[subprocess.Popen[bytes]] = []
        self._rest = b""
        self._finalizer: weakref.finalize[..., Any] | None = None
        self._dead = _DeadFolders()
        self.misses = 0

    def tails(self, wanted: Sequence[Tail]) -> list[Found]:
        """Read the ends of these files, in one go. Never raises."""
        asked = [
            _Request(one.folder, one.user, {"tail": [one.folder, one.names, one.user, one.offset, one.most]})
            for one in wanted
        ]
        return self._read(asked)

    def whole(self, path: Path, user: str, most: int) -> Found:
        """Read a file that belongs to ``user`` or that all may read, at most ``most`` bytes. Never raises."""
        return self._read([_Request(str(path.parent), user, {"whole": [str(path), user, most]})])[0]

    def close(self) -> None:
        """End the process. It also ends with this one, and when nobody refers to this object any more."""
        if self._finalizer is not None:
            self._finalizer()
        self._process = None

    def _read(self, requests: Sequence[_Request]) -> list[Found]:
        found: dict[int, Found] = {}
        while len(found) < len(requests):
            ask: list[int] = []
            for i, request in enumerate(requests):
                if i in found:
                    continue
                if fault := self._dead.fault(request.folder, request.user):
                    found[i] = Found(fault=fault)
                else:
                    ask.append(i)
            if not ask:
                break
            if fault := self._start():
                found |= {i: Found(fault=fault) for i in ask}
                break
            for i, answer in zip(ask, self._answers([requests[i] for i in ask]), strict=False):
                found[i] = answer
            missed = next((requests[i] for i in ask if i not in found), None)
            if missed is not None:
                self.misses += 1
                self._dead.missed(missed.folder, missed.user)
                self._give_up()
        return [found[i] for i in range(len(requests))]

    def _answers(self, requests: Sequence[_Request]) -> Iterator[Found]:
        """Those that come in time; the first that does not is the last one waited for."""
        if not self._send((json.dumps([r.content for r in requests]) + "\n").encode()):
            return
        for request in requests:
            line = self._line(self._patience_s)
            if line is None:
                return
            self._dead.answered(request.folder)
            yield _found(json.loads(line))

    def _start(self) -> str:
        """See to it that there is a process; why there is none, if so."""
        if self._process is not None and self._process.poll() is None:
            return ""
        self._give_up()
        self._given_up = [p for p in self._given_up if p.poll() is None]
        if len(self._given_up) >= _STUCK_READERS:
            return f"{len(self._given_up)} processes hang on dead mounts; no other is sent after them"
        try:
            process = subprocess.Popen(
                self._argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            return f"no process to read it can be started: {error.strerror}"
        assert process.stdin is not None and process.stdout is not None
        os.set_blocking(process.stdin.fileno(), False)
        os.set_blocking(process.stdout.fileno(), False)
        self._process, self._rest = process, b""
        self._finalizer = weakref.finalize(self, _end, process)
        if self._line(_STARTS_WITHIN_S) is None:
            self._give_up()
            return "the process to read it did not start"
        return ""

    def _give_up(self) -> None:
        """Go on without the process. It is not waited for: one that hangs on a dead mount cannot even be killed."""
        process, self._process = self._process, None
        if process is None or self._finalizer is None:
            return
        self._finalizer.detach()
        process.kill()
        _close_pipes(process)
        self._given_up.append(process)

    def _send(self, data: bytes) -> bool:
        """Whether all of it was taken in time."""
        assert self._process is not None and self._process.stdin is not None
        descriptor, until = self._process.stdin.fileno(), time.monotonic() + self._patience_s
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        try:
            while data:
                if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                    return False
                data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]
        except OSError:  # it has ended
            return False
        return True

    def _line(self, patience_s: float) -> bytes | None:
        """Its next line; None if none comes in time."""
        assert self._process is not None and self._process.stdout is not None
        descriptor, until = self._process.stdout.fileno(), time.monotonic() + patience_s
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        parts = [self._rest]
        while b"\n" not in parts[-1]:
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            parts.append(os.read(descriptor, 1 << 16))
            if not parts[-1]:
                return None
        line, _, self._rest = b"".join(parts).partition(b"\n")
        return line


@dataclass(frozen=True, slots=True)
class _Request:
    folder: str
    user: str
    content: dict[str, Any]


@dataclass(slots=True)
class _Dead:
    user: str
    until: float
    wait_s: float


@dataclass(slots=True)
class _DeadFolders:
    """Directories that did not answer, and until when (monotonic) each is left alone."""

    folders: dict[str, _Dead] = field(default_factory=dict)
    moments: list[float] = field(default_factory=list)

    def fault(self, folder: str, user: str) -> str:
        """Why this directory is not to be tried now; empty if it is."""
        now = time.monotonic()
        dead = self.folders.get(folder)
        if dead is not None and now < dead.until:
            return f"directory {folder} does not answer; it is tried again in {dead.until - now:.0f} s"
        if sum(1 for d in self.folders.values() if d.user == user and now < d.until) >= _DEAD_FOLDERS:
            return f"{_DEAD_FOLDERS} directories of user {user} do not answer; others of theirs are not tried either"
        if sum(1 for moment in self.moments if now - moment < _MISSES_IN_S) >= _MISSES:
            return "too many directories do not answer; it is tried later"
        return ""

    def missed(self, folder: str, user: str) -> None:
        now = time.monotonic()
        before = self.folders.get(folder)
        wait_s = _AGAIN_S if before is None else min(_AGAIN_MOST_S, 2 * before.wait_s)
        kept = {f: d for f, d in self.folders.items() if now < d.until + _AGAIN_MOST_S}
        self.folders = {**kept, folder: _Dead(user, now + wait_s, wait_s)}
        self.moments = [*self.moments[1 - _MISSES :], now]

    def answered(self, folder: str) -> None:
        self.folders.pop(folder, None)


def _found(answer: dict[str, Any]) -> Found:
    if "fault" in answer:
        return Found(fault=answer["fault"], absent=answer["absent"])
    return Found(answer["text"].encode("latin-1"), answer.get("begin", 0))


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):
            pipe.close()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    _close_pipes(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(1.0)
