"""The audit log: what was done to Slurm, by which command, why, and what came of it. One JSON object per line.

``audit.jsonl`` in the state directory is only ever appended to, and synced to the disk once a round. It may be rotated
here, by size, or by logrotate: a file that was moved away is noticed and a new one begun. It serves people; the
controller never reads it. A disk that is full, or a directory that is gone, is said loudly and stops nothing.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from slurm_hadar.config import AuditSection

__all__ = ["AUDIT", "AuditLog"]

log = logging.getLogger(__name__)
AUDIT = "audit.jsonl"
_REMIND_S = 3600.0


class AuditLog:
    """Appends to ``directory``'s audit log; several processes may.

    ``failures`` counts the times that something could not be written, ``fault`` says why the last did not go well;
    empty = all is well. What could not be written is lost, and the next line that can be says how many lines were.
    """

    def __init__(self, directory: Path, settings: AuditSection) -> None:
        self.path = directory / AUDIT
        self.settings = settings
        self.failures = 0
        self.fault = ""
        self._lost = 0
        self._said = 0.0
        self._descriptor: int | None = None

    def write(self, entries: Iterable[Mapping[str, Any]], sync: bool = True) -> None:
        """Append ``entries``, each with the time; with ``sync`` it is on the disk when this returns."""
        if not self.settings.enabled:
            return
        now = dt.datetime.fromtimestamp(time.time(), dt.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        lines = [json.dumps({"time": now, **entry}, default=str, separators=(",", ":")) for entry in entries]
        if not lines:
            return
        try:
            self._append(now, lines, sync)
        except OSError as error:
            self._lost += len(lines)
            self._complain(error)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _append(self, now: str, lines: list[str], sync: bool) -> None:
        descriptor = self._file()
        size = os.fstat(descriptor).st_size
        if self._lost:
            lines = [json.dumps({"time": now, "event": "gap", "lines_lost": self._lost, "why": self.fault}), *lines]
        data = memoryview(("\n".join(lines) + "\n").encode())
        try:
            while data:
                data = data[os.write(descriptor, data) :]
            if sync:
                os.fsync(descriptor)
        except OSError:
            with contextlib.suppress(OSError):  # half a line would spoil the next one
                os.ftruncate(descriptor, size)
            raise
        if self.fault:
            log.warning("the audit log %s is written again; %d lines are missing", self.path, self._lost)
        self.fault, self._lost = "", 0

    def _file(self) -> int:
        """The open file: another one where the path is not what it was, or where the file has grown too large."""
        if self._descriptor is not None and not self._is_current(self._descriptor):
            self.close()
        if self._descriptor is None:
            self._open()
        assert self._descriptor is not None
        if 0 < self.settings.max_bytes <= os.fstat(self._descriptor).st_size:
            self._rotate()
        return self._descriptor

    def _open(self) -> None:
        # not for everybody: it names users, jobs and why they were moved
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)

    def _is_current(self, descriptor: int) -> bool:
        try:
            there, open_ = self.path.stat(), os.fstat(descriptor)
        except OSError:
            return False
        return (there.st_dev, there.st_ino) == (open_.st_dev, open_.st_ino)

    def _rotate(self) -> None:
        """``audit.jsonl`` becomes ``audit.jsonl.1``, that one ``.2`` and so on; the oldest goes."""
        self.close()
        names = [self.path, *(self.path.with_name(f"{AUDIT}.{n}") for n in range(1, self.settings.keep + 1))]
        for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
            with contextlib.suppress(FileNotFoundError):
                newer.replace(older)
        self._open()

    def _complain(self, error: OSError) -> None:
        self.failures += 1
        self.close()
        first = not self.fault
        self.fault = f"{self.path}: {error.strerror or error}"
        if first or time.monotonic() - self._said > _REMIND_S:
            self._said = time.monotonic()
            log.error("AUDIT LOG NOT WRITTEN: %s; scheduling goes on without it", self.fault, extra={"event": "audit"})
