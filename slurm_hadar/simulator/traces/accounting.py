"""A site's own accounting as a trace: what ``sacct`` tells, made into work by what it does not tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from slurm_hadar.comment import JobComment
from slurm_hadar.comment import read as read_comment
from slurm_hadar.controller.steering.elastic import gang_sizes, node_groups
from slurm_hadar.errors import GraphError, SlurmError, TraceError
from slurm_hadar.graphs.files import graph_of
from slurm_hadar.model import JobState, Mix
from slurm_hadar.simulator.throughputs import Rates
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.slurm.accounting import AccountedJob, looks_like, parse_accounting
from slurm_hadar.slurm.node_lists import expand
from slurm_hadar.throughput.table import ReferenceTable

__all__ = ["looks_like", "node_types", "read"]


def node_types(text: str) -> dict[str, str]:
    """``gpu[01-08]=v100;old[1-4]=k80`` as {node: GPU type}. Raises TraceError."""
    found: dict[str, str] = {}
    for part in filter(None, (p.strip() for p in text.split(";"))):
        names, equals, gpu_type = part.partition("=")
        if not equals or not gpu_type:
            raise TraceError(f"node types {part!r}: must read NODES=TYPE, such as gpu[01-08]=v100")
        try:
            found.update(dict.fromkeys(expand(names), gpu_type))
        except SlurmError as error:
            raise TraceError(f"node types {part!r}: {error}") from None
    return found


def read(text: str, name: str, table: ReferenceTable, types_of: Mapping[str, str] | None = None) -> Trace:
    """Read ``sacct -P`` text with a header, or ``sacct --json``.

    A job's work is the time it ran, times its speed on the GPU type it ran on; the type is that of AllocTRES, else
    that of its first node in ``types_of``. Jobs that never ran, still run or had no GPU are left out. What is assumed
    is told in the trace's ``assumptions``. Raises TraceError naming file, line and field.
    """
    try:
        records = parse_accounting(text, name)
    except SlurmError as error:
        raise TraceError(str(error)) from None
    left_out: Counter[str] = Counter()
    rates = Rates(table, _types(records, types_of or {}, table))
    jobs, unnamed = [], 0
    first = min((r.submit for r in records), default=0.0)
    for record in records:
        if record.unusable:
            left_out[record.unusable] += 1
            continue
        gpu_type = record.gpu_type(types_of or {})
        if not gpu_type:
            raise TraceError(
                f"{name}: job {record.job_id} had GPUs of an unknown type on {record.nodes or 'unknown nodes'}; "
                "name the types with --node-types, such as gpu[01-08]=v100"
            )
        comment, _ = read_comment(record.comment)
        job = _job(record, comment, gpu_type, rates, first)
        jobs.append(replace(job, steps=_steps(record, job, gpu_type, types_of or {}, rates)))
        unnamed += not jobs[-1].model
    return Trace(name, "sacct", tuple(jobs), _assumptions(jobs, unnamed, left_out, rates))


def _types(records: list[AccountedJob], types_of: Mapping[str, str], table: ReferenceTable) -> list[str]:
    return sorted({t for r in records for t in r.gpus if t} | {*types_of.values()} | {*table.gpu_types})


def _graph(comment: JobComment, workers: int) -> str:
    """A known model's; a file that the job had in its directory is not looked for."""
    value = comment.graph or ""
    if not value or value.endswith(".toml"):
        return ""
    try:
        for gpus in _sizes(comment, workers) or (workers,):
            graph_of(value, gpus)
    except GraphError:
        return ""
    return value


