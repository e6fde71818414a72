"""What can be asked of a journal."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import fields
from pathlib import Path
from typing import Any

from slurm_hadar.controller.journal.records import JobRecord
from slurm_hadar.errors import StoreError

__all__ = ["Reader"]

_KNOWN = {f.name for f in fields(JobRecord)}


def _record(text: str) -> JobRecord:
    """Fields that an older version did not have take their defaults; those of a newer one are passed over."""
    return JobRecord(**{k: v for k, v in json.loads(text).items() if k in _KNOWN})


class Reader:
    """The questions. Every method raises StoreError if the database cannot be read."""

    path: Path | str
    _db: sqlite3.Connection

    def close(self) -> None:
        self._db.close()

    # What is remembered of jobs

    def load_jobs(self) -> dict[str, JobRecord]:
        """Records of jobs not known to have ended. Fields that an older version did not have take their defaults."""
        rows = self._query("SELECT job_id, record FROM jobs WHERE ended IS NULL")
        return {job_id: _record(text) for job_id, text in rows}

    def usage(self) -> dict[tuple[str, str, str], tuple[float, float]]:
        """{(user, account, GPU type): (GPU-seconds as they counted at that time, epoch seconds)}."""
        rows = self._query("SELECT user, account, gpu_type, gpu_s, updated FROM usage")
        return {(user, account, gpu_type): (gpu_s, updated) for user, account, gpu_type, gpu_s, updated in rows}

    def forks(self) -> dict[str, tuple[int, int, float | None, int | None]]:
        """{forked job: (number of its newest consolidation, steps in it, total, the copy that ends the script)}."""
        rows = self._query("SELECT parent, number, steps, total, closer FROM forks")
        return {parent: tuple(rest) for parent, *rest in rows}

    def trainings(self, last: int = 20) -> list[dict[str, Any]]:
        """What became of predictors' trainings, the newest first: began, ended, version, predictor, detail."""
        return self._rows("SELECT * FROM trainings ORDER BY began DESC LIMIT ?", (last,))

    def load_memory(self, owner: str) -> str | None:
        """What :meth:`save_memory` kept for ``owner``; None if another one's was kept since."""
        rows = self._query("SELECT content FROM memory WHERE owner = ?", (owner,))
        return rows[0][0] if rows else None

    # What people ask

    def rounds(self, last: int = 20) -> list[dict[str, Any]]:
        rows = self._query("SELECT round, record FROM rounds ORDER BY round DESC LIMIT ?", (last,))
        return [{"round": number, **json.loads(text)} for number, text in rows]

    def rounds_since(self, since: float) -> list[dict[str, Any]]:
        """Rounds from ``since`` (epoch seconds) on, oldest first."""
        rows = self._query("SELECT round, record FROM rounds WHERE time >= ? ORDER BY round", (since,))
        return [{"round": number, **json.loads(text)} for number, text in rows]

    def decisions_since(self, since: float) -> list[dict[str, Any]]:
        """Decisions about all jobs from ``since`` on, oldest first, each with the ``mode`` of its round."""
        found = self._rows(
            "SELECT d.time, d.job_id, d.kind, d.old, d.new, d.why, r.mode FROM decisions d JOIN rounds r USING (round) "
            "WHERE d.time >= ? ORDER BY d.time, d.rowid", (since,)
        )  # fmt: skip
        for entry in found:
            entry.update(old=json.loads(entry["old"]), new=json.loads(entry["new"]))
        return found

    def jobs_since(self, since: float) -> list[JobRecord]:
        """Records of jobs that had not ended at ``since``, in order of arrival."""
        rows = self._query("SELECT record FROM jobs WHERE ended IS NULL OR ended >= ?", (since,))
        return sorted((_record(text) for (text,) in rows), key=lambda r: (r.arrival, r.job_id))

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
            entry.update(old=json.loads(entry["old"]), new=json.loads(entry["new"]))
        return sorted(events + decisions + writes, key=lambda e: (e["time"], "event" not in e, "command" in e))

    def wait(self, job_id: str) -> dict[str, Any] | None:
        for number, text in self._query("SELECT round, record FROM waits WHERE job_id = ?", (job_id,)):
            return {"round": number, **json.loads(text)}
        return None

    def waits(self) -> dict[str, dict[str, Any]]:
        return {job: json.loads(text) for job, text in self._query("SELECT job_id, record FROM waits")}

    def prices(self) -> dict[tuple[str, str], float]:
        return {(n, t): p for n, t, p in self._query("SELECT node, gpu_type, price FROM prices")}

    def job(self, job_id: str) -> JobRecord | None:
        for (text,) in self._query("SELECT record FROM jobs WHERE job_id = ?", (job_id,)):
            return _record(text)
        return None

    def _rows(self, sql: str, args: tuple[Any, ...] = ()) -> list[dict[str, Any]]:
        try:
            cursor = self._db.execute(sql, args)
            names = [c[0] for c in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor]
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the journal {self.path}: {error}") from None

    def _query(self, sql: str, args: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
        try:
            return self._db.execute(sql, args).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"cannot read the journal {self.path}: {error}") from None
