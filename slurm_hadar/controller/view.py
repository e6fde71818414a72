"""The queue as people want to see it: Slurm's state joined with what the journal knows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from slurm_hadar.comment import read
from slurm_hadar.config import Config
from slurm_hadar.controller.forecasts import Forecast
from slurm_hadar.controller.journal import JobRecord, Journal
from slurm_hadar.controller.setup import JOURNAL, state_dir
from slurm_hadar.controller.steering import node_facts, pinned_reason, placement_of
from slurm_hadar.model import JobState
from slurm_hadar.slurm.base import Backend
from slurm_hadar.slurm.state import SlurmJob

__all__ = ["Line", "queue_view", "size_source"]


@dataclass(frozen=True, slots=True)
class Line:
    """One job. ``done_share`` is the share of its steps done; None where the total is unknown. ``size`` says where its
    length is known from: ``stated`` in the comment, ``reported`` by the script, ``predicted``, or "" where nothing is
    known; ``forecast`` is what it was expected to be, None if it was never asked about."""

    job_id: str
    user: str
    name: str
    state: str
    gpus: int
    where: str
    steps_per_s: float | None
    done_share: float | None
    arrival: float
    restarts: int
    moves: int
    tier: str
    why: str
    size: str = ""
    forecast: dict[str, Any] | None = None


def queue_view(backend: Backend, config: Config) -> list[Line]:
    """Running jobs first, then the waiting ones by arrival. Works without a journal, with less to say."""
    state = backend.read()
    facts = node_facts(state.nodes)
    path = state_dir(config) / JOURNAL
    journal = Journal(path) if path.exists() else Journal(":memory:")
    try:
        records, waits, forks = journal.load_jobs(), journal.waits(), journal.forks()
    finally:
        journal.close()
    lines = []
    for job in state.jobs:
        if not job.state.active:
            continue
        record = records.get(job.job_id)
        comment, fault = read(job.comment)
        pinned = fault or pinned_reason(job, comment, record, config, facts)
        wait = waits.get(job.job_id, {})
        tier, why = ("pinned", pinned) if pinned else (wait.get("tier", ""), wait.get("why", ""))
        if job.state is not JobState.PENDING and not pinned:
            tier, why = "", ""
        where = str(placement_of(job, facts)) if job.state is JobState.RUNNING else "-"
        fork = forks.get(job.array_id or "") if comment.fork is not None else None
        lines.append(_line(job, record, where, tier, why, fork))
    return sorted(lines, key=lambda line: (line.state != "running", line.arrival, line.job_id))


def _line(
    job: SlurmJob, record: JobRecord | None, where: str, tier: str, why: str,
    fork: tuple[int, int, float | None, int | None] | None = None,
) -> Line:  # fmt: skip
    """``fork``: the progress of the forked job that this is a copy of, which all its copies show."""
    running = job.state is JobState.RUNNING
    gpus = record.workers if record else sum(r.count for r in job.gpus)
    steps = (record.steps if running else record.saved_step or 0.0) if record else 0.0
    total = record.total_steps if record else None
    if fork is not None:
        steps, total = float(fork[1]), fork[2] or total
    forecast = Forecast.of(record) if record else None
    return Line(
        job.job_id, job.user, job.name, str(job.state), gpus, where if where != "-" else ",".join(job.nodes) or "-",
        record.steps_per_s if record and running else None, min(1.0, steps / total) if total else None,
        record.arrival if record else job.submit or 0.0, job.restarts, record.moves if record else 0, tier, why,
        size_source(record), None if forecast is None else asdict(forecast),
    )  # fmt: skip


def size_source(record: JobRecord | None) -> str:
    """Where what is known of a job's length is from: stated, reported, predicted or "" (nothing is known)."""
    if record is None:
        return ""
    if record.total_steps is not None:
        return "reported" if record.reported else "stated"
    return "predicted" if Forecast.of(record) is not None else ""
