"""What the controller must remember: why it did what it did, and what Slurm forgets about jobs.

SQLite in WAL mode on a local disk. Losing the file costs knowledge, never a job: a file that is not a database any
more is moved aside, said so, and a new one begun.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slurm_hadar.controller.salvage import numbers_only, row_object, row_record
from slurm_hadar.errors import StoreError
from slurm_hadar.model import EMPTY, Placement

__all__ = [
    "Decision", "Event", "JobRecord", "Journal", "RoundRecord", "WriteRecord", "placement_from_json",
    "placement_to_json",
]  # fmt: skip

SCHEMA_VERSION = 6
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
}


@dataclass(slots=True)
class JobRecord:
    """What is remembered of one job between rounds.

    ``submit`` and ``restarts`` as Slurm last showed them tell a job from a later one with the same id. ``arrival`` is
    the first submission. ``workers``, ``nodes``, ``tasks`` and ``cpus`` are the shape its owner asked for. ``steered``
    says that node list or shape in Slurm are ours, not the owner's; ``lease`` is the start time we gave it, and
    ``defer_until`` the latest that a round which may have been killed can have given it.
    ``attained_s`` (GPU-seconds) counts until ``booked``. ``avoid`` maps a node where the job could not be started to
    the epoch second until which it is not tried again; ``slow`` counts rounds in which a placement did not start.
    ``reported`` says that ``total_steps`` is the script's own word; else it is the comment's. ``forecast`` is what the
    job was last expected to be (:class:`slurm_hadar.controller.forecasts.Forecast`), {} = it was never asked about.
    ``user``, ``name``, ``model``, ``batch``, ``ran_s`` (seconds it ran, by GPU type; ``last_type`` at last) and
    ``final``, the state in which it ended, are what a predictor learns from.
    ``ran_on``: the nodes of the present run, as long as it was not this controller that stopped it.
    ``graph_fault``: why the graph that its comment names cannot be used.
    """

    job_id: str
    submit: float = 0.0
    restarts: int = 0
    arrival: float = 0.0
    workers: int = 0
    nodes: int = 1
    tasks: int = 1
    cpus: int = 1
    steered: bool = False
    lease: float | None = None
    defer_until: float | None = None
    run_since: float | None = None
    booked: float | None = None
    attained_s: float = 0.0
    moves: int = 0
    steps: float = 0.0
    steps_per_s: float | None = None
    total_steps: float | None = None
    resumable: bool = False
    saved_step: float | None = None
    save_s: float | None = None
    stall_s: float | None = None
    start_s: float | None = None
    lost_steps: float = 0.0
    work_dir: str = ""
    avoid: dict[str, float] = field(default_factory=dict)
    slow: int = 0
    graph_fault: str = ""
    ended: float | None = None
    last_seen: float = 0.0
    reported: bool = False
    forecast: dict[str, Any] = field(default_factory=dict)
    user: str = ""
    name: str = ""
    model: str = ""
    batch: int | None = None
    ran_s: dict[str, float] = field(default_factory=dict)
    last_type: str = ""
    final: str = ""
    ran_on: list[str] = field(default_factory=list)

    def deferred(self, eligible: float | None) -> bool:
        """Whether a start time that is to come is of our making."""
        return self.lease is not None or (
            self.defer_until is not None and eligible is not None and eligible <= self.defer_until
        )


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round as a whole: sizes, what was done, and how long each step took in seconds."""

    time: float
    mode: str
    policy: str
    nodes: int = 0
    jobs: int = 0
    steered: int = 0
    running: int = 0
    starts: int = 0
    moves: int = 0
    preemptions: int = 0
    leases: int = 0
    writes: int = 0
    failed: int = 0
    read_s: float = 0.0
    decide_s: float = 0.0
    act_s: float = 0.0
    verify_s: float = 0.0
    note: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one job, recorded when it differs from the last one: start, move, preempt, wait, end."""

    job_id: str
    kind: str
    old: Placement = EMPTY
    new: Placement = EMPTY
    why: str = ""
    price: float | None = None
    payoff: float | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """What was seen to happen to a job, as opposed to decided: ``kind`` is restart, forecast or graph."""

    job_id: str
    kind: str
    why: str


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """One write to Slurm about one job and what became of it: ok, refused, ineffective, slow, undone; sent where nobody
    knows, since Slurm gave no answer or the controller was killed before it came."""

    job_id: str
    command: str
    outcome: str
    detail: str = ""


def placement_to_json(placement: Placement) -> str:
    """Compact JSON of a placement."""
    return json.dumps(placement.as_dict(), separators=(",", ":"))


def placement_from_json(text: str) -> Placement:
    """The placement that :func:`placement_to_json` wrote."""
    return Placement.of(json.loads(text))


class Journal:
    """The controller's memory. ``path`` may be ``:memory:``; all methods raise StoreError with one clear line."""

    def __init__(self, path: Path | str) -> None:
        self.path = path
        self.moved_aside: Path | None = None
        self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.OperationalError as error:
            raise StoreError(f"cannot open the journal {self.path}: {error}") from None
        except sqlite3.DatabaseError as error:
            return self._replace(error)

    def _connect(self) -> sqlite3.Connection:
        db = sqlite3.connect(str(self.path), timeout=10.0, isolation_level=None)
        db.text_factory = lambda data: data.decode("utf-8", "replace")  # a damaged letter must not hide the other rows
        try:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=NORMAL")
            if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                raise sqlite3.DatabaseError("its content is damaged")
            self._migrate(db)
        except BaseException:
            db.close()
            raise
        return db

    def _migrate(self, db: sqlite3.Connection) -> None:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA_VERSION:
            return
        if version > SCHEMA_VERSION:
            raise StoreError(
                f"journal {self.path} was written by a newer slurm_hadar (schema {version}); upgrade this one"
            )
        steps = "" if version else _SCHEMA
        steps += "".join(sql for added_in, sql in sorted(_ADDED.items()) if added_in > version)
        db.executescript(f"BEGIN;{steps}PRAGMA user_version={SCHEMA_VERSION};COMMIT;")

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

    def close(self) -> None:
        self._db.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """The open database, for stores that live in the same file."""
        return self._db

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing: a kill in between leaves the state before."""
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

    def load_jobs(self) -> dict[str, JobRecord]:
        """Records of jobs not known to have ended; a damaged one is left out, as if its job were new."""
        rows = self._query("SELECT record FROM jobs WHERE ended IS NULL")
        return {r.job_id: r for (text,) in rows if (r := row_record(JobRecord, text)) is not None}

    def save_jobs(self, records: Iterable[JobRecord]) -> None:
        rows = ((r.job_id, r.ended, json.dumps(asdict(r), separators=(",", ":"))) for r in records)  # one at a time
        with self.transaction() as db:
            db.executemany("INSERT OR REPLACE INTO jobs (job_id, ended, record) VALUES (?, ?, ?)", rows)

    def usage(self) -> dict[tuple[str, str, str], tuple[float, float]]:
        """{(user, account, GPU type): (GPU-seconds as they counted at that time, epoch seconds)}."""
        rows = self._query("SELECT user, account, gpu_type, gpu_s, updated FROM usage")
        return numbers_only({(user, account, gpu): tuple(values) for user, account, gpu, *values in rows})

    def save_usage(self, totals: Mapping[tuple[str, str, str], tuple[float, float]]) -> None:
        """Replace these entries by what :meth:`usage` shall give."""
        with self.transaction() as db:
            rows = [(*key, *value) for key, value in totals.items()]
            db.executemany("INSERT OR REPLACE INTO usage VALUES (?, ?, ?, ?, ?)", rows)

    def forks(self) -> dict[str, tuple[int, int, float | None, int | None]]:
        """{forked job: (number of its newest consolidation, steps in it, total, the copy that ends the script)}."""
        rows = self._query("SELECT parent, number, steps, total, closer FROM forks")
        return numbers_only({parent: tuple(rest) for parent, *rest in rows})

    def save_forks(self, state: Mapping[str, tuple[int, int, float | None, int | None]]) -> None:
        """Replace all that :meth:`forks` gives."""
        with self.transaction() as db:
            db.execute("DELETE FROM forks")
            db.executemany("INSERT INTO forks VALUES (?, ?, ?, ?, ?)", [(p, *rest) for p, rest in state.items()])

    def trainings(self, last: int = 20) -> list[dict[str, Any]]:
        """What became of predictors' trainings, the newest first: began, ended, version, predictor, detail."""
        return self._rows("SELECT * FROM trainings ORDER BY began DESC LIMIT ?", (last,))

    def add_training(self, began: float, ended: float | None, version: str, predictor: str, detail: str) -> bool:
        """Remember a training that is over; False if it was known already."""
        with self.transaction() as db:
            row = (began, ended, version, predictor, detail)
            return db.execute("INSERT OR IGNORE INTO trainings VALUES (?, ?, ?, ?, ?)", row).rowcount > 0

    # What was done

    def add_round(self, record: RoundRecord) -> int:
        with self.transaction() as db:
            row = (record.time, record.mode, record.policy, json.dumps(asdict(record)))
            cursor = db.execute("INSERT INTO rounds (time, mode, policy, record) VALUES (?, ?, ?, ?)", row)
            return int(cursor.lastrowid or 0)

    def update_round(self, number: int, record: RoundRecord) -> None:
        with self.transaction() as db:
            db.execute("UPDATE rounds SET record = ? WHERE round = ?", (json.dumps(asdict(record)), number))

    def add_decisions(self, number: int, now: float, decisions: Iterable[Decision]) -> None:
        rows = [
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
            )
            for d in decisions
        ]
        with self.transaction() as db:
            db.executemany("INSERT INTO decisions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def add_writes(self, number: int, now: float, writes: Iterable[WriteRecord]) -> None:
        rows = ((number, now, w.job_id, w.command, w.outcome, w.detail) for w in writes)
        with self.transaction() as db:
            db.executemany("INSERT INTO writes VALUES (?, ?, ?, ?, ?, ?)", rows)

    def settle_writes(self, number: int, now: float, writes: Iterable[WriteRecord]) -> None:
        """What came of this round's writes, instead of what was announced of them before they were sent."""
        rows = ((number, now, w.job_id, w.command, w.outcome, w.detail) for w in writes)
        with self.transaction() as db:
            db.execute("DELETE FROM writes WHERE round = ? AND outcome = 'sent'", (number,))
            db.executemany("INSERT INTO writes VALUES (?, ?, ?, ?, ?, ?)", rows)

    def add_events(self, number: int, now: float, events: Iterable[Event]) -> None:
        rows = [(number, now, e.job_id, e.kind, e.why) for e in events]
        if rows:
            with self.transaction() as db:
                db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)

    def replace_waits(self, number: int, waits: Mapping[str, Mapping[str, Any]]) -> None:
        """The reasons of all jobs that wait as of this round."""
        rows = ((job, number, json.dumps(wait)) for job, wait in waits.items())
        with self.transaction() as db:
            db.execute("DELETE FROM waits")
            db.executemany("INSERT INTO waits VALUES (?, ?, ?)", rows)

    def replace_prices(self, prices: Mapping[tuple[str, str], float]) -> None:
        with self.transaction() as db:
            db.execute("DELETE FROM prices")
            db.executemany("INSERT INTO prices VALUES (?, ?, ?)", [(n, t, p) for (n, t), p in prices.items()])

    def save_memory(self, owner: str, text: str) -> None:
        """Keep what a policy wants to be given back; whatever another owner kept is dropped."""
        with self.transaction() as db:
            db.execute("DELETE FROM memory")
            db.execute("INSERT INTO memory VALUES (?, ?)", (owner, text))

    def load_memory(self, owner: str) -> str | None:
        """What :meth:`save_memory` kept for ``owner``; None if another one's was kept since."""
        rows = self._query("SELECT content FROM memory WHERE owner = ?", (owner,))
        return rows[0][0] if rows else None

    def expire(self, before: float) -> None:
        """Forget rounds, decisions, writes, events and ended jobs older than ``before``."""
        with self.transaction() as db:
            for table in ("rounds", "decisions", "writes", "events"):
                db.execute(f"DELETE FROM {table} WHERE time < ?", (before,))
            db.execute("DELETE FROM jobs WHERE ended < ?", (before,))
            db.execute("DELETE FROM trainings WHERE began < ?", (before,))

    # What people ask

    def rounds(self, last: int = 20) -> list[dict[str, Any]]:
        rows = self._query("SELECT round, record FROM rounds ORDER BY round DESC LIMIT ?", (last,))
        return [{"round": number, **content} for number, text in rows if (content := row_object(text)) is not None]

    def rounds_since(self, since: float) -> list[dict[str, Any]]:
        """Rounds from ``since`` (epoch seconds) on, oldest first."""
        rows = self._query("SELECT round, record FROM rounds WHERE time >= ? ORDER BY round", (since,))
        return [{"round": number, **content} for number, text in rows if (content := row_object(text)) is not None]

    def decisions_since(self, since: float) -> list[dict[str, Any]]:
        """Decisions about all jobs from ``since`` on, oldest first, each with the ``mode`` of its round."""
        found = self._rows(
            "SELECT d.time, d.job_id, d.kind, d.old, d.new, d.why, r.mode FROM decisions d JOIN rounds r USING (round) "
            "WHERE d.time >= ? ORDER BY d.time, d.rowid", (since,)
        )  # fmt: skip
        for entry in found:
            entry.update(old=row_object(entry["old"]) or {}, new=row_object(entry["new"]) or {})
        return found

    def jobs_since(self, since: float) -> list[JobRecord]:
        """Records of jobs that had not ended at ``since``, in order of arrival."""
        rows = self._query("SELECT record FROM jobs WHERE ended IS NULL OR ended >= ?", (since,))
        records = [record for (text,) in rows if (record := row_record(JobRecord, text)) is not None]
        return sorted(records, key=lambda r: (r.arrival, r.job_id))

    def history(self, job_id: str) -> list[dict[str, Any]]:
        """What became of one job in order of time: events (``event``), decisions (``kind``, with the ``mode`` of the
        round: only those of mode act were carried out) and writes (``command``)."""
        events = self._rows("SELECT round, time, event, why FROM events WHERE job_id = ?", (job_id,))
        decisions = self._rows(
            "SELECT d.round, d.time, r.mode, kind, old, new, why, price, payoff FROM decisions d "
            "LEFT JOIN rounds r USING (round) WHERE job_id = ?", (job_id,)
        )  # fmt: skip
        writes = self._rows("SELECT round, time, command, outcome, detail FROM writes WHERE job_id = ?", (job_id,))
        for entry in decisions:
            entry.update(old=row_object(entry["old"]) or {}, new=row_object(entry["new"]) or {})
        return sorted(events + decisions + writes, key=lambda e: (e["time"], "event" not in e, "command" in e))

    def wait(self, job_id: str) -> dict[str, Any] | None:
        for number, text in self._query("SELECT round, record FROM waits WHERE job_id = ?", (job_id,)):
            return {"round": number, **content} if (content := row_object(text)) is not None else None
        return None

    def waits(self) -> dict[str, dict[str, Any]]:
        rows = self._query("SELECT job_id, record FROM waits")
        return {job: content for job, text in rows if (content := row_object(text)) is not None}

    def prices(self) -> dict[tuple[str, str], float]:
        return {(n, t): p for n, t, p in self._query("SELECT node, gpu_type, price FROM prices")}

    def job(self, job_id: str) -> JobRecord | None:
        for (text,) in self._query("SELECT record FROM jobs WHERE job_id = ?", (job_id,)):
            return row_record(JobRecord, text)
        return None

    def _rows(self, sql: str, args: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        try:
            cursor = self._db.execute(sql, args)
            names = [c[0] for c in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]
        except sqlite3.Error as error:
            raise StoreError.of(f"cannot read the journal {self.path}", error) from None

    def _query(self, sql: str, args: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(sql, args).fetchall()
        except sqlite3.Error as error:
            raise StoreError.of(f"cannot read the journal {self.path}", error) from None
