"""Speeds of jobs on a GPU that they share, kept in SQLite: alone there, and beside which other workload.

Filed under the user whose jobs they are, and told of that user's pairs alone: what jobs report is their users' word.
"""

from __future__ import annotations

import contextlib
import sqlite3
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from slurm_hadar.errors import StoreError
from slurm_hadar.model import Kept, Pairing
from slurm_hadar.throughput.store import ALPHA, storable

__all__ = ["Profile", "ProfileStore"]

_SCHEMA = """CREATE TABLE IF NOT EXISTS sharing_profile (
    workload TEXT NOT NULL, beside TEXT NOT NULL, gpu_type TEXT NOT NULL, user TEXT NOT NULL,
    steps_per_s REAL NOT NULL, samples INTEGER NOT NULL, updated_at REAL NOT NULL,
    PRIMARY KEY (workload, beside, gpu_type, user)) WITHOUT ROWID"""
_AVERAGE = """INSERT INTO sharing_profile VALUES (?1, ?2, ?3, ?4, ?5, 1, ?6)
    ON CONFLICT DO UPDATE SET steps_per_s = ?7 * excluded.steps_per_s + (1 - ?7) * steps_per_s,
        samples = samples + 1, updated_at = max(updated_at, excluded.updated_at)"""


@dataclass(frozen=True, slots=True)
class Profile:
    """The averaged rate of a user's jobs of a workload on one GPU type, on a GPU with one job of the workload
    ``beside``; "" = of those that had turns on their GPU without others. ``keeps`` is the share of the latter rate that
    this is, None where that is not known."""

    workload: str
    beside: str
    gpu_type: str
    user: str
    steps_per_s: float
    samples: int
    updated_at: float
    keeps: float | None = None


class ProfileStore:
    """What was measured of jobs that share GPUs, in the database of ``connection``. Methods raise StoreError."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        with self._errors("set up"), connection:
            connection.execute(_SCHEMA)

    def record(self, workload: str, beside: str, gpu_type: str, user: str, steps_per_s: float, at: float) -> None:
        """Take a measurement into the exponential average of its user; what no training can do is left out."""
        if not storable(steps_per_s):
            return
        with self._errors("written"), self._connection:
            self._connection.execute(_AVERAGE, (workload, beside, gpu_type, user, steps_per_s, at, ALPHA))

    def everything(self) -> list[Profile]:
        """All of it, in order of workload, GPU type and user, each beside nobody first."""
        with self._errors("read"):
            rows = self._connection.execute(
                """SELECT p.*, p.steps_per_s / alone.steps_per_s FROM sharing_profile p LEFT JOIN sharing_profile alone
                ON (alone.workload, alone.gpu_type, alone.user, alone.beside) = (p.workload, p.gpu_type, p.user, '')
                ORDER BY p.workload, p.gpu_type, p.user, p.beside"""
            ).fetchall()
        return [Profile(*row) for row in rows]

    def pairings(self, user: str | None) -> dict[Pairing, Kept]:
        """What pairs of the user's workloads keep of their speeds, in either order; those of which both were measured,
        together and alone. More than was made alone counts as all of it. None = of all users, in the mean over them."""
        of_users: dict[Pairing, list[float]] = {}
        for p in self.everything():
            if p.beside and p.keeps is not None and user in (p.user, None):
                of_users.setdefault((p.workload, p.beside, p.gpu_type), []).append(min(1.0, p.keeps))
        kept = {pair: statistics.fmean(shares) for pair, shares in of_users.items()}
        return {
            (one, other, gpu_type): (share, kept[other, one, gpu_type])
            for (one, other, gpu_type), share in kept.items()
            if (other, one, gpu_type) in kept
        }

    @contextlib.contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise StoreError.of(f"the profiles of jobs that share GPUs cannot be {doing}", error) from error
