"""Gavel's trace format: ten tab-separated columns without a header (stanford-futuredata/gavel, scheduler/traces)."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_hadar.errors import TraceError
from slurm_hadar.fields import LATEST_S, MOST_GPUS, number, positive, unsigned, whole
from slurm_hadar.simulator.job_types import job_type
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.simulator.traces.workloads import REFERENCE_TYPE
from slurm_hadar.throughput.table import ReferenceTable

__all__ = ["COLUMNS", "looks_like", "read"]

COLUMNS = ("job_type", "command", "working_directory", "num_steps_arg", "needs_data_dir", "total_steps",
           "scale_factor", "priority_weight", "SLO", "arrival_time")  # fmt: skip
_DEADLINES = f"deadlines are the trace's SLOs times the run times on {REFERENCE_TYPE}"
_NO_DEADLINES = f"jobs with an SLO of which no rate on {REFERENCE_TYPE} is known have no deadline"


def looks_like(line: str) -> bool:
    """Whether the first line of a file is one of this format."""
    return line.count("\t") == len(COLUMNS) - 1


def read(lines: Iterable[str], name: str, table: ReferenceTable) -> Trace:
    """Read a trace. Job ids are line numbers from 0. Raises TraceError naming file, line and field.

    The format counts ``total_steps`` over all workers; here a step is one of the whole job, so they are divided by
    the number of workers. An ``SLO`` is a multiple of the job's run time, which Gavel's generator counts on V100s; a
    job of which ``table`` has no rate there has no deadline.
    """
    jobs: list[TraceJob] = []
    assumed: set[str] = set()
    for line_number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        where = f"{name}:{line_number}"
        values = line.rstrip("\r\n").split("\t")
        if len(values) != len(COLUMNS):
            raise TraceError(f"{where}: {len(values)} fields where {len(COLUMNS)} are expected, separated by tabs")
        row = dict(zip(COLUMNS, values, strict=True))
        model, batch = job_type(row["job_type"], f"{where}: job_type")
        if not model:
            raise TraceError(f"{where}: job_type is empty")
        workers = whole(row["scale_factor"], where, "scale_factor", most=MOST_GPUS)
        slo = number(row["SLO"], where, "SLO")
        arrival_s = unsigned(row["arrival_time"], where, "arrival_time", LATEST_S)
        steps = positive(row["total_steps"], where, "total_steps") / workers
        weight = positive(row["priority_weight"], where, "priority_weight")
        rate = table.steps_per_s(model, batch, REFERENCE_TYPE, workers)
        if slo > 0:
            assumed.add(_DEADLINES if rate else _NO_DEADLINES)
        jobs.append(
            TraceJob(
                str(len(jobs)),
                arrival_s,
                model,
                batch,
                workers,
                steps,
                weight=weight,
                deadline_s=slo * steps / rate if slo > 0 and rate else None,
            )
        )
    return Trace(name, "gavel", tuple(sorted(jobs, key=lambda j: j.arrival_s)), tuple(sorted(assumed)))
