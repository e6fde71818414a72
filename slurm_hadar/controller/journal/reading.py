"""What can be asked of a journal."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurm_hadar.controller.journal.records import JobRecord, PastJob, Run
from slurm_hadar.controller.journal.salvage import numbers_only, row_object, row_record, row_round
from slurm_hadar.controller.journal.summaries import Summaries, row_placement, run_rows
from slurm_hadar.errors import StoreError
from slurm_hadar.model import Placement

__all__ = ["SORTS", "Reader"]

#: What the queue can be sorted by, and the columns that this means.
SORTS = {
    "job": ("q.number",),
    "user": ("q.user",),
    "name": ("q.name",),
    "partition": ("q.partition",),
    "state": ("q.state = 'pending'", "q.state != 'running'", "q.arrival"),
    "gpus": ("q.gpus",),
    "where": ("q.types", "q.place"),
    "speed": ("q.steps_per_s",),
    "done": ("q.done",),
    "age": ("-q.arrival",),
    "price": ("w.price",),
    "start": ("w.starts",),
}


def _conditions(where: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The filters of :meth:`Reader.queue_page` in SQL, and their values."""
    clauses, args = ["1"], []
    for key in ("user", "partition", "state"):
        if where.get(key):
            clauses.append(f"q.{key} = ?")
            args.append(where[key])
    if where.get("types"):
        clauses.append("instr('+' || q.types || '+', ?)")
        args.append(f"+{where['types']}+")
    if where.get("text"):
        clauses.append("(instr(lower(q.name), lower(?)) OR q.job_id = ? OR q.job_id LIKE ? || '\\_%' ESCAPE '\\')")
        args += [where["text"]] * 3
    return " AND ".join(clauses), tuple(args)


def _asked(where: Mapping[str, str], sort: str, descending: bool) -> tuple[str, tuple[str, ...], str]:
    """Filters and order of the queue in SQL, with the filters' values."""
    condition, args = _conditions(where)
    order = "DESC" if descending else "ASC"
    return condition, args, ", ".join(f"{key} {order} NULLS LAST" for key in SORTS[sort])


