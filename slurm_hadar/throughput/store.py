"""Measured speeds, kept in SQLite, and how wrong the estimates made before them were.

What a user's jobs report is filed under that user, and serves that user's jobs. Others get the median of several
users, so that nobody can make another's job look faster or slower than it is. The user "" is nobody in particular: what
older versions filed without a name, and what is measured where there are no users.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_hadar.errors import StoreError
from slurm_hadar.messages import FASTEST_STEPS_PER_S, SLOWEST_STEPS_PER_S
from slurm_hadar.throughput.measurements import (
    LEAST_USERS,
    EstimateError,
    Known,
    Measurement,
    median_of,
    model_of,
    order_of,
    storable,
)

__all__ = ["ALPHA", "ThroughputStore"]

log = logging.getLogger(__name__)
#: Weight of a new measurement in the exponential average; Gavel's constant.
ALPHA = 0.5
_BUSY_TIMEOUT_S = 5.0
#: Version of these tables. The first had none written down; ``throughput_version`` came with the second, and users with
#: the third: what was filed under a model before is nobody's, and counts as one user more for all others.
VERSION = 3
_OWNER = """CASE WHEN instr(workload, '/') > 0 AND instr(workload || ' ', ' ') > instr(workload, '/')
    THEN substr(workload, 1, instr(workload, '/') - 1) ELSE '' END"""  # of jobs without a model: user/name
_ADDED = {
    2: ("CREATE TABLE throughput_version (version INTEGER NOT NULL)",),
    3: (
        """CREATE TABLE throughput_measurement_by_user (
            workload TEXT NOT NULL, user TEXT NOT NULL, gpu_type TEXT NOT NULL, gpus INTEGER NOT NULL,
            spread INTEGER NOT NULL, steps_per_s REAL NOT NULL, samples INTEGER NOT NULL, updated_at REAL NOT NULL,
            PRIMARY KEY (workload, user, gpu_type, gpus, spread)) WITHOUT ROWID""",
        f"""INSERT INTO throughput_measurement_by_user SELECT
            workload, {_OWNER}, gpu_type, gpus, spread, steps_per_s, samples, updated_at FROM throughput_measurement""",
        "DROP TABLE throughput_measurement",
        "ALTER TABLE throughput_measurement_by_user RENAME TO throughput_measurement",
        """CREATE TABLE throughput_estimate_by_user (
            workload TEXT NOT NULL, user TEXT NOT NULL, gpu_type TEXT NOT NULL, gpus INTEGER NOT NULL,
            spread INTEGER NOT NULL, steps_per_s REAL NOT NULL, source TEXT NOT NULL, made_at REAL NOT NULL,
            PRIMARY KEY (workload, user, gpu_type, gpus, spread)) WITHOUT ROWID""",
        f"""INSERT INTO throughput_estimate_by_user SELECT
            workload, {_OWNER}, gpu_type, gpus, spread, steps_per_s, source, made_at FROM throughput_estimate""",
        "DROP TABLE throughput_estimate",
        "ALTER TABLE throughput_estimate_by_user RENAME TO throughput_estimate",
    ),
}
_TABLES = ("throughput_measurement", "throughput_estimate")
_SCHEMA = (
    """CREATE TABLE IF NOT EXISTS throughput_measurement (
        workload TEXT NOT NULL, gpu_type TEXT NOT NULL, gpus INTEGER NOT NULL, spread INTEGER NOT NULL,
        steps_per_s REAL NOT NULL, samples INTEGER NOT NULL, updated_at REAL NOT NULL,
        PRIMARY KEY (workload, gpu_type, gpus, spread)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS throughput_estimate (
        workload TEXT NOT NULL, gpu_type TEXT NOT NULL, gpus INTEGER NOT NULL, spread INTEGER NOT NULL,
        steps_per_s REAL NOT NULL, source TEXT NOT NULL, made_at REAL NOT NULL,
        PRIMARY KEY (workload, gpu_type, gpus, spread)) WITHOUT ROWID""",
)
# What no training can do, such as an average that older versions let sink to 0, or what a damaged file says.
_SOUND = f"(steps_per_s BETWEEN {SLOWEST_STEPS_PER_S!r} AND {FASTEST_STEPS_PER_S!r})"
_AVERAGE = f"""
    INSERT INTO throughput_measurement VALUES (:workload, :user, :gpu_type, :gpus, :spread, :steps_per_s, 1, :at)
    ON CONFLICT (workload, user, gpu_type, gpus, spread) DO UPDATE SET
        steps_per_s = min({FASTEST_STEPS_PER_S!r}, max({SLOWEST_STEPS_PER_S!r},
            :alpha * excluded.steps_per_s + (1 - :alpha) * steps_per_s)),
        samples = samples + 1, updated_at = max(updated_at, excluded.updated_at)
    RETURNING *"""
# An estimate for nobody in particular serves all who have measured nothing yet.
_ESTIMATE = """
    INSERT INTO throughput_estimate
    SELECT :workload, :user, :gpu_type, :gpus, :spread, :steps_per_s, :source, :at
    WHERE NOT EXISTS (SELECT 1 FROM throughput_measurement
        WHERE workload = :workload AND (user = :user OR :user = '') AND gpu_type = :gpu_type AND gpus = :gpus
        AND spread = :spread)
    ON CONFLICT (workload, user, gpu_type, gpus, spread) DO UPDATE SET
        steps_per_s = excluded.steps_per_s, source = excluded.source, made_at = excluded.made_at"""
_ERRORS = """
    SELECT m.workload, m.user, m.gpu_type, m.gpus, m.spread, e.source, e.steps_per_s, m.steps_per_s, e.user
    FROM throughput_measurement m JOIN throughput_estimate e USING (workload, gpu_type, gpus, spread)
    WHERE e.user IN (m.user, '')
    ORDER BY 1, 2, 3, 4, 5, e.user"""


class _NewerStoreError(StoreError):
    """The tables are those of a later version of this program."""


class ThroughputStore:
    """Two tables in a SQLite database that may hold others' tables as well.

    Parameters
    ----------
    connection: an open connection, which stays the caller's to close; or use :meth:`open`.
    alpha: weight of a new measurement in the average.

    Every method raises StoreError if the database cannot be read or written or is damaged.
    """

    def __init__(self, connection: sqlite3.Connection, alpha: float = ALPHA) -> None:
        self._connection = connection
        self._alpha = alpha
        # each round asks for many users and workloads, of which few have changed
        self._known: dict[str, Known] = {}
        self._names: list[str] = []
        self._models: dict[str, frozenset[str]] = {}
        self._version_read = -1
        with self._errors("set up"):
            self._migrate()
            self._heal()

    def _migrate(self) -> None:
        """Bring the tables to :data:`VERSION`; what an older program had is copied to a file beside first."""
        found = self._version()
        if found > VERSION:
            raise _NewerStoreError(
                f"the measured speeds in {self._file() or 'memory'} were written by a newer slurm_hadar "
                f"(version {found}); upgrade this one"
            )
        if found == VERSION:
            return
        if found:
            self._back_up(found)
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in _SCHEMA:
                self._connection.execute(statement)
            for number in range(self._version() or 1, VERSION):  # another process may have done it meanwhile
                for statement in _ADDED[number + 1]:
                    self._connection.execute(statement)
            self._connection.execute("DELETE FROM throughput_version")
            self._connection.execute("INSERT INTO throughput_version VALUES (?)", (VERSION,))
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def _heal(self) -> None:
        """Forget rates that cannot be: whoever divides by one, or adds it up, must not meet it."""
        for table in _TABLES:
            (unsound,) = self._connection.execute(f"SELECT count(*) FROM {table} WHERE NOT {_SOUND}").fetchone()
            if unsound:
                log.warning(
                    "%d rows of %s are forgotten: no training makes so few or so many steps per second", unsound, table
                )
                with self._connection:
                    self._connection.execute(f"DELETE FROM {table} WHERE NOT {_SOUND}")

    def _version(self) -> int:
        """0 where there are no tables yet."""
        rows = self._connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'throughput%'")
        names = {name for (name,) in rows}
        if "throughput_version" in names:
            return int(self._connection.execute("SELECT max(version) FROM throughput_version").fetchone()[0])
        return 1 if _TABLES[0] in names else 0

    def _file(self) -> str:
        """The database file; empty in memory."""
        return str(next(row[2] for row in self._connection.execute("PRAGMA database_list") if row[1] == "main"))

    def _back_up(self, version: int) -> None:
        """Copy the tables to ``FILE.throughput-vN``, once."""
        if not self._file():
            return
        path = Path(f"{self._file()}.throughput-v{version}")
        if path.exists():
            return
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.unlink(missing_ok=True)
        self._connection.execute("ATTACH ? AS backup", (str(partial),))
        try:
            for table in _TABLES:
                self._connection.execute(f"CREATE TABLE backup.{table} AS SELECT * FROM main.{table}")
        finally:
            self._connection.commit()
            self._connection.execute("DETACH backup")
        partial.replace(path)

    @classmethod
    def open(cls, path: Path | str, alpha: float = ALPHA) -> ThroughputStore:
        """Open or create the database file ``path`` (WAL, so that readers and a writer do not stop one another)."""
        connection = None
        try:
            connection = sqlite3.connect(path, timeout=_BUSY_TIMEOUT_S)
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            return cls(connection, alpha)
        except _NewerStoreError:
            if connection is not None:
                connection.close()
            raise
        except (sqlite3.Error, StoreError) as error:
            if connection is not None:
                connection.close()
            raise StoreError(
                f"throughput database {path} cannot be opened ({error}); check its directory, or move the file away"
            ) from error

    def close(self) -> None:
        self._connection.close()

    def record(
        self,
        workload: str,
        gpu_type: str,
        gpus: int,
        steps_per_s: float,
        at: float,
        *,
        spread: bool = False,
        nodes: int | None = None,
        user: str = "",
    ) -> Measurement:
        """Take a measurement of a job of ``user`` into the exponential average of that user, and return the average.

        ``at`` is the epoch second of the measurement. With ``nodes`` those on so many nodes have an average of their
        own, which ``spread`` has nothing to do with then. Raises StoreError for what :func:`storable` refuses.
        """
        values = _values(workload, user, gpu_type, gpus, spread, steps_per_s, at)
        if nodes is not None:  # the column holds 0 on one node, 1 on several, and else their number
            values["spread"] = nodes if nodes > 1 else 0
        with self._errors("written"), self._connection:
            row = self._connection.execute(_AVERAGE, {**values, "alpha": self._alpha}).fetchone()
        self._version_read = -1
        return _measurement(row)

    def get(
        self, workload: str, gpu_type: str, gpus: int, *, spread: bool = False, user: str = ""
    ) -> Measurement | None:
        """The average for exactly this pair, or None; whose it is, :meth:`of` says."""
        matching = (m for m in self.of(workload, user) if (m.gpu_type, m.gpus, m.spread) == (gpu_type, gpus, spread))
        return next(matching, None)

    def of(self, workload: str, user: str = "") -> list[Measurement]:
        """What jobs of ``user`` go by: all that was measured of theirs, and for pairs of which nothing was, the median
        of what other users measured, where these are :data:`LEAST_USERS`."""
        with self._errors("read"):
            self._refresh()
            if workload not in self._known:
                self._known[workload] = self._read(workload)
        return self._known[workload].of(user)

    def everything(self) -> list[Measurement]:
        """Every user's measurements, and the medians that others go by."""
        found = []
        for name in self.workloads():
            self.of(name)
            known = self._known[name]
            found += sorted([*(m for own in known.by_user.values() for m in own), *known.medians], key=order_of)
        return found

    def models_of(self, user: str) -> frozenset[str]:
        """The models, or other names without batch size and graph, of which jobs of ``user`` measured some."""
        with self._errors("read"):
            self._refresh()
            if not self._models:
                found = defaultdict[str, set[str]](set)
                for name, who in self._connection.execute("SELECT DISTINCT workload, user FROM throughput_measurement"):
                    found[who].add(model_of(name))
                self._models = {who: frozenset(names) for who, names in found.items()}
        return self._models.get(user, frozenset())

    def workloads(self) -> list[str]:
        """Every workload of which something was measured."""
        with self._errors("read"):
            self._refresh()
            if not self._names:
                rows = self._connection.execute(
                    "SELECT DISTINCT workload FROM throughput_measurement ORDER BY workload"
                )
                self._names = [workload for (workload,) in rows]
        return self._names

    def _refresh(self) -> None:
        """Forget what was read if it may have changed since, here or by another process."""
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        if version != self._version_read:
            self._version_read = version
            self._known.clear()
            self._names, self._models = [], {}

    def _read(self, workload: str) -> Known:
        known = Known()
        by_pair: dict[tuple[str, int, bool, int | None], list[Measurement]] = {}
        rows = self._connection.execute(
            f"SELECT * FROM throughput_measurement WHERE workload = ? AND {_SOUND}", (workload,)
        )
        for measured in map(_measurement, rows):
            known.by_user.setdefault(measured.user, []).append(measured)
            by_pair.setdefault(measured.pair, []).append(measured)
        known.medians = [median_of(same) for same in by_pair.values() if len(same) >= LEAST_USERS]
        return known

    def record_estimate(
        self,
        workload: str,
        gpu_type: str,
        gpus: int,
        steps_per_s: float,
        source: str,
        at: float,
        *,
        user: str = "",
    ) -> None:
        """Keep an estimate for jobs of ``user`` on one node, to be compared with the truth later; ignored once
        something was measured for the pair, and where it is no rate or gang that there could be."""
        if not storable(steps_per_s) or gpus > _MOST_GPUS:
            return
        values = _values(workload, user, gpu_type, gpus, spread=False, steps_per_s=steps_per_s, at=at)
        with self._errors("written"), self._connection:
            self._connection.execute(_ESTIMATE, {**values, "source": source})

    def errors(self) -> list[EstimateError]:
        """For each estimate whose truth is known by now, how far off it was."""
        with self._errors("read"):
            rows = self._connection.execute(_ERRORS).fetchall()
        # of an estimate for the user and one for nobody in particular the first counts, which comes last
        found = {row[:5]: row for row in rows}
        return [
            EstimateError(w, t, g, bool(s), source, estimated, real, user)
            for w, user, t, g, s, source, estimated, real, _ in found.values()
        ]

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError.of(f"the throughput database cannot be {doing}", error) from error


_MOST_GPUS = 10**9  # of a gang; users may ask for more than SQLite can count


def _values(
    workload: str, user: str, gpu_type: str, gpus: int, spread: bool, steps_per_s: float, at: float
) -> dict[str, str | int | float]:
    if gpus < 1 or not storable(steps_per_s) or not math.isfinite(at):
        raise StoreError(f"{workload} on {gpus} {gpu_type}: {steps_per_s} steps/s is no rate that can be stored")
    return {
        "workload": workload,
        "user": user,
        "gpu_type": gpu_type,
        "gpus": gpus,
        "spread": int(spread),
        "steps_per_s": float(steps_per_s),
        "at": float(at),
    }


def _measurement(row: tuple[Any, ...]) -> Measurement:
    workload, user, gpu_type, gpus, spread, steps_per_s, samples, updated_at = row
    nodes = {0: 1, 1: None}.get(spread, spread)
    return Measurement(workload, gpu_type, gpus, bool(spread), steps_per_s, samples, updated_at, nodes, user)