def _job(record: AccountedJob, comment: JobComment, gpu_type: str, rates: Rates, first: float) -> TraceJob:
    workers = sum(record.gpus.values())
    job = TraceJob(
        record.job_id,
        record.submit - first,
        comment.model or "",
        comment.batch,
        workers,
        1.0,
        _sizes(comment, workers),
        record.user,
        record.account,
        record.name,
        weight=comment.weight or 1.0,
        deadline_s=_deadline_s(comment, record),
        mix=comment.mix or Mix.NEVER,
        nodes=comment.nodes or _nodes(record),
        graph=_graph(comment, workers),
        restart_s=comment.restart,
        slow_down=comment.slow_down,
        wanted=gpu_type,
        ran_s=record.elapsed_s,
        waited_s=None if record.start is None else max(0.0, record.start - record.submit),
        asked=record.asked_type or "",
        partition=record.partition,
        limit_s=record.limit_s,
        state=JobState.DONE if record.state == "COMPLETED" else JobState.FAILED,
    )
    held = [t for t in record.gpus if t] or [gpu_type]
    if not rates.of(job, workers).keys() >= {*held}:  # it ran where the table says it cannot: that is about other jobs
        job = replace(job, model="", batch=None)
    # on GPUs of several types it went as the slowest of them; so it can
    return replace(job, mix=Mix.GATED) if len(held) > 1 and job.mix is Mix.NEVER else job


def _steps(record: AccountedJob, job: TraceJob, gpu_type: str, types_of: Mapping[str, str], rates: Rates) -> float:
    """Those of all its runs, each as fast as the slowest of the GPU types that it had."""
    steps = 0.0
    for run in record.runs:
        speeds = rates.of(job, sum(run.gpus.values()) or job.workers)
        held = [t for t in run.gpus if t] or [run.gpu_type(types_of) or gpu_type]
        nodes = len(expand(run.nodes)) if run.nodes else 1
        steps += run.elapsed_s * min(speeds[t if t in speeds else gpu_type].on(nodes) for t in held)
    return steps


def _nodes(record: AccountedJob) -> tuple[int, int] | None:
    """As many as it asked for, or was given, if its GPUs can lie evenly on them."""
    least = record.asked_nodes
    if not least:
        return None
    most = max(least, len(expand(record.nodes)) if record.nodes else 0)
    workers = sum(record.gpus.values())
    return (least, most) if any(workers % n == 0 for n in range(least, most + 1)) else None


def _sizes(comment: JobComment, workers: int) -> tuple[int, ...]:
    """What an elastic job may take, as the live controller weighs it; how large the cluster is is not known here."""
    if comment.gpus is None:
        return ()
    least, most = comment.nodes or (1, max(comment.gpus))
    return gang_sizes(comment.gpus, workers, least, most, comment.batch, node_groups([[max(comment.gpus)] * most]))


def _deadline_s(comment: JobComment, record: AccountedJob) -> float | None:
    if comment.deadline_after_s is not None:
        return comment.deadline_after_s
    return None if comment.deadline is None else max(1.0, comment.deadline - record.submit)


def _assumptions(jobs: list[TraceJob], unnamed: int, left_out: Counter[str], rates: Rates) -> tuple[str, ...]:
    lines = ["a job's work is the time it ran, times its speed on the GPU type, and on as many nodes, as it ran on"]
    if unnamed:
        ratios = rates.of(TraceJob("", 0.0, "", None, 1, 1.0), 1)
        seen = sorted({j.wanted for j in jobs})
        best = max(ratios[t].steps_per_s for t in seen)
        shown = " : ".join(f"{t} {ratios[t].steps_per_s / best:.2f}" for t in seen)
        lines.append(
            f"{unnamed} of {len(jobs)} jobs name no model (hadar:model=... in the comment): their speeds on other GPU "
            f"types follow the data sheets ({shown})"
        )
    lines += [f"{count} jobs are left out: they {why}" for why, count in sorted(left_out.items())]
    if any(not j.model for j in jobs) and any(j.workers > 1 for j in jobs):
        lines.append("gangs scale as the median of the published figures where no model is named")
    lines.append("jobs that failed or were cancelled ran as long as they did, wherever they are placed now")
    return tuple(lines)
