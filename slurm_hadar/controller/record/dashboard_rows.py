"""The dashboard's rows, which each round leaves in the journal: queue, nodes, who ran where, prices over time, gains.

Only what changed since the round before is written: a dashboard must cost a quiet cluster nothing.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from slurm_hadar.controller.answers.lines import Line, line_of
from slurm_hadar.controller.cluster import Outcome
from slurm_hadar.controller.journal import DashboardChanges, Journal, Run, WriteOutcome
from slurm_hadar.controller.journal.gains import gain_of
from slurm_hadar.controller.observe.company import companies
from slurm_hadar.controller.observe.observer import Observation
from slurm_hadar.controller.safety.guard import Change
from slurm_hadar.model import Job, Node, Plan, Snapshot, Speed
from slurm_hadar.slurm.state import SlurmNode
from slurm_hadar.throughput.measurements import workload_key

__all__ = ["DashboardRows", "gpu_use", "workload_name"]

_Row = tuple[Any, ...]
_T = TypeVar("_T")
_MOST = 2**63 - 1  # that SQLite can count; users may ask for more


class DashboardRows:
    """Writes what changed from round to round; after a restart or a failed write, from what the journal has."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._recall()

    def _recall(self) -> None:
        journal, self._lost = self._journal, False
        self._queue = {row[0]: hash(row) for row in journal.queue_rows()}  # rows are many and large
        self._nodes = journal.node_texts()
        self._speeds = journal.speed_texts()
        self._runs = {run.job_id: run for run in journal.open_runs()}
        self._before = journal.last_gain()

    def update(
        self, mode: str, seen: Observation, plan: Plan, waits: Mapping[str, dict[str, Any]], outcome: Outcome
    ) -> None:
        """After a round: ``waits`` are those that the journal was given, ``outcome`` what was carried out."""
        if self._lost:
            self._recall()
        snapshot = seen.snapshot
        changes = DashboardChanges()
        acted = {c.job_id: c for c in outcome.changes} if outcome.acted else {}
        failed = {write.job_id for write in outcome.log if write.outcome is not WriteOutcome.OK}
        done = {job_id: change for job_id, change in acted.items() if job_id not in failed}
        queue: dict[str, int] = {}
        shared = companies(seen.raw.values())
        guests: dict[str, list[str]] = {}
        for change in done.values():
            if change.host is not None and change.new:
                guests.setdefault(change.host, []).append(change.job_id)
        for job in snapshot.jobs:
            line = _line(job, seen, waits, done.get(job.job_id), shared.get(job.job_id), guests)
            row = _row(line, job)
            queue[job.job_id] = hash(row)
            if self._queue.get(job.job_id) != queue[job.job_id]:
                changes.queue.append(row)
        changes.gone["queue"] = [job_id for job_id in self._queue if job_id not in queue]
        self._queue = queue
        shown = {node.name: node for node in seen.state.nodes}
        nodes = {node.name: _node_text(node, shown.get(node.name)) for node in snapshot.nodes}
        changes.nodes, changes.gone["nodes"] = _differing(self._nodes, nodes)
        self._nodes = nodes
        speeds = _speed_texts(snapshot)
        changes.speeds, changes.gone["speeds"] = _differing(self._speeds, speeds)
        self._speeds = speeds
        changes.runs = self._note_runs(snapshot)
        changes.prices = _prices(plan)
        changes.gain = gain_of(snapshot, None if plan.abstains else plan, mode, self._before)
        self._before = snapshot.time
        self._lost = True
        self._journal.update_dashboard(snapshot.time, changes)
        self._lost = False

    def _note_runs(self, snapshot: Snapshot) -> list[Run]:
        """Runs that began or are over since the last look."""
        running = {
            job.job_id: Run(job.job_id, job.started, None, job.held, job.pinned is None)
            for job in snapshot.jobs
            if job.running and job.placement and job.started is not None
        }
        changed = []
        for job_id, run in list(self._runs.items()):
            now = running.get(job_id)
            if now is None or now.began != run.began:
                # it may have ended at any moment since the last look; a next run says more
                ended = snapshot.time if now is None else min(snapshot.time, max(run.began, now.began))
                changed.append(replace(run, ended=ended))
                del self._runs[job_id]
        for job_id, run in running.items():
            if job_id not in self._runs or self._runs[job_id].held != run.held:
                self._runs[job_id] = run
                changed.append(run)
        return changed


