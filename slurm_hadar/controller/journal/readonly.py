"""The journal for those who only look: nothing of it is created, changed or held up."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from slurm_hadar.controller.journal.reading import Reader
from slurm_hadar.controller.journal.salvage import letters
from slurm_hadar.controller.journal.schema import SCHEMA_VERSION, newer
from slurm_hadar.controller.journal.store import Journal
from slurm_hadar.errors import StoreError

__all__ = ["ReadOnlyJournal", "journal_copy"]

_BUSY_S = 2.0


class ReadOnlyJournal(Reader):
    """A journal as it is at this moment: everything read through one object is of one state, and the controller goes on
    writing meanwhile. Keep it open for one answer only, since the file cannot shrink its log as long as someone reads.

    Raises StoreError where there is none, or it is damaged, locked, or of another version.
    """

    path: Path

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            if not path.exists():
                raise StoreError(f"no journal at {path}: has the controller (hadar run) run here?")
            if not os.access(path, os.R_OK):
                raise StoreError(
                    f"the journal {path} may not be read by you; administrators can let you "
                    "(docs/operations.md, who may ask)"
                )
            self._db = self._connect()
        except (OSError, sqlite3.Error) as error:
            raise StoreError(f"cannot read the journal {path}: {error}") from None

    def __enter__(self) -> ReadOnlyJournal:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def copy_to(self, target: sqlite3.Connection) -> None:
        """Make ``target`` a copy, which may be changed without anybody's noticing. Raises StoreError."""
        try:
            self._db.execute("COMMIT")  # a backup reads as one state by itself, and does not like to be inside another
            self._db.backup(target)
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the journal {self.path}: {error}") from None

    def _connect(self) -> sqlite3.Connection:
        # Without a log beside it nobody has the file open, and SQLite would have to create one to read it. It is then
        # read as a file that does not change, which needs no right to write.
        alone = not self.path.with_name(self.path.name + "-wal").exists()
        uri = f"file:{quote(str(self.path.resolve()))}?mode=ro{'&immutable=1' if alone else ''}"
        db = sqlite3.connect(uri, uri=True, timeout=_BUSY_S, isolation_level=None)
        db.text_factory = letters
        try:
            db.execute("BEGIN")
            version = db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise newer(self.path, version)
            if version == 0:
                raise StoreError(f"{self.path} is no journal of slurm_hadar, or an empty one")
            if version < SCHEMA_VERSION:
                raise StoreError(
                    f"journal {self.path} was written by an older slurm_hadar (schema {version}); "
                    "start the controller of this version once, which brings it up to date"
                )
            db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        except BaseException:
            db.close()
            raise
        return db


@contextmanager
def journal_copy(path: Path, *, missing_ok: bool = False) -> Iterator[Journal]:
    """The journal as it is now, in memory, where it may be changed; an empty one where there is none and that is
    ``missing_ok``. Raises StoreError."""
    journal = Journal(":memory:")
    try:
        if path.exists() or not missing_ok:
            with ReadOnlyJournal(path) as source:
                source.copy_to(journal.connection)
                journal.path = path
        yield journal
    finally:
        journal.close()
