"""A job of the queue as people want to see it: what Slurm says of it, joined with what the journal remembers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from slurm_hadar.controller.journal import JobRecord, Stage
from slurm_hadar.controller.prediction.forecasts import Forecast
from slurm_hadar.controller.words import being_readied
from slurm_hadar.model import JobState, Placement, outruns
from slurm_hadar.slurm.state import SlurmJob

__all__ = ["Line", "array_text", "folded", "line_of", "size_source", "wait_fields"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One job. ``done_share`` is the share of its steps done; None where the total is unknown, as it is of a job that
    has made more than were stated. ``size`` says where its
    length is known from: ``stated`` in the comment, ``reported`` by the script, ``predicted``, or "" where nothing is
    known; ``forecast`` is what it was expected to be, None if it was never asked about.

    ``types`` are the GPU types that it holds, or would like to hold while it waits; ``held`` its GPUs as
    {node: {type: count}}. ``price``, ``payoff`` and ``wanted`` are those of its last wait, and ``starts`` the interval
    (epoch seconds) in which it is expected to start; None where nothing is known. ``shares``, of one with a part of a
    GPU: ``gpu``, its number on the node, ``with``, the ids of the others there, ``keeps``, the share of its speed alone
    that it then has, and ``known_by``, how that is known: measured, or assumed (turns, beside); None for others.
    """

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
    tier: str = ""
    why: str = ""
    size: str = ""
    forecast: dict[str, Any] | None = None
    partition: str = ""
    started: float | None = None
    types: tuple[str, ...] = ()
    held: dict[str, dict[str, int]] | None = None
    price: float | None = None
    payoff: float | None = None
    wanted: dict[str, dict[str, int]] | None = None
    starts: tuple[float, float] | None = None
    shares: dict[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """By name of field, for JSON and templates."""
        return {name: getattr(self, name) for name in self.__slots__}


def line_of(
    job: SlurmJob,
    record: JobRecord | None,
    held: Placement,
    pinned: str | None,
    wait: dict[str, Any],
    progress: tuple[float, float | None] | None = None,
    shares: dict[str, Any] | None = None,
) -> Line:
    """``held``: the GPUs that it runs on, as far as that can be told. ``pinned``: why it is left to Slurm, or None.
    ``wait``: what the journal says of why it waits. ``progress``: steps and total of the forked job that this is a copy
    of, which all its copies show. ``shares``: with whom it has a GPU, as Slurm says; what that costs it the record
    knows."""
    if shares is not None and record is not None and record.company.get("with") == shares["with"]:
        shares = {**shares, **record.company}
    running = job.state is JobState.RUNNING and not job.configuring
    forecast = Forecast.of(record) if record else None
    wait = _wait(job, record, pinned, wait)
    wanted = Placement.of(wait.get("wanted") or {})
    return Line(
        job_id=job.job_id,
        user=job.user,
        name=job.name,
        state="starting" if job.configuring else str(job.state),
        gpus=held.workers or (record.workers if record else job.gpu_count),
        where=str(held) if held else _nodes(job) or "-",
        steps_per_s=record.steps_per_s if record and running else None,
        done_share=_done_share(job, record, progress),
        arrival=record.arrived if record else job.submit or 0.0,
        restarts=job.restarts,
        moves=record.moves if record else 0,
        size=size_source(record),
        forecast=None if forecast is None else asdict(forecast),
        partition=job.partition,
        started=job.start if running else None,
        types=tuple(sorted((held or wanted).by_type)),
        held=held.as_dict(),
        shares=shares,
        **wait_fields(wait),
    )


def _done_share(job: SlurmJob, record: JobRecord | None, progress: tuple[float, float | None] | None) -> float | None:
    steps, total = (record.steps, record.total_steps) if record and not record.disbelieved else (0.0, None)
    if record and job.state is JobState.PENDING:  # a suspended one has its steps still
        steps = record.saved_step or 0.0
    if progress is not None:
        steps, total = progress[0], progress[1] or total
    return min(1.0, steps / total) if total and not outruns(steps, total) else None


def _wait(job: SlurmJob, record: JobRecord | None, pinned: str | None, wait: dict[str, Any]) -> dict[str, Any]:
    """Nothing of a job that does not wait, unless it is left to Slurm, or left alone while it runs."""
    if pinned:
        return {**wait, "tier": "pinned", "why": pinned}
    if job.configuring:
        return {} if record is None else {"why": being_readied(record)}
    left_alone = wait.get("tier") == "pinned" and record is not None and record.stage is Stage.RUNNING
    return wait if job.state is JobState.PENDING or left_alone else {}


def wait_fields(wait: dict[str, Any]) -> dict[str, Any]:
    """Of what the journal says of a wait, what a :class:`Line` has."""
    starts = wait.get("starts")
    return {
        "tier": wait.get("tier", ""),
        "why": wait.get("why", ""),
        "price": wait.get("price"),
        "payoff": wait.get("payoff"),
        "wanted": wait.get("wanted"),
        "starts": (float(starts[0]), float(starts[1])) if starts else None,
    }


def size_source(record: JobRecord | None) -> str:
    """Where what is known of a job's length is from: stated, reported, predicted or "" (nothing is known, or what is
    stated tells nothing)."""
    if record is None or record.disbelieved:
        return ""
    if record.total_steps is not None:
        return "reported" if record.reported else "stated"
    return "predicted" if Forecast.of(record) is not None else ""


def _nodes(job: SlurmJob) -> str:
    """With the part of a GPU that it has there, if it has no whole one."""
    return ",".join(job.nodes) + (f" ({job.shares})" if job.nodes and job.shares else "")


def folded(lines: Iterable[Line]) -> list[Line]:
    """The waiting tasks of a job array that are alike in one line, ``12_[3-9,12]``, where its first one stood; all else
    as it was. The reason is the first task's."""
    groups: dict[tuple[Any, ...], list[Line]] = {}
    for line in lines:
        array, _, task = line.job_id.partition("_")
        alike = (array, line.state, line.tier, line.gpus, line.types, line.size, line.restarts)
        waits = line.state == str(JobState.PENDING) and task.isdecimal()
        groups.setdefault(alike if waits else (line.job_id,), []).append(line)
    return [_together(group) if len(group) > 1 else group[0] for group in groups.values()]


def _together(tasks: list[Line]) -> Line:
    array = tasks[0].job_id.partition("_")[0]
    numbers = (int(line.job_id.partition("_")[2]) for line in tasks)
    return replace(tasks[0], job_id=array_text(array, numbers), arrival=min(line.arrival for line in tasks))


def array_text(array: str, numbers: Iterable[int]) -> str:
    """Tasks of a job array as Slurm writes them: ``12_[3-9,12]``."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    text = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"{array}_[{text}]"
