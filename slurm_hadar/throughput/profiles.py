"""Speeds of jobs on a GPU that they share, kept in SQLite: alone there, and beside which other workloads.

Filed under the user whose jobs they are, and told of that user's pairs alone: what jobs report is their users' word.
"""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slurm_hadar.errors import StoreError
from slurm_hadar.model import LEAST_DUTY, Company, Kept, Pairing
from slurm_hadar.throughput.measurements import storable
from slurm_hadar.throughput.store import ALPHA

__all__ = ["Needs", "Profile", "ProfileStore", "joined"]

_SEVERAL = "\x1f"  # between the workloads of a company, in which there is no such character

_SCHEMA = """CREATE TABLE IF NOT EXISTS sharing_profile (
    workload TEXT NOT NULL, beside TEXT NOT NULL, gpu_type TEXT NOT NULL, user TEXT NOT NULL,
    steps_per_s REAL NOT NULL, samples INTEGER NOT NULL, updated_at REAL NOT NULL,
    PRIMARY KEY (workload, beside, gpu_type, user)) WITHOUT ROWID"""
_NEEDS_SCHEMA = """CREATE TABLE IF NOT EXISTS sharing_needs (
    workload TEXT NOT NULL, gpu_type TEXT NOT NULL, user TEXT NOT NULL, persistent_bytes INTEGER,
    ephemeral_bytes INTEGER, iter_s REAL NOT NULL, updated_at REAL NOT NULL, duty REAL,
    PRIMARY KEY (workload, gpu_type, user)) WITHOUT ROWID"""
_AVERAGE = """INSERT INTO sharing_profile VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6)
    ON CONFLICT DO UPDATE SET steps_per_s = ?7 * excluded.steps_per_s + (1 - ?7) * steps_per_s,
        samples = samples + 1, updated_at = max(updated_at, excluded.updated_at)"""


@dataclass(frozen=True, slots=True)
class Profile:
    """The averaged rate of a user's jobs of a workload on one GPU type, on a GPU with jobs of the workloads ``beside``,
    :func:`joined`; "" = of those that had turns on their GPU without others. ``keeps`` is the share of the latter rate
    that this is, None where that is not known."""

    workload: str
    beside: str
    gpu_type: str
    user: str
    steps_per_s: float
    samples: int
    updated_at: float
    keeps: float | None = None

    @property
    def others(self) -> tuple[str, ...]:
        """The workloads that it is beside, sorted."""
        return tuple(self.beside.split(_SEVERAL)) if self.beside else ()


def joined(workloads: Iterable[str]) -> str:
    """What a company of these workloads is filed under, whatever their order."""
    return _SEVERAL.join(sorted(w.replace(_SEVERAL, " ") for w in workloads))


@dataclass(frozen=True, slots=True)
class Needs:
    """What a user's jobs of a workload took of a shared GPU of one type: bytes between two iterations, and beyond that
    within one (None = nobody measured or declared it), the length of a turn, and the duty: of the time in which they
    did not wait for a turn the share in which they had one, in whatever company (None = not told). Of memory the
    largest counts at once, and a smaller one by and by."""

    workload: str
    gpu_type: str
    user: str
    persistent_bytes: int | None
    ephemeral_bytes: int | None
    iter_s: float
    updated_at: float
    duty: float | None = None


