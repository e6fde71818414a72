"""Trainings: one at a time, and what became of the last one, whoever began it and however it ended."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from slurm_hadar.errors import PredictionError

__all__ = ["Attempt", "Attempts"]


@dataclass(frozen=True, slots=True)
class Attempt:
    """One training. Times are epoch seconds; ``ended`` is None while it goes on, and for ever if it was killed.

    ``version`` is what it stored, "" if nothing; ``predictor`` by what that version answers; ``detail`` why it failed,
    or why a forest was refused. ``notes`` are lines about the history that somebody should read once.
    """

    began: float
    ended: float | None = None
    version: str = ""
    predictor: str = ""
    detail: str = ""
    notes: tuple[str, ...] = ()

    @property
    def stored(self) -> bool:
        """Whether it has stored a version."""
        return bool(self.version)


class Attempts:
    """The last training into one folder, in ``training.json``, and the lock that the one which goes on holds.

    The lock is freed by the kernel when its holder ends, in whatever way.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file, self._lock = folder / "training.json", folder / "training.lock"

    def last(self) -> Attempt | None:
        """The last one; None if there was none, or its note cannot be read: that costs one training more."""
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            known = {f.name: found[f.name] for f in fields(Attempt) if f.name in found}
            attempt = Attempt(**{**known, "notes": tuple(known.get("notes", ()))})
            return attempt if isinstance(attempt.began, int | float) else None
        except (OSError, ValueError, TypeError):
            return None

    def save(self, attempt: Attempt) -> None:
        """Make this the last one. Raises PredictionError if it cannot be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            temporary = self._file.with_name(f".{self._file.name}.{os.getpid()}")
            temporary.write_text(json.dumps(asdict(attempt)) + "\n", encoding="utf-8")
            temporary.replace(self._file)
        except OSError as error:
            raise PredictionError(f"{self._folder}: cannot be written: {error.strerror}") from None

    def going_on(self) -> bool:
        """Whether a training holds the lock now."""
        try:
            with self._lock.open("rb") as stream:
                fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the lock. Raises PredictionError if another training does, or the folder cannot be written."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            stream = self._lock.open("ab")
        except OSError as error:
            raise PredictionError(f"{self._folder}: cannot be written: {error.strerror}") from None
        with stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise PredictionError(f"{self._folder}: another training goes on; try again when it is over") from None
            yield
