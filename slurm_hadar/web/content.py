"""What each page says, as plain data: the same for the pages and for their JSON. Lists of jobs: ``lists``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from slurm_hadar.config import Config
from slurm_hadar.controller.answers.lines import Line
from slurm_hadar.controller.answers.savings import savings
from slurm_hadar.controller.answers.view import (
    NodeView,
    beat,
    job_view,
    recorded_lines,
    recorded_nodes,
    said,
    type_use,
)
from slurm_hadar.controller.journal import Reader, Run
from slurm_hadar.controller.observe.company import part_of_gpu
from slurm_hadar.names import by_number
from slurm_hadar.web.colours import by_job, by_user, spread
from slurm_hadar.web.windows import Window, window

__all__ = ["health", "job", "node", "number", "overview", "prices", "status", "timeline"]

NODES_PER_PAGE = 24
_POINTS = 240
_SAMPLES = 60
_STRETCHES = 40  # of the time that is shown
_MOST_ENTRIES = 400
_MOST_RUNS = 50


def status(journal: Reader, config: Config, now: float) -> dict[str, Any]:
    """When the controller was last heard of."""
    return asdict(beat(journal, config, now))


def health(journal: Reader, config: Config, now: float) -> dict[str, Any]:
    """For a monitoring system: the journal can be read, and whether the controller goes on."""
    last = beat(journal, config, now)
    return {
        "status": "ok",
        "controller": "alive" if last.alive else "silent",
        "last_round_age_s": last.age_s,
        "missed_rounds": last.missed,
    }


def number(text: str | None, default: int) -> int:
    """Of at most nine digits: Python refuses to read thousands of them, and SQLite to count so far."""
    return int(text) if text and len(text) <= 9 and text.isascii() and text.isdigit() and int(text) else default


def overview(journal: Reader, query: Mapping[str, str], config: Config, now: float) -> dict[str, Any]:
    """The cluster by GPU type, its jobs in figures, what is gained, and the last decisions. ``query``: ``span``, and
    ``colour``, which is ``user`` or ``job``."""
    lines = recorded_lines(journal.queue_holding())
    nodes = recorded_nodes(journal, lines)
    types = [{**asdict(use), "free": use.free, "nodes": []} for use in type_use(nodes)]
    for held in nodes:
        for entry in types:
            if entry["gpu_type"] in held.gpus:
                entry["nodes"].append(_node(held, entry["gpu_type"]))
    done, looked = savings(journal, now)
    by = _colour_by(query)
    return {
        "status": status(journal, config, now), "types": types, "jobs": _holders(lines, by),
        "colour": by, "states": journal.queue_counts("state"), "oldest_wait": journal.oldest_wait(),
        "trend": _trend(journal, window(journal, query, now)), "savings": done, "shadow": looked,
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


def _colour_by(query: Mapping[str, str]) -> str:
    return "user" if query.get("colour") == "user" else "job"


def _holders(lines: Sequence[Line], by: str) -> dict[str, dict[str, Any]]:
    """The jobs that hold GPUs, each with the number of its colour. The same on every page: older jobs choose first."""
    order = {name: place for place, name in enumerate(sorted({n for x in lines for n in x.held or {}}, key=by_number))}
    ranked = sorted(lines, key=lambda line: by_number(line.job_id))
    if by == "user":
        names = sorted({line.user for line in ranked})
        users = spread((name, by_user(name), ()) for name in names)
        colours = {line.job_id: users[line.user] for line in ranked}
    else:
        colours = spread((x.job_id, by_job(x.job_id), [order[n] for n in x.held or {}]) for x in ranked)
    return {
        line.job_id: {
            "user": line.user,
            "name": line.name,
            "state": line.state,
            "started": line.started,
            "steered": line.tier != "pinned",
            "gpus": line.gpus,
            "gpus_held": line.gpus * part_of_gpu(line.shares),
            "steps_per_s": line.steps_per_s,
            "shares": line.shares,
            "colour": colours[line.job_id],
        }
        for line in ranked
    }


def _trend(journal: Reader, shown: Window) -> dict[str, Any]:
    """Samples of the rounds: jobs, how many of them ran, and GPUs of each type as [in use, all]."""
    step_s = shown.length_s / _SAMPLES
    points = [
        {"time": r["time"], "jobs": r["jobs"], "running": r["running"], "use": r.get("use") or {}}
        for r in journal.rounds_sampled(shown.since, step_s, _SAMPLES + 1)
        if not r["skipped"]
    ]
    return {**asdict(shown), "step_s": step_s, "points": points}


def job(journal: Reader, job_id: str) -> dict[str, Any] | None:
    """All that is known of one job, the latest part of a long history; None if it was never heard of."""
    found = job_view(journal, job_id)
    if found is None:
        return None
    entries = found["history"]
    return {**found, "history": entries[-_MOST_ENTRIES:], "older": max(0, len(entries) - _MOST_ENTRIES)}


def timeline(journal: Reader, query: Mapping[str, str], now: float) -> dict[str, Any]:
    """Who ran where: ``span`` (1h, 6h, 1d, 7d), ``type``, ``colour``, ``page`` of the nodes."""
    shown = window(journal, query, now)
    holding = recorded_lines(journal.queue_holding())
    nodes = recorded_nodes(journal, holding)
    types = sorted({t for n in nodes for t in n.gpus})
    chosen = query.get("type", "")
    lanes = sorted(
        ((t, n.name, count) for n in nodes for t, count in n.gpus.items() if chosen in ("", t)),
        key=lambda lane: (lane[0], by_number(lane[1])),
    )
    pages, page = max(1, -(-len(lanes) // NODES_PER_PAGE)), number(query.get("page"), 1)
    lanes = lanes[(page - 1) * NODES_PER_PAGE : page * NODES_PER_PAGE]
    by = _colour_by(query)
    places = [(name, t) for t, name, _ in lanes]
    bars = _bars(journal, _holders(holding, by), by, journal.runs_since(shown.since), places, shown)
    return {**asdict(shown), "types": types, "type": chosen, "colour": by, "page": page, "pages": pages,
            "lanes": [{"node": name, "gpu_type": t, "gpus": n} for t, name, n in lanes], "runs": bars}  # fmt: skip


def _bars(
    journal: Reader,
    holders: Mapping[str, Mapping[str, Any]],
    by: str,
    runs: Iterable[Run],
    lanes: Sequence[tuple[str, str]],
    shown: Window,
) -> list[dict[str, Any]]:
    """One entry for each run on each of these lanes, (node, GPU type), in colours ``by`` job or user. ``holders`` are
    :func:`_holders`, who have the colour that they have on every page."""
    shown_lanes = set(lanes)
    found: list[dict[str, Any]] = [
        {
            "job_id": run.job_id,
            "began": run.began,
            "ended": run.ended,
            "node": node,
            "gpu_type": gpu_type,
            "count": count,
            "steered": run.steered,
        }
        for run in runs
        for node, gpu_type, count in run.held.items()
        if (node, gpu_type) in shown_lanes
    ]
    users = journal.users_of({bar["job_id"] for bar in found})
    if by == "user":
        kept = {holder["user"]: holder["colour"] for holder in holders.values()}
        by_name = spread([(user, by_user(user), ()) for user in [*kept, *sorted(set(users.values()))]], kept)
        colours = {job_id: by_name[user] for job_id, user in users.items()}
    else:
        kept = {job_id: holder["colour"] for job_id, holder in holders.items()}
        places = _places(found, lanes, shown)
        colours = spread([(job_id, by_job(job_id), where) for job_id, where in places.items()], kept)
    return [{**bar, "user": users.get(bar["job_id"], ""), "colour": colours.get(bar["job_id"], 0)} for bar in found]


def _places(bars: Iterable[Mapping[str, Any]], lanes: Sequence[tuple[str, str]], shown: Window) -> dict[str, set[int]]:
    """Where each job's bars are, for their colours: near is what is near in time, on the same lane."""
    first = {lane: 2 * _STRETCHES * index for index, lane in enumerate(lanes)}
    found: dict[str, set[int]] = {}
    for bar in bars:
        began, ended = (
            int((moment - shown.since) / shown.length_s * _STRETCHES)
            for moment in (max(bar["began"], shown.since), min(bar["ended"] or shown.until, shown.until))
        )
        lane = first[bar["node"], bar["gpu_type"]]
        found.setdefault(bar["job_id"], set()).update(range(lane + began, lane + ended + 1))
    return found


