"""What each page says, as plain data: the same for the pages and for their JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from slurm_hadar.config import Config
from slurm_hadar.controller.gains import saved, shadow
from slurm_hadar.controller.journal import SORTS, Reader
from slurm_hadar.controller.view import (
    NodeView,
    beat,
    by_number,
    job_view,
    recorded_lines,
    recorded_nodes,
    said,
    type_use,
)

__all__ = ["MOST_PER_PAGE", "health", "job", "overview", "prices", "queue", "status", "timeline"]

PER_PAGE, MOST_PER_PAGE = 100, 1000
NODES_PER_PAGE = 24
#: What pages can look back: {name in the address: (words, seconds)}
SPANS = {"6h": ("6 hours", 21_600.0), "1d": ("a day", 86_400.0), "7d": ("7 days", 604_800.0)}
_POINTS = 240
_MOST_ENTRIES = 400


def status(journal: Reader, config: Config, now: float) -> dict[str, Any]:
    """When the controller was last heard of."""
    return asdict(beat(journal, config, now))


def health(journal: Reader, config: Config, now: float) -> dict[str, Any]:
    """For a monitoring system: the journal can be read, and whether the controller goes on."""
    last = beat(journal, config, now)
    return {"status": "ok", "controller": "alive" if last.alive else "silent", "last_round_age_s": last.age_s}


def overview(journal: Reader, config: Config, now: float) -> dict[str, Any]:
    """The cluster by GPU type, its jobs in figures, what is gained, and the last decisions."""
    nodes = recorded_nodes(journal)
    types = [{**asdict(use), "free": use.free, "nodes": []} for use in type_use(nodes)]
    for node in nodes:
        for entry in types:
            if entry["gpu_type"] in node.gpus:
                entry["nodes"].append(_node(node, entry["gpu_type"]))
    gains = journal.gains()
    users = {row["job_id"]: row["user"] for row in journal.queue_holding()}
    return {
        "status": status(journal, config, now), "types": types, "holders": users,
        "states": journal.queue_counts("state"), "savings": saved(gains), "shadow": shadow(gains),
        "moves": [said(entry) for entry in journal.last_moves()],
    }  # fmt: skip


def _node(node: NodeView, gpu_type: str) -> dict[str, Any]:
    """A node's GPUs of one type, each with who holds it."""
    gpus: list[str | None] = []
    for job_id, held_type, count in node.holders:
        gpus += [job_id] * count if held_type == gpu_type else []
    gpus += ["other"] * node.others.get(gpu_type, 0)
    gpus += [None] * node.free(gpu_type)
    return {"node": node.name, "available": node.available, "state": node.state, "reason": node.reason, "gpus": gpus}


def queue(journal: Reader, query: Mapping[str, str]) -> dict[str, Any]:
    """One page of the queue. ``query``: ``user``, ``partition``, ``state``, ``type``, ``text``, ``sort``, ``desc``,
    ``page``, ``per_page``; whatever makes no sense counts as not said."""
    where = {key: query.get(key, "") for key in ("user", "partition", "state", "text")}
    where["types"] = query.get("type", "")
    sort = query.get("sort", "")
    sort = sort if sort in SORTS else "state"
    descending = query.get("desc") == "1"
    per_page = min(_number(query.get("per_page"), PER_PAGE), MOST_PER_PAGE)
    page = _number(query.get("page"), 1)
    rows, total = journal.queue_page(where, sort, descending, per_page, (page - 1) * per_page)
    types: dict[str, int] = {}
    for text, count in journal.queue_counts("types").items():
        for gpu_type in filter(None, text.split("+")):
            types[gpu_type] = types.get(gpu_type, 0) + count
    return {
        "jobs": [line.as_dict() for line in recorded_lines(rows)], "total": total, "page": page, "per_page": per_page,
        "pages": max(1, -(-total // per_page)), "sort": sort, "desc": descending,
        "filters": {k: where["types" if k == "type" else k] for k in ("user", "partition", "state", "type", "text")},
        "choices": {"type": types, **{key: journal.queue_counts(key) for key in ("user", "partition", "state")}},
    }  # fmt: skip


def _number(text: str | None, default: int) -> int:
    """Of at most nine digits: Python refuses to read thousands of them, and SQLite to count so far."""
    return int(text) if text and len(text) <= 9 and text.isascii() and text.isdigit() and int(text) else default


def job(journal: Reader, job_id: str) -> dict[str, Any] | None:
    """All that is known of one job, the latest part of a long history; None if it was never heard of."""
    found = job_view(journal, job_id)
    if found is None:
        return None
    entries = found["history"]
    return {**found, "history": entries[-_MOST_ENTRIES:], "older": max(0, len(entries) - _MOST_ENTRIES)}


def timeline(journal: Reader, query: Mapping[str, str], now: float) -> dict[str, Any]:
    """Who ran where: ``span`` (6h, 1d, 7d), ``type``, ``page`` of the nodes."""
    span = query.get("span", "")
    span = span if span in SPANS else "1d"
    since = now - SPANS[span][1]
    nodes = [(name, json.loads(text)["gpus"]) for name, text in journal.node_texts().items()]
    types = sorted({t for _, gpus in nodes for t in gpus})
    chosen = query.get("type", "")
    lanes = sorted(
        ((t, name, n) for name, gpus in nodes for t, n in gpus.items() if chosen in ("", t)),
        key=lambda lane: (lane[0], by_number(lane[1])),
    )
    pages, page = max(1, -(-len(lanes) // NODES_PER_PAGE)), _number(query.get("page"), 1)
    lanes = lanes[(page - 1) * NODES_PER_PAGE : page * NODES_PER_PAGE]
    shown = {(name, t) for t, name, _ in lanes}
    runs = [
        {"job_id": run.job_id, "began": run.began, "ended": run.ended, "node": node, "gpu_type": gpu_type,
         "count": count, "steered": run.steered}
        for run in journal.runs_since(since) for node, gpu_type, count in run.held.items() if (node, gpu_type) in shown
    ]  # fmt: skip
    return {"since": since, "until": now, "span": span, "types": types, "type": chosen, "page": page, "pages": pages,
            "lanes": [{"node": name, "gpu_type": t, "gpus": n} for t, name, n in lanes], "runs": runs}  # fmt: skip


def prices(journal: Reader, query: Mapping[str, str], now: float) -> dict[str, Any]:
    """What a GPU of each type costs and has cost: ``span`` (6h, 1d, 7d)."""
    span = query.get("span", "")
    span = span if span in SPANS else "1d"
    length = SPANS[span][1]
    series: dict[str, list[dict[str, float]]] = {}
    for row in journal.price_history(now - length, length / _POINTS):
        series.setdefault(row.pop("gpu_type"), []).append(row)
    return {"since": now - length, "until": now, "span": span, "series": series, "now": _latest(journal.prices())}


def _latest(by_node: Mapping[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    by_type: dict[str, list[float]] = {}
    for (_, gpu_type), price in by_node.items():
        if math.isfinite(price):
            by_type.setdefault(gpu_type, []).append(price)
    return {t: {"low": min(p), "mean": _mean(p), "high": max(p), "nodes": len(p)} for t, p in sorted(by_type.items())}


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
