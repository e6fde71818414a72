"""Alibaba's PAI trace of 2020 (clusterdata, cluster-trace-gpu-v2020; Weng et al., NSDI 2022): a folder of tables."""

from __future__ import annotations

import csv
import hashlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import LATEST_S, unsigned
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.simulator.traces.workloads import REFERENCE_TYPE, gang_workloads
from slurm_hadar.throughput.table import ReferenceTable

__all__ = ["GROUPS", "JOBS", "TASKS", "read"]

JOBS = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASKS = ("job_name", "task_name", "inst_num", "status", "start_time", "end_time", "plan_cpu", "plan_mem", "plan_gpu",
         "gpu_type")  # fmt: skip
GROUPS = ("inst_id", "user", "gpu_type_spec", "group", "workload")
_JOB_FILE, _TASK_FILE, _GROUP_FILE = "pai_job_table.csv", "pai_task_table.csv", "pai_group_tag_table.csv"
_DONE = "Terminated"  # the only status that is a success
#: The trace's names of GPUs as ours; MISC stands for older ones, such as K40m, K80 and M60.
_TYPES = {"misc": "k80", "v100m32": "v100", "": "k80"}
_DAY_S, _ZONE_S = 86400.0, 8 * 3600.0  # its times read in UTC+8 are the real times of day


@dataclass(frozen=True, slots=True)
class _Job:
    inst_id: str
    user: str
    submit: float
    end: float


@dataclass(slots=True)
class _Asked:
    """A job's tasks together. ``most`` is the largest number of GPUs of one task, whose type is ``gpu_type``."""

    gpus: float = 0.0
    cpus: float = 0.0
    memory_gb: float = 0.0
    start: float = math.inf
    most: float = 0.0
    gpu_type: str = ""


def read(folder: Path, table: ReferenceTable) -> Trace:
    """Read ``pai_job_table.csv``, ``pai_task_table.csv`` and, if it is there, ``pai_group_tag_table.csv``, with or
    without a line of column names.

    The trace tells of times, not of steps. Each group is given a model of ``table`` that trains in gangs, by a hash of
    its name, and a job's steps are its run time times that model's speed on the GPU type it ran on. Jobs that did not
    end well, ran without GPUs or lack a time are left out. The trace's zero is midnight before the first job. Raises
    TraceError naming file, line and field.
    """
    if not folder.is_dir():
        raise TraceError(f"{folder}: must be a folder with {_JOB_FILE} and {_TASK_FILE}")
    left_out: Counter[str] = Counter()
    jobs = _jobs(folder / _JOB_FILE, left_out)
    asked = _tasks(folder / _TASK_FILE, jobs)
    tags = folder / _GROUP_FILE
    groups = _groups(tags, {j.inst_id for j in jobs.values()}) if tags.is_file() else {}
    workloads = list(gang_workloads(table))
    if not workloads:
        raise TraceError(f"{folder}: needs a throughput table with rates of gangs on a {REFERENCE_TYPE}")
    rates = Rates(table, sorted({a.gpu_type for a in asked.values() if a.gpu_type} | {*table.gpu_types}))
    first = min((j.submit for j in jobs.values()), default=0.0)
    zero = (first + _ZONE_S) // _DAY_S * _DAY_S - _ZONE_S
    found = []
    for name, job in jobs.items():
        wants = asked.get(name)
        if wants is None or wants.gpus <= 0:
            left_out["had no GPU"] += 1
            continue
        start = min(max(job.submit, wants.start), job.end) if math.isfinite(wants.start) else job.submit
        if job.end <= start:
            left_out["never ran"] += 1
            continue
        group, spec = groups.get(job.inst_id, ("", ""))
        plain = TraceJob(
            name,
            job.submit - zero,
            "",
            None,
            max(1, math.ceil(wants.gpus)),
            1.0,
            user=job.user,
            wanted=wants.gpu_type,
            ran_s=job.end - start,
            waited_s=start - job.submit,
            group=group,
            asked=spec,
            cpus=wants.cpus,
            memory_gb=wants.memory_gb,
        )
        found.append(_with_work(plain, workloads, rates))
    found.sort(key=lambda j: (j.arrival_s, j.job_id))
    return Trace(str(folder), "pai", tuple(found), _assumptions(found, left_out, tags.is_file()))


