"""A trace as history: what a predictor could have learned from its jobs."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_hadar.predict.history import HistoryJob, Submission, over
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.throughput.table import ReferenceTable

__all__ = ["gpu_types_of", "history_of_jobs", "history_of_trace", "submission_of"]


def submission_of(job: TraceJob, rates: Rates, origin: float = 0.0) -> Submission:
    """What is known of a job of a trace when it arrives, ``origin`` seconds later than on the trace's clock. Its group
    is the trace's, or else its name. The speed is that on the fastest of the types of ``rates``."""
    speeds = rates.of(job, job.workers)
    best = max((s.steps_per_s for s in speeds.values()), default=1.0)
    return Submission(
        job.job_id,
        origin + job.arrival_s,
        job.user,
        job.group or job.name,
        job.workers,
        job.asked,
        job.model,
        job.batch,
        job.cpus,
        job.memory_gb,
        best,
    )


def gpu_types_of(trace: Trace, table: ReferenceTable) -> tuple[str, ...]:
    """The GPU types that the table and the trace know."""
    return tuple(sorted({*table.gpu_types} | {j.wanted for j in trace.jobs if j.wanted}))


def history_of_trace(trace: Trace, table: ReferenceTable) -> tuple[HistoryJob, ...]:
    """Every job as if it were over, on the trace's clock, by the rates of the GPU types that the table and the trace
    know."""
    return history_of_jobs(trace.jobs, Rates(table, gpu_types_of(trace, table)))


def history_of_jobs(jobs: Iterable[TraceJob], rates: Rates, origin: float = 0.0) -> tuple[HistoryJob, ...]:
    """Jobs as if they were over, ``origin`` seconds later than on their trace's clock, and ended as they really did.
    Where the trace does not tell how long a job waited and ran, it did not wait and ran alone on the fastest of the
    types of ``rates``."""
    found = []
    for job in jobs:
        known = submission_of(job, rates, origin)
        start = known.submit + (job.waited_s or 0.0)
        ran_s = job.steps / known.steps_per_s if job.ran_s is None else job.ran_s
        found.append(over(known, start, start + ran_s, job.steps, job.state))
    return tuple(found)