def node(journal: Reader, name: str, query: Mapping[str, str], now: float) -> dict[str, Any] | None:
    """One node: its state, what of it is in use, by whom, and who was there before; None if there is none of that
    name. ``query``: ``span`` and ``colour``."""
    record = journal.node_record(name)
    if record is None:
        return None
    shown = window(journal, query, now)
    holding, by = recorded_lines(journal.queue_holding()), _colour_by(query)
    (view,) = [n for n in recorded_nodes(journal, holding) if n.name == name]
    runs = journal.runs_on(name, shown.since)
    lanes = [{"node": name, "gpu_type": t, "gpus": n} for t, n in sorted(view.gpus.items())]
    everyone = _holders(holding, by)
    return {
        **asdict(shown), "node": name, "available": view.available, "state": view.state, "reason": view.reason,
        "partitions": record.get("partitions") or [], "cpus": record.get("cpus"),
        "memory_bytes": record.get("memory_bytes"), "colour": by,
        "types": [{"gpu_type": t, **_node(view, t)} for t in sorted(view.gpus)],
        "jobs": {line.job_id: everyone[line.job_id] for line in holding if name in (line.held or {})}, "lanes": lanes,
        "runs": _bars(journal, everyone, by, runs, [(name, t) for t in sorted(view.gpus)], shown),
        "latest": [
            {"job_id": r.job_id, "began": r.began, "ended": r.ended, "gpus": sum(dict(r.held.as_dict()[name]).values())}
            for r in reversed(runs[-_MOST_RUNS:])
        ],
    }  # fmt: skip


def prices(journal: Reader, query: Mapping[str, str], now: float) -> dict[str, Any]:
    """What a GPU of each type costs and has cost: ``span`` (1h, 6h, 1d, 7d)."""
    shown = window(journal, query, now)
    series: dict[str, list[dict[str, float]]] = {}
    for row in journal.price_history(shown.since, shown.length_s / _POINTS):
        series.setdefault(row.pop("gpu_type"), []).append(row)
    return {**asdict(shown), "series": series, "now": _latest(journal.prices())}


def _latest(by_node: Mapping[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    by_type: dict[str, list[float]] = {}
    for (_, gpu_type), price in by_node.items():
        if math.isfinite(price):
            by_type.setdefault(gpu_type, []).append(price)
    return {t: {"low": min(p), "mean": _mean(p), "high": max(p), "nodes": len(p)} for t, p in sorted(by_type.items())}


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)
