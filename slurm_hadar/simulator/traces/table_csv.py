"""Our own trace format: CSV with a header, documented in docs/simulator.md."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from slurm_hadar.errors import GraphError, TraceError
from slurm_hadar.fields import LATEST_S, MOST_PAUSE_S, MOST_STEPS_PER_S, number, positive, rows, sizes, unsigned, whole
from slurm_hadar.graphs.files import graph_of
from slurm_hadar.model import LEAST_DUTY, MOST_SLOW_DOWN, Fork, JobState, Mix
from slurm_hadar.simulator.traces.model import Trace, TraceJob

__all__ = ["REQUIRED", "looks_like", "read", "write"]

REQUIRED = ("job_id", "arrival_s", "gpus", "steps")
OPTIONAL = ("model", "batch", "user", "account", "name", "weight", "deadline_s", "mix", "nodes", "restart_s", "fork",
            "group", "graph", "start_s", "movable", "share", "duty", "asked", "cpus", "memory_gb", "partition",
            "limit_s", "wanted", "ran_s", "waited_s", "state", "asked_gpus")  # fmt: skip
_RATE = "steps_per_s:"
_BLANKS = str.maketrans("\r\n", "  ")  # users name their jobs, and a job is a line
_MOVABLE = {"yes": True, "no": False}
_ENDED = (str(JobState.DONE), str(JobState.FAILED))
_UNLIMITED = "unlimited"
_MOST_CPUS = _MOST_MEMORY_GB = 1e9


def looks_like(line: str) -> bool:
    """Whether the first line of a file is a header of this format."""
    names = [n.strip().strip('"') for n in line.split(",")]
    return "job_id" in names and "arrival_s" in names


def read(lines: Iterable[str], name: str) -> Trace:
    """Read a trace; lines that begin with ``#`` are comments. Raises TraceError naming file, line and field."""
    jobs: dict[str, TraceJob] = {}
    for where, row in rows(lines, name, REQUIRED, OPTIONAL, (_RATE + "TYPE", _RATE + "TYPE:GPUS")):
        job = _job(row, where, Path(name).parent)
        if job.job_id in jobs:
            raise TraceError(f"{where}: job_id {job.job_id!r} stands in the trace twice")
        jobs[job.job_id] = job
    return Trace(name, "csv", tuple(sorted(jobs.values(), key=lambda j: j.arrival_s)))


def _job(row: Mapping[str, str], where: str, folder: Path) -> TraceJob:
    if not row["job_id"]:
        raise TraceError(f"{where}: job_id is empty")
    gangs = sizes(row["gpus"], where, "gpus")
    arrival_s = unsigned(row["arrival_s"], where, "arrival_s", LATEST_S)
    given = {c: row[c] for c in OPTIONAL if row.get(c)}
    asked = whole(given["asked_gpus"], where, "asked_gpus") if "asked_gpus" in given else gangs[0]
    if asked not in gangs:
        raise TraceError(f"{where}: asked_gpus={asked} is not one of the job's gang sizes")
    rates, scaled = _rates(row, gangs, asked, where)
    if "model" not in given and not rates:
        raise TraceError(f"{where}: model is empty, and there is no {_RATE}TYPE column to go by")
    return TraceJob(
        row["job_id"],
        arrival_s,
        given.get("model", ""),
        whole(given["batch"], where, "batch") if "batch" in given else None,
        asked,
        positive(row["steps"], where, "steps"),
        gangs if len(gangs) > 1 else (),
        given.get("user", ""),
        given.get("account", ""),
        given.get("name", ""),
        positive(given["weight"], where, "weight") if "weight" in given else 1.0,
        positive(given["deadline_s"], where, "deadline_s") if "deadline_s" in given else None,
        _mix(given.get("mix", "never"), where),
        _nodes(given["nodes"], where) if "nodes" in given else None,
        unsigned(given["restart_s"], where, "restart_s", MOST_PAUSE_S) if "restart_s" in given else None,
        rates,
        _fork(given["fork"], where) if "fork" in given else None,
        group=given.get("group", ""),
        graph=_graph(given["graph"], where, folder, gangs) if "graph" in given else "",
        start_s=unsigned(given["start_s"], where, "start_s", MOST_PAUSE_S) if "start_s" in given else None,
        movable=_movable(given.get("movable", "yes"), where),
        slow_down=_share(given["share"], where) if "share" in given else None,
        scaled=scaled,
        duty=_duty(given["duty"], where) if "duty" in given else 1.0,
        asked=given.get("asked", ""),
        cpus=unsigned(given["cpus"], where, "cpus", _MOST_CPUS) if "cpus" in given else 0.0,
        memory_gb=unsigned(given["memory_gb"], where, "memory_gb", _MOST_MEMORY_GB) if "memory_gb" in given else 0.0,
        partition=given.get("partition", ""),
        limit_s=_limit(given["limit_s"], where) if "limit_s" in given else None,
        wanted=given.get("wanted", ""),
        ran_s=unsigned(given["ran_s"], where, "ran_s", LATEST_S) if "ran_s" in given else None,
        waited_s=unsigned(given["waited_s"], where, "waited_s", LATEST_S) if "waited_s" in given else None,
        state=_state(given.get("state", str(JobState.DONE)), where),
    )


