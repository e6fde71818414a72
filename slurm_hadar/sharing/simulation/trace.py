"""A trace of jobs for one GPU: CSV with a header, documented in docs/sharing.md."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import LATEST_S, LONGEST_S, positive, reading, rows, whole, within
from slurm_hadar.sharing.lanes import Demand

__all__ = ["OPTIONAL", "REQUIRED", "ShareJob", "read_trace", "write_trace"]

REQUIRED = ("job_id", "arrival_s", "iterations", "iter_s", "persistent_bytes", "ephemeral_bytes")
OPTIONAL = ("class",)
NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class ShareJob:
    """A job of a trace. ``iteration_ns`` is what an iteration takes on a GPU of its own; ``group`` the job's class,
    which has a share of the time under policy ``priority``. Times are whole nanoseconds."""

    job_id: str
    arrival_ns: int
    iterations: int
    iteration_ns: int
    demand: Demand
    group: str = ""

    @property
    def total_ns(self) -> int:
        """What the job takes on a GPU of its own."""
        return self.iterations * self.iteration_ns


def read_trace(path: Path) -> tuple[ShareJob, ...]:
    """The jobs of a file, by arrival. Raises TraceError naming file, line and field."""
    with reading(path):
        text = path.read_text(encoding="utf-8-sig")
    jobs: dict[str, ShareJob] = {}
    for where, row in rows(text.splitlines(), str(path), REQUIRED, OPTIONAL):
        job = _job(row, where)
        if job.job_id in jobs:
            raise TraceError(f"{where}: job_id {job.job_id!r} stands in the trace twice")
        jobs[job.job_id] = job
    if not jobs:
        raise TraceError(f"{path}: has no jobs, only a header; add a line for each job")
    return tuple(sorted(jobs.values(), key=lambda job: job.arrival_ns))


def _job(row: Mapping[str, str], where: str) -> ShareJob:
    if not row["job_id"]:
        raise TraceError(f"{where}: job_id is empty")
    arrival_s = within(row["arrival_s"], where, "arrival_s", 0, LATEST_S)
    iter_s = positive(row["iter_s"], where, "iter_s", LONGEST_S)
    iterations, persistent, ephemeral = (
        whole(row[field], where, field, least)
        for field, least in (("iterations", 1), ("persistent_bytes", 0), ("ephemeral_bytes", 0))
    )
    if not iterations * iter_s <= LONGEST_S:
        raise TraceError(f"{where}: {iterations} iterations of {iter_s:g} s: a job takes at most {LONGEST_S:g} s")
    demand = Demand(persistent, ephemeral)
    return ShareJob(row["job_id"], round(arrival_s * NS), iterations, round(iter_s * NS), demand, row.get("class", ""))


def write_trace(jobs: Iterable[ShareJob]) -> str:
    """The trace as text that :func:`read_trace` reads to the same jobs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    jobs = tuple(jobs)
    grouped = any(job.group for job in jobs)
    writer.writerow((*REQUIRED, *(OPTIONAL if grouped else ())))
    for job in jobs:
        memory = (job.demand.persistent_bytes, job.demand.ephemeral_bytes)
        values = (job.job_id, job.arrival_ns / NS, job.iterations, job.iteration_ns / NS, *memory)
        writer.writerow((*values, *((job.group,) if grouped else ())))
    return out.getvalue()