def _with_work(job: TraceJob, workloads: Sequence[tuple[str, int | None]], rates: Rates) -> TraceJob:
    """The model by the group, or by the user where there is none; the next one where it cannot run on the type."""
    key = f"{job.user}/{job.group}".encode()
    at = int.from_bytes(hashlib.sha256(key).digest()[:8], "big")
    for step in range(len(workloads)):
        model, batch = workloads[(at + step) % len(workloads)]
        named = replace(job, model=model, batch=batch)
        speed = rates.of(named, job.workers).get(job.wanted)
        if speed is not None:
            return replace(named, steps=(job.ran_s or 0.0) * speed.steps_per_s)
    raise TraceError(f"job {job.job_id}: no model of the throughput table runs on {job.workers} {job.wanted}")


def _lines(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, str]]]:
    """Every row, with where it stands for errors."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            for values in (reader := csv.reader(stream)):
                where = f"{path}:{reader.line_num}"
                if not values or (reader.line_num == 1 and tuple(v.strip().lower() for v in values) == tuple(columns)):
                    continue
                if len(values) != len(columns):
                    raise TraceError(
                        f"{where}: {len(values)} fields where {len(columns)} are expected: {','.join(columns)}"
                    )
                yield where, dict(zip(columns, (v.strip() for v in values), strict=True))
    except FileNotFoundError:
        raise TraceError(f"{path} does not exist") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path} cannot be read: {error}") from None


def _optional(row: Mapping[str, str], where: str, field: str) -> float | None:
    """A number of at least 0; None where the field is empty, as it often is."""
    return unsigned(row[field], where, field, LATEST_S) if row[field] else None


def _jobs(path: Path, left_out: Counter[str]) -> dict[str, _Job]:
    found: dict[str, _Job] = {}
    for where, row in _lines(path, JOBS):
        submit, end = (_optional(row, where, f) for f in ("start_time", "end_time"))
        if not row["job_name"]:
            raise TraceError(f"{where}: job_name is empty")
        if row["status"] != _DONE:
            left_out[f"did not end well ({row['status'] or 'no status'})"] += 1
        elif submit is None or end is None:
            left_out["lack a time"] += 1
        elif row["job_name"] in found:
            raise TraceError(f"{where}: job_name {row['job_name']!r} stands in the table twice")
        elif end <= submit:
            left_out["never ran"] += 1
        else:
            found[row["job_name"]] = _Job(row["inst_id"], row["user"], submit, end)
    return found


def _tasks(path: Path, jobs: Mapping[str, _Job]) -> dict[str, _Asked]:
    found: dict[str, _Asked] = {}
    for where, row in _lines(path, TASKS):
        if row["job_name"] not in jobs:
            continue
        job = found.setdefault(row["job_name"], _Asked())
        many = _optional(row, where, "inst_num") or 1.0
        gpus = many * (_optional(row, where, "plan_gpu") or 0.0) / 100
        job.cpus += many * (_optional(row, where, "plan_cpu") or 0.0) / 100
        job.memory_gb += many * (_optional(row, where, "plan_mem") or 0.0)
        start = _optional(row, where, "start_time")
        if gpus <= 0:
            continue
        job.gpus += gpus
        if start is not None:
            job.start = min(job.start, start)
        if gpus > job.most:
            name = row["gpu_type"].lower()
            job.most, job.gpu_type = gpus, _TYPES.get(name, name)
    return found


def _groups(path: Path, wanted: set[str]) -> dict[str, tuple[str, str]]:
    """{inst_id: (group, GPU type asked for)}."""
    return {
        row["inst_id"]: (row["group"], _TYPES.get(spec, spec) if (spec := row["gpu_type_spec"].lower()) else "")
        for _, row in _lines(path, GROUPS)
        if row["inst_id"] in wanted
    }


def _assumptions(jobs: Sequence[TraceJob], left_out: Counter[str], tagged: bool) -> tuple[str, ...]:
    alone = sum(not j.group for j in jobs)
    lines = [
        "a job's work is the time it ran, times the speed on the GPU type it ran on of a model that its group was "
        "given by a hash",
        "GPUs of all tasks of a job are added and rounded up to whole ones; MISC counts as k80, V100M32 as v100",
    ]
    if not tagged:
        lines.append(f"there is no {_GROUP_FILE}: no job belongs to a group")
    elif alone:
        lines.append(f"{alone} of {len(jobs)} jobs belong to no group; their model goes by the user")
    return (*lines, *(f"{count} jobs are left out: they {why}" for why, count in sorted(left_out.items())))