def _rates(
    row: Mapping[str, str], gangs: Sequence[int], asked: int, where: str
) -> tuple[dict[str, float], dict[int, dict[str, float]]]:
    """The job's own rates at the size that it asked for by GPU type, and those at its other sizes."""
    rates: dict[str, float] = {}
    scaled: dict[int, dict[str, float]] = {}
    for column, text in row.items():
        if not column.startswith(_RATE) or not text:
            continue
        gpu_type, colon, gpus = column.removeprefix(_RATE).partition(":")
        if not gpu_type:
            raise TraceError(f"{where}: column {column!r} names no GPU type; write {_RATE}TYPE")
        workers = whole(gpus, where, f"GPUs of column {column}") if colon else asked
        if workers not in gangs:
            raise TraceError(f"{where}: {column} has a rate, but the job has no gang of {workers}")
        at_size = rates if workers == asked else scaled.setdefault(workers, {})
        if gpu_type in at_size:
            raise TraceError(f"{where}: two columns have a rate of {workers} GPUs of {gpu_type}; leave one empty")
        at_size[gpu_type] = positive(text, where, column, MOST_STEPS_PER_S)
    return rates, scaled


def _movable(text: str, where: str) -> bool:
    if text not in _MOVABLE:
        raise TraceError(f"{where}: movable must be one of {', '.join(_MOVABLE)}, not {text!r}")
    return _MOVABLE[text]


def _limit(text: str, where: str) -> float:
    return math.inf if text == _UNLIMITED else positive(text, where, "limit_s")


def _state(text: str, where: str) -> JobState:
    if text not in _ENDED:
        raise TraceError(f"{where}: state must be one of {', '.join(_ENDED)}, not {text!r}")
    return JobState(text)


def _share(text: str, where: str) -> float:
    """As ``share=`` of a comment."""
    slow_down = 1.0 if text == "no" else number(text, where, "share")
    if text != "no" and not 1.0 < slow_down <= MOST_SLOW_DOWN:
        raise TraceError(f"{where}: share must be no, or a number above 1 of at most {MOST_SLOW_DOWN:g}, not {text!r}")
    return slow_down


def _duty(text: str, where: str) -> float:
    duty = number(text, where, "duty")
    if not LEAST_DUTY <= duty <= 1.0:
        raise TraceError(f"{where}: duty must be a number from {LEAST_DUTY:g} to 1, not {text!r}")
    return duty


def _graph(text: str, where: str, folder: Path, gangs: Sequence[int]) -> str:
    """What says it wherever the trace is read: a file by its whole path. Every size of the job must fit it."""
    value = str((folder / text).resolve()) if text.endswith(".toml") else text
    try:
        for gpus in gangs:
            graph_of(value, gpus)
    except GraphError as error:
        raise TraceError(f"{where}: {error}") from None
    return value


def _mix(text: str, where: str) -> Mix:
    if text not in list(Mix):
        raise TraceError(f"{where}: mix must be one of {', '.join(Mix)}, not {text!r}")
    return Mix(text)


def _fork(text: str, where: str) -> Fork:
    if text not in list(Fork):
        raise TraceError(f"{where}: fork must be one of {', '.join(Fork)}, not {text!r}")
    return Fork(text)


def _nodes(text: str, where: str) -> tuple[int, int]:
    low, _, high = text.partition("-")
    least = whole(low, where, "nodes")
    most = whole(high, where, "nodes") if high else least
    if most < least:
        raise TraceError(f"{where}: nodes must be N or N-M with N <= M, not {text!r}")
    return least, most


def write(trace: Trace) -> str:
    """The trace in this format; what :func:`read` reads back is the same jobs, but for line ends in their names, which
    become blanks. Those of no model must have rates of their own
    (:meth:`slurm_hadar.simulator.throughputs.Rates.rated`)."""
    types = sorted({t for j in trace.jobs for t in j.steps_per_s})
    sized = sorted({(t, n) for j in trace.jobs for n, rates in j.scaled.items() for t in rates})
    rows = [[*REQUIRED, *OPTIONAL, *(_RATE + t for t in types), *(f"{_RATE}{t}:{n}" for t, n in sized)]]
    for j in trace.jobs:
        optional = (
            j.model,
            j.batch,
            j.user,
            j.account,
            j.name,
            repr(j.weight),
            j.deadline_s,
            j.mix,
            "-".join(map(str, j.nodes)) if j.nodes else None,
            j.restart_s,
            j.fork,
            j.group,
            j.graph,
            j.start_s,
            None if j.movable else "no",
            None if j.slow_down is None else "no" if j.slow_down == 1.0 else repr(j.slow_down),
            None if j.duty == 1.0 else repr(j.duty),
            j.asked,
            j.cpus or None,
            j.memory_gb or None,
            j.partition,
            _UNLIMITED if j.limit_s == math.inf else j.limit_s,
            j.wanted,
            j.ran_s,
            j.waited_s,
            None if j.state is JobState.DONE else j.state,
            None if j.workers == min(j.sizes, default=j.workers) else j.workers,
        )
        gpus = "+".join(map(str, j.sizes or (j.workers,)))
        own = (*(j.steps_per_s.get(t) for t in types), *(j.scaled.get(n, {}).get(t) for t, n in sized))
        values = (j.job_id, repr(j.arrival_s), gpus, repr(j.steps), *optional, *own)
        rows.append(["" if v is None else str(v).translate(_BLANKS) for v in values])
    lines: list[str] = []
    writer = csv.writer(_Lines(lines), lineterminator="\n")
    writer.writerows(rows)
    return "".join(lines)


class _Lines:
    """What csv.writer writes to."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def write(self, text: str) -> None:
        """A row; one that would be taken for a comment begins with a quote."""
        first, comma, rest = text.partition(",")
        self._lines.append(f'"{first}"{comma}{rest}' if text.startswith("#") else text)