class Reader(Summaries):
    """The questions. Every method raises StoreError if the database cannot be read."""

    path: Path | str
    _db: sqlite3.Connection

    def close(self) -> None:
        self._db.close()

    # What is remembered of jobs

    def load_jobs(self) -> dict[str, JobRecord]:
        """Records of jobs not known to have ended; a damaged one is left out, as if its job were new."""
        rows = self._query("SELECT record FROM jobs WHERE ended IS NULL")
        return {r.job_id: r for (text,) in rows if (r := row_record(JobRecord, text)) is not None}

    def tasks(self, array: str) -> list[str]:
        """Of an array, those that are known, ended or not; none of an earlier one of that number."""
        if not array.isdigit():
            return []
        tasks = self._query(
            "SELECT job_id FROM jobs WHERE job_id GLOB ? AND (ended IS NULL OR ended >= ?)",
            (f"{array}_[0-9]*", max(self._latest("arrival", array), self._latest("arrival", f"{array}_[0-9]*"))),
        )
        return sorted((task for (task,) in tasks), key=lambda task: int(task.partition("_")[2]))

    def _since(self, job_id: str) -> float:
        """When a job of this id was first seen, or an array of it submitted: what is older is another's, whose number
        was used again. 0 where nobody knows."""
        return max(self._latest("first_seen", job_id), self._latest("arrival", f"{job_id}_[0-9]*"))

    def _latest(self, moment: str, jobs: str) -> float:
        """The latest such moment of the records of these jobs."""
        seen = f"iif(json_valid(record), json_extract(record, '$.{moment}'), 0)"
        found = self._query(f"SELECT max({seen}) FROM jobs WHERE job_id GLOB ?", (jobs,))[0][0]
        return float(found) if isinstance(found, int | float) else 0.0

    def last_ended(self, most: int) -> list[PastJob]:
        """The jobs that ended last, the last of them last; damaged ones are left out."""
        rows = self._query(
            "SELECT json_extract(record, '$.user', '$.model', '$.name', '$.final', '$.resumable', '$.start_s') "
            "FROM jobs WHERE ended IS NOT NULL AND json_valid(record) ORDER BY ended DESC LIMIT ?",
            (most,),
        )
        return [past for (text,) in reversed(rows) if (past := PastJob.read(json.loads(text))) is not None]

    def usage(self) -> dict[tuple[str, str, str], tuple[float, float]]:
        """{(user, account, GPU type): (GPU-seconds as they counted at that time, epoch seconds)}."""
        rows = self._query("SELECT user, account, gpu_type, gpu_s, updated FROM usage")
        return numbers_only({(user, account, gpu): tuple(values) for user, account, gpu, *values in rows})

    def forks(self) -> dict[str, tuple[int, int, float | None, int | None]]:
        """{forked job: (number of its newest consolidation, steps in it, total, the copy that ends the script)}."""
        rows = self._query("SELECT parent, number, steps, total, closer FROM forks")
        return numbers_only({parent: tuple(rest) for parent, *rest in rows})

    def trainings(self) -> list[dict[str, Any]]:
        """What became of predictors' last 20 trainings, the newest first: began, ended, version, predictor, detail."""
        return self._rows("SELECT * FROM trainings ORDER BY began DESC LIMIT 20")

    def load_memory(self, owner: str) -> str | None:
        """What :meth:`save_memory` kept for ``owner``; None if another one's was kept since."""
        rows = self._query("SELECT content FROM memory WHERE owner = ?", (owner,))
        return rows[0][0] if rows else None

    # What people ask

    def rounds(self, last: int = 20) -> list[dict[str, Any]]:
        """The newest first, each with its number as ``round``; what cannot be read is left out."""
        rows = self._query("SELECT round, record FROM rounds ORDER BY round DESC LIMIT ?", (last,))
        return [{"round": number, **content} for number, text in rows if (content := row_round(text)) is not None]

    def rounds_since(self, since: float) -> list[dict[str, Any]]:
        """Rounds from ``since`` (epoch seconds) on, oldest first."""
        rows = self._query("SELECT round, record FROM rounds WHERE time >= ? ORDER BY round", (since,))
        return [{"round": number, **content} for number, text in rows if (content := row_round(text)) is not None]

    def decisions_since(self, since: float) -> list[dict[str, Any]]:
        """Decisions about all jobs from ``since`` on, oldest first, each with the ``mode`` of its round."""
        return self._decisions(
            "SELECT d.time, d.job_id, d.kind, d.old, d.new, d.why, r.mode FROM decisions d JOIN rounds r USING (round) "
            "WHERE d.time >= ? ORDER BY d.time, d.rowid",
            (since,),
        )

    def jobs_since(self, since: float) -> list[JobRecord]:
        """Records of jobs that had not ended at ``since``, in order of arrival."""
        rows = self._query("SELECT record FROM jobs WHERE ended IS NULL OR ended >= ?", (since,))
        records = [record for (text,) in rows if (record := row_record(JobRecord, text)) is not None]
        return sorted(records, key=lambda r: (r.arrival, r.job_id))

    def history(self, job_id: str) -> list[dict[str, Any]]:
        """What became of one job in order of time: events (``event``), decisions (``kind``, with the ``mode`` of the
        round: only those of mode act were carried out) and writes (``command``). A job that waits for the same kind of
        reason as before has one decision for that, and another of the last round where its words are others by now."""
        args = (job_id, self._since(job_id))
        events = self._rows("SELECT round, time, event, why FROM events WHERE job_id = ? AND time >= ?", args)
        decisions = self._decisions(
            "SELECT d.round, d.time, r.mode, kind, old, new, why, price, payoff FROM decisions d "
            "LEFT JOIN rounds r USING (round) WHERE job_id = ? AND d.time >= ? ORDER BY d.time, d.rowid",
            args,
        )
        told = "SELECT round, time, command, outcome, detail FROM writes WHERE job_id = ? AND time >= ?"
        writes = self._rows(told, args)
        decisions += self._waits_still(job_id, decisions[-1:])
        return sorted(events + decisions + writes, key=lambda e: (e["time"], "event" not in e, "command" in e))

    def _waits_still(self, job_id: str, last: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The reason of a job that goes on waiting, as of the last round, where that is not the one of its decision."""
        now = self.wait(job_id) if last and last[0]["kind"] == "wait" else None
        if (
            now is None
            or now.get("tier") == "pinned"
            or now["round"] == last[0]["round"]
            or now.get("why") == last[0]["why"]
        ):
            return []
        rows = self._rows("SELECT time, mode FROM rounds WHERE round = ?", (now["round"],))
        told = {key: now.get(key) for key in ("why", "price", "payoff")}
        return [{"round": now["round"], **row, "kind": "wait", "old": {}, "new": {}, **told} for row in rows]

    def last_news(self) -> dict[str, tuple[str, str, str, Placement, Placement]]:
        """Of each job in the queue the mode of the round that decided about it last, and :attr:`Decision.news` of that;
        a damaged one is left out."""
        rows = self._rows(
            "SELECT d.job_id, r.mode, d.kind, d.old, d.new, d.ground, max(d.rowid) FROM queue q "
            "JOIN decisions d USING (job_id) JOIN jobs j USING (job_id) JOIN rounds r USING (round) "
            "WHERE d.time >= iif(json_valid(j.record), ifnull(json_extract(j.record, '$.first_seen'), 0), 0) "
            "GROUP BY d.job_id"
        )
        read = ((row, row_placement(row["old"]), row_placement(row["new"])) for row in rows)
        return {
            row["job_id"]: (row["mode"], row["kind"], row["ground"], old, new)
            for row, old, new in read
            if old is not None and new is not None
        }

    def wait(self, job_id: str) -> dict[str, Any] | None:
        """Why a job waits, with the ``round`` that said so; None if nothing is known."""
        for number, text in self._query("SELECT round, record FROM waits WHERE job_id = ?", (job_id,)):
            return {"round": number, **content} if (content := row_object(text)) is not None else None
        return None

    def waits(self) -> dict[str, dict[str, Any]]:
        """{job: why it waits} of the last round that planned."""
        rows = self._query("SELECT job_id, record FROM waits")
        return {job: content for job, text in rows if (content := row_object(text)) is not None}

    def prices(self) -> dict[tuple[str, str], float]:
        """{(node, GPU type): price}, as last planned."""
        return {(n, t): p for n, t, p in self._query("SELECT node, gpu_type, price FROM prices")}

    def job(self, job_id: str) -> JobRecord | None:
        """What is remembered of a job; None if nothing is, or it cannot be read."""
        for (text,) in self._query("SELECT record FROM jobs WHERE job_id = ?", (job_id,)):
            return row_record(JobRecord, text)
        return None

    # What the last rounds saw

    def job_ids(self, prefix: str) -> list[str]:
        """Ids that begin with ``prefix``, the newest jobs first, 200 at the most."""
        begins = prefix.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        rows = self._query(
            "SELECT job_id FROM jobs WHERE job_id LIKE ? ESCAPE '\\' "
            "ORDER BY CAST(job_id AS INTEGER) DESC, job_id LIMIT 200",
            (begins,),
        )
        return [job_id for (job_id,) in rows]

    def queue_rows(self) -> list[tuple[Any, ...]]:
        """The table ``queue`` as it is."""
        return self._query("SELECT * FROM queue")

    def queue_page(
        self,
        where: Mapping[str, str] | None = None,
        sort: str = "state",
        descending: bool = False,
        limit: int = 100,
        offset: int = 0,
    ) -> tuple[list[dict[str, Any]], int]:
        """Some rows of the queue, each with the text of its ``wait`` (None = it does not wait), and how many there are
        in all. ``where`` filters by ``user``, ``partition``, ``state``, ``types`` (one GPU type that it holds or wants)
        and ``text`` (in its id or name); ``sort`` is one of :data:`SORTS`."""
        condition, args, keys = _asked(where or {}, sort, descending)
        total: int = self._query(f"SELECT count(*) FROM queue q WHERE {condition}", args)[0][0]
        # sorted by their keys alone, and only then looked up, since rows are wide; SQLite keeps the order of the left
        # side of a cross join
        rows = self._rows(
            "SELECT q.*, w.record AS wait FROM (SELECT q.job_id FROM queue q LEFT JOIN waits w USING (job_id) "
            f"WHERE {condition} ORDER BY {keys}, q.number LIMIT ? OFFSET ?) AS chosen "
            "CROSS JOIN queue q USING (job_id) LEFT JOIN waits w USING (job_id)",
            (*args, limit, offset),
        )
        return rows, total

    def queue_folded(
        self, where: Mapping[str, str], sort: str, descending: bool, limit: int, offset: int
    ) -> tuple[list[dict[str, Any]], int]:
        """As :meth:`queue_page`, with the waiting tasks of an array that are alike in one row, that of their first,
        whose ``tasks`` has the numbers of all (None = a job by itself) and ``arrival`` is the earliest of theirs."""
        return self._folded(*_asked(where, sort, descending), limit, offset)

    def queue_holding(self) -> list[dict[str, Any]]:
        """Rows of the jobs that hold GPUs, or are about to; ``wait`` tells which of them are left to Slurm."""
        return self._rows(
            "SELECT q.*, w.record AS wait FROM queue q LEFT JOIN waits w USING (job_id) WHERE q.held != '{}' "
            "ORDER BY q.number"
        )

    def queue_row(self, job_id: str) -> dict[str, Any] | None:
        """A job as the last round saw it, ``wait`` beside it as JSON; None if it was not there."""
        rows = self._rows(
            "SELECT q.*, w.record AS wait FROM queue q LEFT JOIN waits w USING (job_id) WHERE q.job_id = ?", (job_id,)
        )
        return rows[0] if rows else None

    def queue_tasks(self, array_id: str) -> list[dict[str, Any]]:
        """Rows of the tasks of a job array."""
        return self._rows(
            "SELECT q.*, w.record AS wait FROM queue q LEFT JOIN waits w USING (job_id) "
            "WHERE q.job_id >= ? AND q.job_id < ? ORDER BY q.number",
            (f"{array_id}_", f"{array_id}`"),
        )

    def queue_counts(self, column: str) -> dict[str, int]:
        """How many jobs of the queue there are by ``user``, ``partition``, ``state`` or ``types``."""
        if column not in ("user", "partition", "state", "types"):
            raise ValueError(f"jobs are not counted by {column}")
        return dict(self._query(f"SELECT {column}, count(*) FROM queue GROUP BY 1 ORDER BY 1"))

    def node_texts(self) -> dict[str, str]:
        """{node: JSON of gpus, taken, available, state, reason, partitions}."""
        return dict(self._query("SELECT node, record FROM nodes ORDER BY node"))

    def speed_texts(self) -> dict[str, str]:
        """{workload: JSON of what is known of its speed on each GPU type}."""
        return dict(self._query("SELECT workload, record FROM speeds"))

    def speeds_of(self, workload: str) -> dict[str, dict[str, Any]]:
        """{GPU type: steps_per_s, spread, source, error, basis}; empty if nothing is known."""
        for (text,) in self._query("SELECT record FROM speeds WHERE workload = ?", (workload,)):
            return row_object(text) or {}
        return {}

    def open_runs(self) -> list[Run]:
        """Runs that go on as far as is known."""
        return run_rows(self._query("SELECT * FROM runs WHERE ended IS NULL"))

    def runs_since(self, since: float, limit: int = 3000) -> list[Run]:
        """Runs that went on at ``since`` or later, the latest ones if there are more than ``limit``; oldest first."""
        rows = self._query(
            "SELECT * FROM runs WHERE ended IS NULL OR ended >= ? ORDER BY began DESC LIMIT ?", (since, limit)
        )
        return run_rows(reversed(rows))

    def runs_of(self, job_id: str) -> list[Run]:
        """None of an earlier job of that number."""
        record = self.job(job_id)
        args = (job_id, record.arrival if record else 0.0)
        return run_rows(self._query("SELECT * FROM runs WHERE job_id = ? AND began >= ? ORDER BY began", args))

    def last_gain(self) -> float | None:
        """When the last round was counted in ``gains``, in epoch seconds."""
        latest: float | None = self._query("SELECT max(time) FROM gains")[0][0]
        return latest

    def gains(self, since: float = 0.0) -> list[dict[str, Any]]:
        """By mode, what the rounds from ``since`` (epoch seconds) on add up to: ``since``, ``rounds``, and the sums of
        ``gpu_s``, ``blind_s``, ``measured_s`` and ``unknown_s``; ``worth`` and ``planned`` are those of rounds with a
        plan."""
        return self._rows(
            "SELECT mode, min(time) AS since, count(*) AS rounds, sum(gpu_s) AS gpu_s, sum(blind_s) AS blind_s, "
            "sum(measured_s) AS measured_s, sum(unknown_s) AS unknown_s, "
            "sum(iif(planned IS NULL, 0, worth)) AS worth, total(planned) AS planned FROM gains "
            "WHERE time >= ? GROUP BY mode",
            (since,),
        )

    def price_history(self, since: float, step_s: float) -> list[dict[str, Any]]:
        """Prices per GPU type from ``since`` on, one row for each ``step_s`` seconds: ``time`` (the middle of them),
        ``gpu_type``, ``low`` and ``high`` over nodes and rounds, ``mean`` over both."""
        return self._rows(
            "SELECT ? + (CAST((time - ?) / ? AS INTEGER) + 0.5) * ? AS time, gpu_type, min(low) AS low, "
            "avg(mean) AS mean, max(high) AS high FROM price_history WHERE time >= ? GROUP BY 1, 2 ORDER BY 1",
            (since, since, step_s, step_s, since),
        )

    def last_moves(self) -> list[dict[str, Any]]:
        """The last ten starts, moves and stops that were decided, the newest first, with the ``mode`` of the round."""
        return self._decisions(
            "SELECT d.round, d.time, d.job_id, d.kind, d.old, d.new, d.why, d.price, d.payoff, r.mode FROM decisions d "
            "LEFT JOIN rounds r USING (round) WHERE d.kind IN ('start', 'move', 'preempt') "
            "ORDER BY d.time DESC, d.rowid DESC LIMIT 10",
            (),
        )

    def _decisions(self, sql: str, args: tuple[Any, ...]) -> list[dict[str, Any]]:
        """Rows with the placements of before and after."""
        found = self._rows(sql, args)
        for entry in found:
            entry.update(old=row_object(entry["old"]) or {}, new=row_object(entry["new"]) or {})
        return found

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
