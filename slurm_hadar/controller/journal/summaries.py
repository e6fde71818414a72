"""What pages ask of a journal: parts, sums and samples of it, never all of it."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from slurm_hadar.controller.journal.records import JobRecord, Run, placement_from_json
from slurm_hadar.controller.journal.salvage import row_object, row_record, row_round
from slurm_hadar.model import Placement

__all__ = ["ENDED_SEARCHED", "MOST_GROUPS", "Summaries", "row_placement", "run_rows"]

#: Among so many ended jobs, the newest ones, is searched for those of a user.
ENDED_SEARCHED = 5000
MOST_GROUPS = 500
# Waiting tasks of an array that are alike have one and the same; everything else has one of its own.
_FOLD = (
    "CASE WHEN q.state = 'pending' AND instr(q.job_id, '_') THEN substr(q.job_id, 1, instr(q.job_id, '_')) || "
    "json_array(q.gpus, q.types, q.size, q.restarts, "
    "CASE WHEN json_valid(w.record) THEN json_extract(w.record, '$.tier') END) ELSE q.job_id END"
)
# What a job has of a GPU that it shares, as part_of_gpu of controller/observe/company.py; 1 of a whole one.
_PART = (
    "iif(json_valid(shares), coalesce(json_extract(shares, '$.turns'), "
    "1.0 / (1 + coalesce(json_array_length(shares, '$.with'), 0))), 1)"
)


def run_rows(rows: Iterable[tuple[Any, ...]]) -> list[Run]:
    """Runs out of their rows, without damaged ones."""
    return [
        Run(job_id, began, ended, placement, bool(steered))
        for job_id, began, ended, held, steered in rows
        if (placement := row_placement(held)) is not None
    ]


def row_placement(text: str) -> Placement | None:
    """The placement of a row; None if it is damaged."""
    try:
        return placement_from_json(text)
    except (AttributeError, TypeError, ValueError):
        row_object(text)  # which says so
        return None


class Summaries:
    """Questions beside those of :class:`slurm_hadar.controller.journal.Reader`, which asks them."""

    if TYPE_CHECKING:

        def _rows(self, sql: str, args: tuple[Any, ...] = ()) -> list[dict[str, Any]]: ...
        def _query(self, sql: str, args: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]: ...

    def first_round(self) -> float | None:
        """When the oldest round that is kept began, in epoch seconds."""
        first: float | None = self._query("SELECT min(time) FROM rounds")[0][0]
        return first

    def rounds_sampled(self, since: float, step_s: float, steps: int) -> list[dict[str, Any]]:
        """The last round in each of ``steps`` stretches of ``step_s`` seconds from ``since`` (epoch seconds) on; none
        for a stretch without. It costs as much however many rounds there were."""
        rows = self._query(
            "WITH RECURSIVE part(low) AS (VALUES (?) UNION ALL SELECT low + ? FROM part LIMIT ?) SELECT "
            "(SELECT record FROM rounds WHERE time >= low AND time < low + ? ORDER BY time DESC LIMIT 1) FROM part",
            (since, step_s, steps, step_s),
        )
        return [content for (text,) in rows if text and (content := row_round(text)) is not None]

    def oldest_wait(self) -> dict[str, Any] | None:
        """``job_id``, ``user`` and ``arrival`` of the steered job that has waited longest. Those left to Slurm do not
        count: one that its owner holds would be it for ever."""
        rows = self._rows(
            "SELECT q.job_id, q.user, q.arrival FROM (SELECT job_id FROM queue WHERE state = 'pending' "
            "ORDER BY arrival LIMIT 2000) AS oldest CROSS JOIN queue q USING (job_id) JOIN waits w USING (job_id) "
            "WHERE iif(json_valid(w.record), json_extract(w.record, '$.tier'), '') != 'pinned' LIMIT 1"
        )
        return rows[0] if rows else None

    def queue_groups(self, column: str) -> list[dict[str, Any]]:
        """By ``user`` or ``partition`` (as ``name``): jobs that hold GPUs (``running``, ``gpus``: of one that several
        share each has a part), that wait
        (``waiting``, ``wanted`` GPUs) and when the oldest of these came; whoever holds most comes first, and the last
        of more than :data:`MOST_GROUPS` are left out."""
        if column not in ("user", "partition"):
            raise ValueError(f"jobs are not grouped by {column}")
        return self._rows(
            f"SELECT {column} AS name, sum(held != '{{}}') AS running, "
            f"total(iif(held != '{{}}', gpus * {_PART}, 0)) AS gpus, "
            "sum(state = 'pending') AS waiting, total(iif(state = 'pending', gpus, 0)) AS wanted, "
            "min(iif(state = 'pending', arrival, NULL)) AS oldest FROM queue GROUP BY 1 "
            "ORDER BY gpus DESC, wanted DESC, name LIMIT ?",
            (MOST_GROUPS,),
        )

    def _folded(
        self, condition: str, args: tuple[str, ...], keys: str, limit: int, offset: int
    ) -> tuple[list[dict[str, Any]], int]:
        # SQLite takes what is not summed up from the row with the lowest number, if that is the only min or max
        rows = self._rows(
            "SELECT q.*, w.record AS wait, chosen.tasks, chosen.arrivals, chosen.lines FROM (SELECT q.job_id, "
            "min(q.number) AS number, group_concat(q.arrival) AS arrivals, iif(count(*) > 1, "
            "group_concat(substr(q.job_id, instr(q.job_id, '_') + 1)), NULL) AS tasks, count(*) OVER () AS lines "
            f"FROM queue q LEFT JOIN waits w USING (job_id) WHERE {condition} GROUP BY {_FOLD} "
            f"ORDER BY {keys}, number LIMIT ? OFFSET ?) AS chosen "
            "CROSS JOIN queue q USING (job_id) LEFT JOIN waits w USING (job_id)",
            (*args, limit, offset),
        )
        for row in rows:
            arrivals = row.pop("arrivals")
            if row["tasks"] is not None:
                row["arrival"] = min(map(float, arrivals.split(",")))
        return rows, rows[0]["lines"] if rows else 0

    def ended_page(self, user: str = "", final: str = "", limit: int = 100, offset: int = 0) -> list[JobRecord]:
        """Records of jobs that are over, the last ones first, of ``user`` and with that ``final`` state; of those only
        the last :data:`ENDED_SEARCHED` are searched."""
        # as the record has it: what stands in a name there has its quotation marks escaped
        wanted = [f'"{key}":{json.dumps(value)}' for key, value in (("user", user), ("final", final)) if value]
        found = "SELECT ended, record FROM jobs WHERE ended IS NOT NULL ORDER BY ended DESC LIMIT ?"
        rows = self._query(
            f"SELECT record FROM ({found}) WHERE {' AND '.join(['1', *('instr(record, ?)' for _ in wanted)])} "
            "ORDER BY ended DESC LIMIT ? OFFSET ?",
            (ENDED_SEARCHED, *wanted, limit, offset),
        )
        return [record for (text,) in rows if (record := row_record(JobRecord, text)) is not None]

    def node_record(self, node: str) -> dict[str, Any] | None:
        """What the last round saw of a node; None if there is none of that name."""
        for (text,) in self._query("SELECT record FROM nodes WHERE node = ?", (node,)):
            return row_object(text)
        return None

    def node_records(self) -> dict[str, dict[str, Any]]:
        """{node: what the last round saw of it}."""
        rows = self._query("SELECT node, record FROM nodes")
        return {node: content for node, text in rows if (content := row_object(text)) is not None}

    def runs_on(self, node: str, since: float, limit: int = 200) -> list[Run]:
        """Runs on a node that went on at ``since`` or later, the latest ones if there are more than ``limit``; oldest
        first."""
        rows = self._query(
            "SELECT * FROM runs WHERE (ended IS NULL OR ended >= ?) AND instr(held, ?) ORDER BY began DESC LIMIT ?",
            (since, f"{json.dumps(node)}:", limit),
        )
        return run_rows(reversed(rows))

    def users_of(self, job_ids: Collection[str]) -> dict[str, str]:
        """{job: user}, as far as they are remembered."""
        rows = self._query(
            "SELECT job_id, iif(json_valid(record), json_extract(record, '$.user'), '') FROM jobs WHERE job_id IN "
            "(SELECT value FROM json_each(?))",
            (json.dumps(list(job_ids)),),
        )
        return {job_id: user for job_id, user in rows if isinstance(user, str)}
