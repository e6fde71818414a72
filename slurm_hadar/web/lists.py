"""What the pages of many jobs, users and partitions say, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from slurm_hadar.controller.answers.lines import Line, array_text
from slurm_hadar.controller.answers.view import recorded_lines, recorded_nodes, type_use
from slurm_hadar.controller.journal import SORTS, Reader
from slurm_hadar.controller.observe.company import part_of_gpu
from slurm_hadar.controller.observe.usage import decayed
from slurm_hadar.web.content import number

__all__ = ["MOST_PER_PAGE", "ended", "partitions", "queue", "users"]

PER_PAGE, MOST_PER_PAGE = 100, 1000
#: What is kept of a job that is over and shown in lists.
_ENDED = ("job_id", "user", "name", "workers", "arrival", "ended", "final", "attained_s", "others_s", "had_s",
          "moves", "restarts", "steps", "total_steps", "lost_steps", "ran_s")  # fmt: skip


def queue(journal: Reader, query: Mapping[str, str], folds: bool) -> dict[str, Any]:
    """One page of the queue. ``query``: ``user``, ``partition``, ``state``, ``type``, ``text``, ``sort``, ``desc``,
    ``page``, ``per_page``; whatever makes no sense counts as not said. ``folds``: waiting tasks of an array that are
    alike share a line, unless ``tasks`` is 1."""
    where = {key: query.get(key, "") for key in ("user", "partition", "state", "text")}
    where["types"] = query.get("type", "")
    sort = query.get("sort", "")
    sort = sort if sort in SORTS else "state"
    descending = query.get("desc") == "1"
    per_page = min(number(query.get("per_page"), PER_PAGE), MOST_PER_PAGE)
    page = number(query.get("page"), 1)
    folds = folds and query.get("tasks") != "1"
    ask = journal.queue_folded if folds else journal.queue_page
    rows, total = ask(where, sort, descending, per_page, (page - 1) * per_page)
    types: dict[str, int] = {}
    for text, count in journal.queue_counts("types").items():
        for gpu_type in filter(None, text.split("+")):
            types[gpu_type] = types.get(gpu_type, 0) + count
    return {
        "jobs": [_entry(line, row.get("tasks")) for line, row in zip(recorded_lines(rows), rows, strict=True)],
        "total": total, "folds": folds, "page": page, "per_page": per_page, "pages": max(1, -(-total // per_page)),
        "sort": sort, "desc": descending,
        "filters": {k: where["types" if k == "type" else k] for k in ("user", "partition", "state", "type", "text")},
        "choices": {"type": types, **{key: journal.queue_counts(key) for key in ("user", "partition", "state")}},
    }  # fmt: skip


def _entry(line: Line, tasks: str | None) -> dict[str, Any]:
    """``tasks``: the numbers of the tasks that share this line, None = it is one job's own."""
    if tasks is None:
        return {**line.as_dict(), "tasks": 1}
    numbers = [int(text) for text in tasks.split(",") if text.isdecimal() and len(text) < 20]
    folded = replace(line, job_id=array_text(line.job_id.partition("_")[0], numbers))
    return {**folded.as_dict(), "tasks": len(numbers)}


def ended(journal: Reader, query: Mapping[str, str]) -> dict[str, Any]:
    """Jobs that are over, the last ones first. ``query``: ``user``, ``final``, ``page``, ``per_page``."""
    user, final = query.get("user", ""), query.get("final", "")
    per_page = min(number(query.get("per_page"), PER_PAGE), MOST_PER_PAGE)
    page = number(query.get("page"), 1)
    records = journal.ended_page(user, final, per_page + 1, (page - 1) * per_page)
    jobs = []
    for record in records[:per_page]:
        whole = record.as_dict()
        jobs.append({key: whole[key] for key in _ENDED})
    return {"jobs": jobs, "user": user, "final": final, "page": page, "per_page": per_page,
            "more": len(records) > per_page}  # fmt: skip


def users(journal: Reader, half_life_s: float, now: float) -> dict[str, Any]:
    """Who has how much: now, by GPU type (of a GPU that several share each has a part), and lately (GPU-seconds that
    count half after each ``half_life_s``)."""
    rows = {row["name"]: row for row in journal.queue_groups("user")}
    lines = recorded_lines(journal.queue_holding())
    holds: dict[str, dict[str, float]] = {}
    for line in lines:
        for types in (line.held or {}).values():
            mine = holds.setdefault(line.user, {})
            for gpu_type, count in types.items():
                mine[gpu_type] = mine.get(gpu_type, 0) + count * part_of_gpu(line.shares)
    lately: dict[str, float] = {}
    for (user, _, _), (gpu_s, updated) in journal.usage().items():
        lately[user] = lately.get(user, 0.0) + decayed(gpu_s, now - updated, half_life_s)
    found = [{**row, "holds": holds.get(name, {}), "lately_gpu_s": lately.get(name, 0.0)} for name, row in rows.items()]
    return {
        "groups": found,
        "half_life_s": half_life_s,
        "gpus": sum(use.gpus for use in type_use(recorded_nodes(journal, lines))),
    }


def partitions(journal: Reader) -> dict[str, Any]:
    """Each partition's nodes, GPUs and jobs, as far as there are jobs in it or nodes with GPUs."""
    found = {row["name"]: {**row, "nodes": 0, "down": 0, "types": {}} for row in journal.queue_groups("partition")}
    records = journal.node_records()
    views = {view.name: view for view in recorded_nodes(journal)}
    for name, record in records.items():
        for partition in record.get("partitions") or []:
            entry = found.setdefault(
                partition,
                {
                    "name": partition,
                    "running": 0,
                    "gpus": 0,
                    "waiting": 0,
                    "wanted": 0,
                    "oldest": None,
                    "nodes": 0,
                    "down": 0,
                    "types": {},
                },
            )
            entry["nodes"] += 1
            entry["down"] += not views[name].available
            for use in type_use([views[name]]):
                used, total = entry["types"].get(use.gpu_type, (0, 0))
                entry["types"][use.gpu_type] = (used + use.used, total + use.gpus)
    return {"groups": [found[name] for name in sorted(found)]}