def _line(
    job: Job,
    seen: Observation,
    waits: Mapping[str, dict[str, Any]],
    change: Change | None,
    shares: dict[str, Any] | None,
    guests: Mapping[str, Sequence[str]],
) -> Line:
    """As Slurm showed it when the round began, and as the round has left it, with whose ``guests`` by then."""
    progress = (job.done_steps, job.total_steps) if job.fork is not None else None
    line = line_of(
        seen.raw[job.job_id],
        seen.records.get(job.job_id),
        job.placement,
        job.pinned,
        waits.get(job.job_id, {}),
        progress,
        shares,
    )
    if change is not None and change.kind.occupies:
        held = change.new
        return replace(
            line,
            state="starting",
            where=str(held),
            held=held.as_dict(),
            types=tuple(sorted(held.by_type)),
            gpus=held.workers,
            steps_per_s=None,
            started=None,
            tier="",
            why=change.why,
            shares=None if change.host is None else _coming(job.job_id, [change.host, *guests.get(change.host, ())]),
        )
    if change is not None and change.kind.stops:
        return replace(
            line, state="stopping", where="-", held={}, shares=None, steps_per_s=None, started=None, why=change.why
        )
    return line


def _coming(job_id: str, company: Sequence[str]) -> dict[str, Any]:
    others = [other for other in company if other != job_id]
    return {"gpu": None, "with": others, "keeps": None, "known_by": ""}


def _row(line: Line, job: Job) -> _Row:
    """The columns of the table ``queue``."""
    compact = json.dumps(line.held, separators=(",", ":")) if line.held else "{}"
    forecast = None if line.forecast is None else json.dumps(line.forecast)
    return (
        line.job_id, _number(line.job_id), line.user, line.name, line.partition, line.state, min(line.gpus, _MOST),
        "+".join(line.types), compact, line.where, line.arrival, line.started, line.steps_per_s, line.done_share,
        min(line.restarts, _MOST), line.moves, line.size, forecast, workload_name(job),
        json.dumps(line.shares) if line.shares else None,
    )  # fmt: skip


def _number(job_id: str) -> int:
    """For sorting: the tasks of an array follow one another in the order of their indices."""
    head, _, task = job_id.replace("+", "_").partition("_")
    return min(_MOST, (int(head) if head.isdigit() else 0) * 10_000_000 + (int(task) if task.isdigit() else 0))


def workload_name(job: Job) -> str:
    """What the speeds of all jobs of a user that are alike are kept under: what is measured under one key, and whatever
    else decides."""
    key = workload_key(job.model, job.batch, job.user, job.name, job.graph)
    elastic = " elastic" if job.form.sizes else ""
    most = f" on up to {job.form.max_nodes} nodes" if job.graph else ""
    return f"{job.user}: {key} x {job.form.workers}{elastic}{most}"


def _speed_texts(snapshot: Snapshot) -> dict[str, str]:
    texts: dict[str, str] = {}
    for job in snapshot.jobs:
        name = workload_name(job)
        if name not in texts and job.form.workers > 0:
            texts[name] = _speeds_text(tuple(sorted(job.speeds.items(), key=lambda known: known[0])))
    return texts


@functools.lru_cache(maxsize=1024)
def _speeds_text(speeds: tuple[tuple[str, Speed], ...]) -> str:
    """Kept, since the jobs of all users of whom nothing is known have the same speeds."""
    return json.dumps(
        {
            t: {"steps_per_s": s.steps_per_s, "spread": s.apart, "source": s.source, "error": s.error, "basis": s.basis}
            for t, s in speeds
        }
    )


def _node_text(node: Node, shown: SlurmNode | None) -> str:
    text = {
        "gpus": dict(node.gpus), "taken": {t: n for t, n in node.taken.items() if n}, "available": node.available,
        "state": node.state, "reason": node.reason, "partitions": list(node.partitions),
    }  # fmt: skip
    if shown is not None:  # what all jobs together use, GPU jobs or not
        text |= {"cpus": [shown.cpus_used, shown.cpus], "memory_bytes": [shown.memory_used_bytes, shown.memory_bytes]}
    return json.dumps(text)


def gpu_use(snapshot: Snapshot) -> dict[str, tuple[int, int]]:
    """{GPU type: (in use by any job, all)}."""
    used: dict[str, int] = {}
    total: dict[str, int] = {}
    for node in snapshot.nodes:
        for gpu_type, count in node.gpus.items():
            total[gpu_type] = total.get(gpu_type, 0) + count
            used[gpu_type] = used.get(gpu_type, 0) + node.taken.get(gpu_type, 0)
    for job in (j for j in snapshot.steerable_jobs if j.host is None):
        for gpu_type, count in job.held.by_type.items():
            used[gpu_type] = used.get(gpu_type, 0) + count
    return {t: (min(used[t], n), n) for t, n in sorted(total.items())}


def _differing(before: Mapping[str, _T], now: Mapping[str, _T]) -> tuple[dict[str, _T], list[str]]:
    """What is new or not as before, and the keys that are gone."""
    return {k: v for k, v in now.items() if before.get(k) != v}, [k for k in before if k not in now]


def _prices(plan: Plan) -> list[tuple[str, float, float, float]]:
    by_type: dict[str, list[float]] = {}
    for (_, gpu_type), price in plan.prices.items():
        if math.isfinite(price):  # a price that forbids a GPU is none to draw
            by_type.setdefault(gpu_type, []).append(price)
    return [(t, min(p), sum(p) / len(p), max(p)) for t, p in sorted(by_type.items())]
