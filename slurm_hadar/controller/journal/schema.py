"""The tables of the journal, and how those of an older version are brought up to date."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Mapping
from pathlib import Path

from slurm_hadar.errors import StoreError

__all__ = ["SCHEMA_VERSION", "check_tables", "migrate", "newer"]

SCHEMA_VERSION = 10
_SCHEMA = """
CREATE TABLE jobs (job_id TEXT PRIMARY KEY, ended REAL, record TEXT NOT NULL);
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY, time REAL NOT NULL, mode TEXT NOT NULL, policy TEXT NOT NULL, record TEXT NOT NULL
);
CREATE TABLE decisions (
    round INTEGER NOT NULL, time REAL NOT NULL, job_id TEXT NOT NULL, kind TEXT NOT NULL, old TEXT NOT NULL,
    new TEXT NOT NULL, why TEXT NOT NULL, price REAL, payoff REAL
);
CREATE INDEX decisions_of_job ON decisions (job_id, round);
CREATE TABLE writes (
    round INTEGER NOT NULL, time REAL NOT NULL, job_id TEXT NOT NULL, command TEXT NOT NULL, outcome TEXT NOT NULL,
    detail TEXT NOT NULL
);
CREATE INDEX writes_of_job ON writes (job_id, round);
CREATE TABLE waits (job_id TEXT PRIMARY KEY, round INTEGER NOT NULL, record TEXT NOT NULL);
CREATE TABLE prices (node TEXT NOT NULL, gpu_type TEXT NOT NULL, price REAL NOT NULL, PRIMARY KEY (node, gpu_type));
"""
# What a version adds to the one before; a new journal gets _SCHEMA and then all of these.
_ADDED = {
    2: "CREATE TABLE memory (owner TEXT PRIMARY KEY, content TEXT NOT NULL);",
    3: """CREATE TABLE usage (
        user TEXT NOT NULL, account TEXT NOT NULL, gpu_type TEXT NOT NULL, gpu_s REAL NOT NULL, updated REAL NOT NULL,
        PRIMARY KEY (user, account, gpu_type)
    );""",
    4: """CREATE TABLE forks (
        parent TEXT PRIMARY KEY, number INTEGER NOT NULL, steps INTEGER NOT NULL, total REAL, closer INTEGER
    );""",
    5: """CREATE TABLE trainings (
        began REAL PRIMARY KEY, ended REAL, version TEXT NOT NULL, predictor TEXT NOT NULL, detail TEXT NOT NULL
    );""",
    6: """CREATE TABLE events (
        round INTEGER NOT NULL, time REAL NOT NULL, job_id TEXT NOT NULL, event TEXT NOT NULL, why TEXT NOT NULL
    );
    CREATE INDEX events_of_job ON events (job_id, round);""",
    # what people look at: the cluster as the last round saw it (queue, speeds, nodes), and what became of it over time;
    # of a wait what the queue is sorted by
    7: """CREATE TABLE queue (
        job_id TEXT PRIMARY KEY, number INTEGER NOT NULL, user TEXT NOT NULL, name TEXT NOT NULL,
        partition TEXT NOT NULL, state TEXT NOT NULL, gpus INTEGER NOT NULL, types TEXT NOT NULL, held TEXT NOT NULL,
        place TEXT NOT NULL, arrival REAL NOT NULL, started REAL, steps_per_s REAL, done REAL,
        restarts INTEGER NOT NULL, moves INTEGER NOT NULL, size TEXT NOT NULL, forecast TEXT, workload TEXT NOT NULL
    );
    CREATE TABLE speeds (workload TEXT PRIMARY KEY, record TEXT NOT NULL);
    CREATE TABLE nodes (node TEXT PRIMARY KEY, record TEXT NOT NULL);
    CREATE TABLE runs (
        job_id TEXT NOT NULL, began REAL NOT NULL, ended REAL, held TEXT NOT NULL, steered INTEGER NOT NULL,
        PRIMARY KEY (job_id, began)
    );
    CREATE INDEX runs_by_end ON runs (ended);
    CREATE TABLE price_history (
        time REAL NOT NULL, gpu_type TEXT NOT NULL, low REAL NOT NULL, mean REAL NOT NULL, high REAL NOT NULL,
        PRIMARY KEY (time, gpu_type)
    );
    CREATE TABLE gains (
        time REAL PRIMARY KEY, mode TEXT NOT NULL, gpu_s REAL NOT NULL, blind_s REAL NOT NULL,
        measured_s REAL NOT NULL, unknown_s REAL NOT NULL, worth REAL NOT NULL, planned REAL
    );
    ALTER TABLE waits ADD COLUMN price REAL;
    ALTER TABLE waits ADD COLUMN starts REAL;
    CREATE INDEX decisions_by_time ON decisions (time);
    CREATE INDEX rounds_by_time ON rounds (time);""",
    8: "CREATE INDEX jobs_by_end ON jobs (ended) WHERE ended IS NOT NULL;",
    9: "ALTER TABLE queue ADD COLUMN shares TEXT;",
    # what is of one kind with the entry before is no news: the ground of a decision; of a job's leases the last counts
    10: """ALTER TABLE decisions ADD COLUMN ground TEXT NOT NULL DEFAULT '';
    ALTER TABLE writes ADD COLUMN lease INTEGER NOT NULL DEFAULT 0;""",
}


def migrate(db: sqlite3.Connection, path: Path | str) -> None:
    """Bring the tables of an open database up to date, all or nothing; a new database gets all of them.

    Raises StoreError if a newer slurm_hadar wrote it.
    """
    version = db.execute("PRAGMA user_version").fetchone()[0]
    if version == SCHEMA_VERSION:
        return
    if version > SCHEMA_VERSION:
        raise newer(path, version)
    steps = "" if version else _SCHEMA
    steps += "".join(sql for added_in, sql in sorted(_ADDED.items()) if added_in > version)
    try:
        db.executescript(f"BEGIN;{steps}PRAGMA user_version={SCHEMA_VERSION};COMMIT;")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        raise sqlite3.DatabaseError(f"its tables are not those of schema {version}: {error}") from None


def check_tables(db: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError where a table is lost, or its columns are not those that rows are written to."""
    for table, columns in _expected().items():
        if _columns(db, table) != columns:
            raise sqlite3.DatabaseError(f"its table {table} is not that of schema {SCHEMA_VERSION}")


@functools.cache
def _expected() -> Mapping[str, tuple[str, ...]]:
    """The columns of each table of a new journal."""
    db = sqlite3.connect(":memory:", isolation_level=None)
    try:
        migrate(db, ":memory:")
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {table: _columns(db, table) for table in tables}
    finally:
        db.close()


def _columns(db: sqlite3.Connection, table: str) -> tuple[str, ...]:
    """In their order; none where there is no such table."""
    return tuple(name for (name,) in db.execute("SELECT name FROM pragma_table_info(?)", (table,)))


def newer(path: Path | str, version: int) -> StoreError:
    """What is said of a journal that this version cannot read."""
    return StoreError(f"journal {path} was written by a newer slurm_hadar (schema {version}); upgrade this one")
