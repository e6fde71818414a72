"""What a tuner leaves on disk beside the study: who it is, how it stands, what ran where, each trial's log."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurm_hadar.errors import ConfigError, StoreError
from slurm_hadar.messages import CHECKPOINTS_DIR
from slurm_hadar.runtime.checkpoint.listing import newest_step

__all__ = [
    "RUNS", "Record", "folder_of", "is_done", "last_line", "read_events", "read_status", "request_stop", "saved_step",
    "sqlite_file",
]  # fmt: skip

EVENTS, STATUS, LOCK, STOP = "events.jsonl", "status.json", "lock", "stop"
TRIALS, IDENTITY = "trials", "study"
RUNS = "runs"  # in a trial's folder: how often it was started
_LOOK_S = 0.5
_TAIL_BYTES = 4096
_LONGEST_LINE = 200
_ODD = re.compile(r"[^A-Za-z0-9_.-]")


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite URL, None of any other. Raises ConfigError where it names none."""
    from sqlalchemy.engine import make_url  # by which names it may quote a name hangs on its version
    from sqlalchemy.exc import ArgumentError

    try:
        said = make_url(url)
    except (ArgumentError, ValueError) as error:  # the latter: a port that is no number
        raise ConfigError(f"{url}: {error}") from None
    if said.get_backend_name() != "sqlite":
        return None
    if said.database in (None, ":memory:"):
        raise ConfigError(
            f"{url} is in memory, where a study ends with its tuner: name a file, as in sqlite:///tune.db"
        )
    file = Path(said.database).resolve()  # whatever links lead there, it is one
    if not file.name or file.is_dir():
        raise ConfigError(f"{url}: {file} is a directory; name a file in it, such as sqlite:///tune.db")
    return file


def folder_of(url: str, study: str) -> Path:
    """Where everything of a study stands that is not in its storage."""
    file = sqlite_file(url)
    base = file.with_name(f"{file.name}.hadar") if file is not None else Path.cwd() / "hadar-tune"
    name = _ODD.sub("_", study)
    return base / (name if name.strip(".") else f"_{name}")  # else it would be that of all studies, or none of theirs


class Record:
    """One tuner's; a second one for the same study is refused (ConfigError), after ``patience_s`` seconds in which the
    first one may end. What cannot be written is told once by ``say``, and stops no trial."""

    def __init__(self, folder: Path, say: Callable[[str], None], patience_s: float = 0.0) -> None:
        self.folder, self._say, self._told = folder, say, False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{folder}: {error.strerror}") from None
        self._take(patience_s)
        (folder / STOP).unlink(missing_ok=True)

    def _take(self, patience_s: float) -> None:
        until, told = time.monotonic() + patience_s, False
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                who = read_status(self.folder)
                where = f"process {who['pid']} on {who.get('host', '?')}" if "pid" in who else "one that has just begun"
                if time.monotonic() >= until:
                    os.close(self._lock)
                    raise ConfigError(
                        f"another tuner is at work on this study: {where}; see it with hadar tune status, end it with "
                        "hadar tune stop"
                    ) from None
            if not told:
                self._say(f"the tuner of the run before holds the study ({where}): waiting for its end")
                told = True
            time.sleep(_LOOK_S)

    def close(self) -> None:
        os.close(self._lock)

    def belongs(self, study: str, fresh: bool) -> None:
        """``study``: what tells it from any other of its name; ``fresh``: it was made just now. Raises ConfigError if
        the folder is another one's: trials of the same number would go on from its checkpoints. StoreError: it cannot
        be noted."""
        known = self._owner()
        if known != study and (known or (fresh and (self.folder / TRIALS).exists())):
            raise self._foreign()
        if not known:
            noted = self.folder / IDENTITY
            try:
                noted.write_text(f"{study}\n", encoding="utf-8")
            except OSError as error:
                raise StoreError(f"{noted}: {error.strerror}") from None

    def belongs_to_none(self) -> None:
        """As :meth:`belongs`, for a study that is about to be made."""
        if self._owner() or (self.folder / TRIALS).exists():
            raise self._foreign()

    def _owner(self) -> str:
        noted = self.folder / IDENTITY
        return noted.read_text(encoding="utf-8", errors="replace").strip() if noted.exists() else ""

    def _foreign(self) -> ConfigError:
        return ConfigError(
            f"{self.folder} has the checkpoints of another study of that name (or of one like it): move or remove it, "
            "or take another --study"
        )

    def trial_folder(self, number: int) -> Path:
        """A trial's checkpoints and its log."""
        return self.folder / TRIALS / str(number)

    def event(self, what: str, **said: Any) -> None:
        """One line of what happened, with the time."""
        with self._best_effort(), (self.folder / EVENTS).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"time": time.time(), "event": what, **said}) + "\n")

    def status(self, **said: Any) -> None:
        """How the tuner stands now; a reader sees the old or the new."""
        new = self.folder / f".{STATUS}"
        with self._best_effort():
            who = {"pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}
            new.write_text(json.dumps({**who, **said}) + "\n", encoding="utf-8")
            new.replace(self.folder / STATUS)

    @property
    def stop_requested(self) -> bool:
        """Whether ``hadar tune stop`` has asked for the end."""
        return (self.folder / STOP).exists()

    @contextlib.contextmanager
    def _best_effort(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self._told:
                self._told = True
                self._say(f"{self.folder}: {error.strerror}; the trials go on, their times are not recorded")


def saved_step(folder: Path) -> int | None:
    """The step of the newest checkpoint of a trial whose folder this is; a training with a name has a folder of that
    name there."""
    kept = folder / CHECKPOINTS_DIR
    named = [below for below in kept.iterdir() if below.is_dir()] if kept.is_dir() else []
    return max((step for one in (kept, *named) if (step := newest_step(one)) is not None), default=None)


def last_line(log: Path) -> str:
    """The last line of an output that has letters, without what steers a terminal; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    shown = ("".join(c for c in line if c.isprintable()).strip() for line in reversed(lines))
    return next((line[:_LONGEST_LINE] for line in shown if line), "")


def request_stop(folder: Path) -> None:
    """Ask a study's tuner to end; it may be on another node."""
    (folder / STOP).touch()


def is_running(folder: Path) -> bool | None:
    """Whether a tuner holds the study (of this node, or where the file system knows of locks of others). None: that is
    for another user to see, whose study it is: who could open the lock could hold it."""
    try:
        lock = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except PermissionError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def read_status(folder: Path) -> dict[str, Any]:
    """What the tuner said last; empty if there is nothing."""
    try:
        found = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_events(folder: Path) -> list[dict[str, Any]]:
    """All events; a line that a kill or a full disk has cut counts for nothing."""
    found = []
    with contextlib.suppress(OSError):
        for line in (folder / EVENTS).read_text(encoding="utf-8", errors="replace").splitlines():
            with contextlib.suppress(ValueError):
                event = json.loads(line)
                if isinstance(event, dict) and "time" in event and "event" in event:
                    found.append(event)
    return found


def is_done(folder: Path) -> bool:
    """Whether the last tuner has found nothing more to try, or has reached the target."""
    ends = [event for event in read_events(folder) if event["event"] == "ended"]
    return bool(ends) and ends[-1].get("why") in ("done", "target")