class ProfileStore:
    """What was measured of jobs that share GPUs, in the database of ``connection``. Methods raise StoreError."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        with self._errors("set up"), connection:
            connection.execute(_SCHEMA)
            connection.execute(_NEEDS_SCHEMA)
            columns = {row[1] for row in connection.execute("PRAGMA table_info(sharing_needs)")}
            if "duty" not in columns:  # a table that was made before jobs told it
                connection.execute("ALTER TABLE sharing_needs ADD COLUMN duty REAL")

    def record(self, workload: str, beside: str, gpu_type: str, user: str, steps_per_s: float, at: float) -> None:
        """Take a measurement into the exponential average of its user; what no training can do is left out."""
        if not storable(steps_per_s):
            return
        with self._errors("written"), self._connection:
            self._connection.execute(_AVERAGE, (workload, beside, gpu_type, user, steps_per_s, at, ALPHA))

    def record_needs(self, now: Needs) -> None:
        """Take in what a job has told last."""
        with self._errors("written"), self._connection:
            row = self._connection.execute(
                "SELECT * FROM sharing_needs WHERE (workload, gpu_type, user) = (?, ?, ?)",
                (now.workload, now.gpu_type, now.user),
            ).fetchone()
            before = Needs(*row) if row else now
            sizes = (
                _larger(before.persistent_bytes, now.persistent_bytes),
                _larger(before.ephemeral_bytes, now.ephemeral_bytes),
            )
            averages = _average(before.iter_s, now.iter_s), now.updated_at, _average(before.duty, now.duty)
            self._connection.execute(
                "INSERT OR REPLACE INTO sharing_needs VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (now.workload, now.gpu_type, now.user, *sizes, *averages),
            )

    def needs(self) -> list[Needs]:
        """All that is known of memory and turns, in order of workload, GPU type and user."""
        with self._errors("read"):
            rows = self._connection.execute("SELECT * FROM sharing_needs ORDER BY workload, gpu_type, user").fetchall()
        return [Needs(*row) for row in rows]

    def everything(self) -> list[Profile]:
        """All of it, in order of workload, GPU type and user, each beside nobody first."""
        with self._errors("read"):
            rows = self._connection.execute(
                """SELECT p.*, p.steps_per_s / alone.steps_per_s FROM sharing_profile p LEFT JOIN sharing_profile alone
                ON (alone.workload, alone.gpu_type, alone.user, alone.beside) = (p.workload, p.gpu_type, p.user, '')
                ORDER BY p.workload, p.gpu_type, p.user, p.beside"""
            ).fetchall()
        return [Profile(*row) for row in rows]

    def pairings(self) -> dict[str, dict[Pairing, Kept]]:
        """By user, what pairs of workloads keep of their speeds, in either order; those of which both were measured,
        together and alone. More than was made alone counts as all of it."""
        of_users: dict[str, dict[Pairing, float]] = {}
        for p in self.everything():
            if len(p.others) == 1 and p.keeps is not None:
                of_users.setdefault(p.user, {})[p.workload, p.beside, p.gpu_type] = min(1.0, p.keeps)
        return {user: _paired(kept) for user, kept in of_users.items()}

    def mean_pairings(self) -> dict[Pairing, Kept]:
        """The same in the mean over the users who have measured it."""
        of_users: dict[Pairing, list[Kept]] = {}
        for pairs in self.pairings().values():
            for pair, kept in pairs.items():
                of_users.setdefault(pair, []).append(kept)
        return {
            pair: (statistics.fmean(one for one, _ in kept), statistics.fmean(other for _, other in kept))
            for pair, kept in of_users.items()
        }

    def companies(self) -> dict[str, dict[Company, float]]:
        """By user, what workloads keep of their speeds beside which others, one or several, where that was measured
        together and alone."""
        found: dict[str, dict[Company, float]] = {}
        for p in self.everything():
            if p.beside and p.keeps is not None:
                found.setdefault(p.user, {})[p.workload, p.others, p.gpu_type] = min(1.0, p.keeps)
        return found

    def duties(self) -> dict[tuple[str, str], dict[str, float]]:
        """By user and workload, and then by GPU type: the share of its time in which a job needs its GPU,
        :data:`slurm_hadar.model.LEAST_DUTY` to 1."""
        found: dict[tuple[str, str], dict[str, float]] = {}
        for n in self.needs():
            if n.duty is not None:
                found.setdefault((n.user, n.workload), {})[n.gpu_type] = min(1.0, max(LEAST_DUTY, n.duty))
        return found

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError.of(f"the profiles of jobs that share GPUs cannot be {doing}", error) from error


def _paired(kept: dict[Pairing, float]) -> dict[Pairing, Kept]:
    """Those of which it is known what each keeps beside the other."""
    return {
        (one, other, gpu_type): (share, kept[other, one, gpu_type])
        for (one, other, gpu_type), share in kept.items()
        if (other, one, gpu_type) in kept
    }


def _average(before: float | None, now: float | None) -> float | None:
    """What is known, where only one of the two is."""
    return now if before is None else before if now is None else before + ALPHA * (now - before)


def _larger(before: int | None, now: int | None) -> int | None:
    """At once what is more, by and by what is less."""
    if before is None or now is None:
        return before if now is None else now
    return now if now >= before else round(before + ALPHA * (now - before))
