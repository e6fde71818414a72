"""The journal's file, and what is written to it.

SQLite in WAL mode on a local disk. Losing the file costs knowledge, never a job: a file that is not a database any
more, or lacks tables or columns, is moved aside, said so, and a new one begun.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, fields
from pathlib import Path
from typing import Any

from slurm_hadar.controller.journal.memory import GIVEN
from slurm_hadar.controller.journal.reading import Reader
from slurm_hadar.controller.journal.records import (
    DashboardChanges,
    Decision,
    Event,
    JobRecord,
    RoundRecord,
    WriteOutcome,
    WriteRecord,
    placement_to_json,
)
from slurm_hadar.controller.journal.salvage import letters
from slurm_hadar.controller.journal.schema import check_tables, migrate
from slurm_hadar.controller.state_dir import file_fault, full
from slurm_hadar.errors import StoreError

__all__ = ["Journal"]

_MOST_WAITS = 10  # of a job whose reason goes to and fro, the last that are kept
_IDLE = ("wait", "stay")  # decisions that change nothing

_FIELDS = tuple(f.name for f in fields(JobRecord))


def _text(record: JobRecord) -> str:
    """As JSON; dataclasses.asdict would copy everything first, which takes longer than all the rest of a save."""
    return json.dumps({name: getattr(record, name) for name in _FIELDS}, separators=(",", ":"))


def _identity(path: Path) -> tuple[int, int] | None:
    """Of the file that has this name; (0, 0) where there is none, None where that cannot be told now."""
    try:
        entry = path.stat()
    except FileNotFoundError:
        return 0, 0
    except OSError:
        return None
    return entry.st_dev, entry.st_ino


def _why_closed(path: Path, error: sqlite3.Error) -> str:
    """What SQLite, which names neither owner nor room, says of a file that it cannot open, and most likely why."""
    faults = (file_fault(path.with_name(path.name + suffix)) for suffix in ("", "-wal", "-shm"))
    if fault := next(filter(None, faults), ""):
        return f"{error}: {fault}; chown it to the account that the controller runs as"
    if full(path.parent):
        return f"no room left in {path.parent} ({error}); make room, and start the controller again"
    return str(error)


def _insert_writes(db: sqlite3.Connection, number: int, now: float, writes: Iterable[WriteRecord]) -> None:
    rows = ((number, now, w.job_id, w.command, w.outcome, w.detail, w.renews) for w in writes)
    db.executemany("INSERT INTO writes VALUES (?, ?, ?, ?, ?, ?, ?)", rows)


class Journal(Reader):
    """The controller's memory. ``path`` may be ``:memory:``; all methods raise StoreError with one clear line."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.moved_aside: Path | None = None
        self._db = self._open()
        self._file = _identity(Path(path)) if str(path) != ":memory:" else None

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError as error:
            raise StoreError(f"cannot open the journal {self.path}: {_why_closed(Path(self.path), error)}") from None
        except sqlite3.DatabaseError as error:
            return self._replace(error)

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(str(self.path), timeout=10.0, isolation_level=None)
        db.text_factory = letters
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            db.execute("PRAGMA cache_size=-1000")  # KiB: rows are written once a round, and most are read by others
            if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("its content is damaged")
            migrate(db, self.path)
            check_tables(db)
        except BaseException:
            db.close()
            raise
        return db

    def _replace(self, error: sqlite3.DatabaseError) -> sqlite3.Connection:
        """Move a broken file and its companions aside and begin a new one."""
        path = Path(self.path)
        aside = path.with_name(f"{path.name}.broken-{time.strftime('%Y%m%dT%H%M%S')}")
        try:
            path.rename(aside)
            for suffix in ("-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            db = self._connect()
        except (OSError, sqlite3.Error) as second:
            raise StoreError(f"journal {path} is broken ({error}) and cannot be replaced: {second}") from None
        self.moved_aside = aside
        return db

    @property
    def connection(self) -> sqlite3.Connection:
        """The open database, for stores that live in the same file."""
        return self._db

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing: a kill in between leaves the state before."""
        if self._file is not None and _identity(Path(self.path)) not in (self._file, None):
            raise StoreError(
                f"the journal {self.path} was removed or replaced while it was open: what is written would be lost; "
                "start the controller again"
            )
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            self._rollback()
            raise StoreError.of(f"cannot write the journal {self.path}", error) from None
        except BaseException:
            self._rollback()
            raise

    def _rollback(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    # What is remembered of jobs

    def save_jobs(self, records: Iterable[JobRecord]) -> None:
        """Replace what is remembered of these jobs. Raises StoreError."""
        rows = ((r.job_id, r.ended, _text(r)) for r in records)  # one at a time: all of them would be large
        with self.transaction() as db:
            db.executemany("INSERT OR REPLACE INTO jobs (job_id, ended, record) VALUES (?, ?, ?)", rows)

    def save_usage(self, totals: Mapping[tuple[str, str, str], tuple[float, float]]) -> None:
        """Replace these entries by what :meth:`usage` shall give."""
        with self.transaction() as db:
            rows = [(*key, *value) for key, value in totals.items()]
            db.executemany("INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?, ?)", rows)

    def save_forks(self, state: Mapping[str, tuple[int, int, float | None, int | None]]) -> None:
        """Replace all that :meth:`forks` gives."""
        with self.transaction() as db:
            db.execute("DELETE FROM forks")
            db.executemany("INSERT INTO forks VALUES (?, ?, ?, ?, ?)", [(p, *rest) for p, rest in state.items()])

    def add_training(self, began: float, ended: float | None, version: str, predictor: str, detail: str) -> bool:
        """Remember a training that is over; False if it was known already."""
        with self.transaction() as db:
            row = (began, ended, version, predictor, detail)
            return db.execute("INSERT OR IGNORE INTO trainings VALUES (?, ?, ?, ?, ?)", row).rowcount > 0

    # What was done

    def add_round(self, record: RoundRecord) -> int:
        """Returns its number."""
        with self.transaction() as db:
            row = (record.time, record.mode, record.policy, json.dumps(asdict(record)))
            cursor = db.execute("INSERT INTO rounds (time, mode, policy, record) VALUES (?, ?, ?, ?)", row)
            return int(cursor.lastrowid or 0)

    def update_round(self, number: int, record: RoundRecord) -> None:
        """Replace what :meth:`add_round` wrote, by the round's number."""
        with self.transaction() as db:
            db.execute("UPDATE rounds SET record = ? WHERE round = ?", (json.dumps(asdict(record)), number))

    def add_decisions(self, number: int, now: float, decisions: Iterable[Decision]) -> None:
        """Of those that change nothing about a job only the last :data:`_MOST_WAITS` are kept."""
        decisions = list(decisions)
        rows = (
            (
                number,
                now,
                d.job_id,
                d.kind,
                placement_to_json(d.old),
                placement_to_json(d.new),
                d.why,
                d.price,
                d.payoff,
                d.ground,
            )
            for d in decisions
        )
        idle = [(d.job_id, *_IDLE, _MOST_WAITS) for d in decisions if d.kind in _IDLE]
        with self.transaction() as db:
            db.executemany("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            db.executemany(
                "DELETE FROM decisions WHERE rowid IN (SELECT rowid FROM decisions WHERE job_id = ? "
                "AND kind IN (?, ?) ORDER BY round DESC, rowid DESC LIMIT -1 OFFSET ?)",
                idle,
            )

    def add_writes(self, number: int, now: float, writes: Iterable[WriteRecord]) -> None:
        """Note what a round writes to Slurm, ``now`` in epoch seconds."""
        with self.transaction() as db:
            _insert_writes(db, number, now, writes)

    def settle_writes(self, number: int, now: float, writes: Iterable[WriteRecord]) -> None:
        """What came of this round's writes, instead of what was announced of them before they were sent. Of the leases
        of a job that hold, the last is kept: a long queue gets one for each job in each round."""
        writes = list(writes)
        with self.transaction() as db:
            db.execute("DELETE FROM writes WHERE round = ? AND outcome = ?", (number, WriteOutcome.SENT))
            renewed = ((w.job_id,) for w in writes if w.renews)
            db.executemany("DELETE FROM writes WHERE job_id = ? AND lease", renewed)
            _insert_writes(db, number, now, writes)

    def add_events(self, number: int, now: float, events: Iterable[Event]) -> None:
        """Note what has happened to jobs, as of a round, ``now`` in epoch seconds."""
        rows = [(number, now, e.job_id, e.kind, e.why) for e in events]
        if rows:
            with self.transaction() as db:
                db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)

    def replace_waits(self, number: int, waits: Mapping[str, Mapping[str, Any]]) -> None:
        """The reasons of all jobs that wait as of this round."""
        rows = (
            (job, number, json.dumps(wait), wait.get("price"), (wait.get("starts") or [None])[0])
            for job, wait in waits.items()
        )
        with self.transaction() as db:
            db.execute("DELETE FROM waits")
            db.executemany("INSERT INTO waits VALUES (?, ?, ?, ?, ?)", rows)

    def note_starts(self, starts: Mapping[str, tuple[float, float]]) -> None:
        """When jobs that wait are expected to start, as intervals in epoch seconds."""
        rows = [(json.dumps(interval), interval[0], job) for job, interval in starts.items()]
        with self.transaction() as db:
            db.executemany(
                "UPDATE waits SET record = json_set(record, '$.starts', json(?)), starts = ? WHERE job_id = ?", rows
            )

    def replace_prices(self, prices: Mapping[tuple[str, str], float]) -> None:
        """{(node, GPU type): price}: those of the last round alone are kept."""
        with self.transaction() as db:
            db.execute("DELETE FROM prices")
            db.executemany("INSERT INTO prices VALUES (?, ?, ?)", [(n, t, p) for (n, t), p in prices.items()])

    def update_dashboard(self, now: float, changes: DashboardChanges) -> None:
        """Bring up to date what people see of the cluster; only what changed is written, all or nothing."""
        runs = [(r.job_id, r.began, r.ended, placement_to_json(r.held), r.steered) for r in changes.runs]
        with self.transaction() as db:
            for table, keys in changes.gone.items():
                column = {"queue": "job_id", "speeds": "workload", "nodes": "node"}[table]
                db.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(key,) for key in keys])
            db.executemany(f"INSERT OR REPLACE INTO queue VALUES ({','.join('?' * 20)})", changes.queue)
            db.executemany("INSERT OR REPLACE INTO speeds VALUES (?, ?)", changes.speeds.items())
            db.executemany("INSERT OR REPLACE INTO nodes VALUES (?, ?)", changes.nodes.items())
            db.executemany("INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?)", runs)
            prices = [(now, *price) for price in changes.prices]
            db.executemany("INSERT OR REPLACE INTO price_history VALUES (?, ?, ?, ?, ?)", prices)
            if changes.gain is not None:
                db.execute("INSERT OR REPLACE INTO gains VALUES (?, ?, ?, ?, ?, ?, ?, ?)", astuple(changes.gain))

    def save_memory(self, owner: str, text: str) -> None:
        """Keep what a policy wants to be given back; whatever another owner kept is dropped."""
        with self.transaction() as db:
            db.execute("DELETE FROM memory WHERE owner != ?", (GIVEN,))
            db.execute("INSERT INTO memory VALUES (?, ?)", (owner, text))

    def save_given(self, settings: Mapping[str, Any]) -> None:
        """Keep what the controller alone was told, for those who look at things as it does."""
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO memory VALUES (?, ?)", (GIVEN, json.dumps(dict(settings))))

    def expire(self, before: float) -> None:
        """Forget rounds, decisions, writes, events, runs, prices and ended jobs older than ``before``."""
        with self.transaction() as db:
            for table in ("rounds", "decisions", "writes", "events", "price_history", "gains"):
                db.execute(f"DELETE FROM {table} WHERE time < ?", (before,))
            db.execute("DELETE FROM jobs WHERE ended < ?", (before,))
            db.execute("DELETE FROM runs WHERE ended < ?", (before,))
            db.execute("DELETE FROM trainings WHERE began < ?", (before,))
