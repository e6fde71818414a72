"""``hadar status``: one job at a glance, for its owner."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import click

from slurm_hadar.cli.common import config_options, json_option, known_jobs, print_json
from slurm_hadar.cli.jobs.expectation import as_dict, chance, moment
from slurm_hadar.config import Config
from slurm_hadar.controller.answers.lines import Line, folded
from slurm_hadar.controller.answers.status import Status, status_of, tail
from slurm_hadar.controller.answers.view import TIERS
from slurm_hadar.controller.journal import Run
from slurm_hadar.controller.words import clock, place, plain
from slurm_hadar.model import Placement, Tier, outruns
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.shown import JOB_ID
from slurm_hadar.units import counted, span

__all__ = ["status"]

_MOST_TASKS = 20


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=known_jobs)
@json_option
@config_options
def status(config: Config, job_id: str, as_json: bool) -> None:
    """Show JOB at a glance: where it runs and how fast, how far it is, why it waits, what it wrote last.

    JOB may be waiting, running or over; a job array is shown by its tasks, each of which (12_3) is a job of its own.
    """
    if not JOB_ID.fullmatch(job_id):
        raise click.UsageError(f"{job_id!r} is no job id, such as 4711 or 4711_3")
    found = status_of(CliBackend(config.slurm.timeout_s, config.slurm.retries), config, job_id)
    written = tail(found.shown.output) if found.shown is not None and found.shown.output is not None else []
    if as_json:
        print_json(_as_dict(found, written))
        return
    for line in _in_words(found, written, time.time()):
        click.echo(plain(line))
    for fault in found.faults:
        click.echo(plain(f"note: {fault}"), err=True)


def _as_dict(found: Status, written: list[str]) -> dict[str, Any]:
    line, record, shown = found.line, found.record, found.shown
    expected = None if found.expected is None else as_dict(found.expected)
    return {
        "job_id": found.job_id, "state": found.state, "name": _name(found), "user": _user(found),
        "where": line.held if line is not None else {}, "started": line.started if line is not None else None,
        "ended": record.ended if record is not None else found.accounted.end if found.accounted is not None else None,
        "exit_code": shown.exit_code if shown is not None and line is None else None,
        "tier": line.tier if line is not None else "", "why": line.why if line is not None else "",
        "steps": record.steps if record is not None else None,
        "total_steps": record.total_steps if record is not None else None,
        "done_share": line.done_share if line is not None else None,
        "steps_per_s": line.steps_per_s if line is not None else None, "measured": found.measured,
        "start": expected["start"] if expected else None, "end": expected["end"] if expected else None,
        "end_80": expected["end_80"] if expected else None,
        "checkpoint": None if found.saved is None else {"step": found.saved.step, "time": found.saved.time},
        "moves": record.moves if record is not None else None,
        "retries": record.retries if record is not None else None,
        "restarts": line.restarts if line is not None else record.restarts if record is not None else None,
        "runs": [{"began": r.began, "ended": r.ended, "held": r.held.as_dict()} for r in found.runs],
        "output": None if shown is None or shown.output is None else str(shown.output), "last_lines": written,
        "errors": None if shown is None or shown.errors is None else str(shown.errors),
        "tasks": [task.as_dict() for task in found.tasks],
        "over": [{"job_id": t.job_id, "state": t.word} for t in found.over],
        "fork": found.fork, "next": [command for command, _ in _next(found)], "faults": list(found.faults),
    }  # fmt: skip


def _in_words(found: Status, written: list[str], now: float) -> Iterator[str]:
    if found.tasks or found.over:
        yield from _array(found)
        return
    yield f"job {found.job_id} {_name(found)} of {_user(found)}: {_state(found, now)}"
    yield from _expectation(found, now)
    yield from _past(found, now)
    if found.fork is not None:
        yield f"  copy         of forked job {found.job_id.partition('_')[0]}: {found.fork['steps']} steps consolidated"
    if found.shown is not None and found.shown.output is not None:
        yield f"  output       {found.shown.output}" + ("" if written else " (nothing there so far)")
        yield from (f"    | {text}" for text in written)
    if found.shown is not None and found.shown.errors is not None:
        errors = tail(found.shown.errors)
        yield f"  errors       {found.shown.errors}" + ("" if errors else " (nothing there so far)")
        yield from (f"    | {text}" for text in errors)
    for number, (command, use) in enumerate(_next(found)):
        yield f"  {'' if number else 'next':<12} {command:<30} {use}"


def _expectation(found: Status, now: float) -> Iterator[str]:
    """Why it waits, when it starts and ends, and how far and fast it is."""
    line, record = found.line, found.record
    if line is not None and line.tier:
        yield f"  why          {TIERS.get(line.tier, line.tier)}: {line.why}"
    elif line is not None and line.state == "pending":
        yield "  why          no round has looked at it yet"
    expected = found.expected
    if expected is not None and line is not None and line.state == "pending" and line.tier != Tier.CANNOT_RUN:
        where = f" on {place(expected.where)}" if expected.where else ""
        yield f"  start        {moment(expected.start, now, expected.until)}{where}"
    if record is not None and (record.steps or record.total_steps):
        yield f"  progress     {_progress(found)}"
    if expected is not None and expected.end is not None:
        likely = f"; {chance(expected)}" if chance(expected) else ""
        yield f"  end          {moment(expected.end, now, expected.until)}{likely}"
    if found.measured:
        yield (
            "  speed        " + ", ".join(f"{s:.3g} steps/s on {t}" for t, s in found.measured.items()) + " (measured)"
        )


def _name(found: Status) -> str:
    known = found.line or found.record or found.accounted
    return known.name if known is not None and known.name else "(no name)"


def _user(found: Status) -> str:
    known = found.line or found.record or found.accounted
    return known.user if known is not None and known.user else "unknown"


def _state(found: Status, now: float) -> str:
    line = found.line
    if line is not None and line.started is not None:
        where = place(Placement.of(line.held)) if line.held else line.where
        return f"{line.state} since {clock(line.started)} ({span(now - line.started)}) on {where}"
    if line is not None and line.state == "starting":
        return f"{line.state} on {place(Placement.of(line.held)) if line.held else line.where}: {line.why}"
    if line is not None:
        return f"{line.state} since {clock(line.arrival)} ({span(now - line.arrival)})"
    ended = found.record.ended if found.record is not None else found.accounted.end if found.accounted else None
    text = found.state.replace("_", " ") + ("" if ended is None else f" at {clock(ended)}")
    shown = found.shown
    if shown is not None and (shown.exit_code or shown.signal):
        text += f", signal {shown.signal}" if shown.signal else f", exit code {shown.exit_code}"
    return text


def _progress(found: Status) -> str:
    record, line = found.record, found.line
    assert record is not None
    done, total = record.steps, record.total_steps
    if found.fork is not None:  # all copies are as far as their job
        done, total = found.fork["steps"], found.fork["total_steps"] or total
    steps = f"{done:.0f} of {'?' if total is None else f'{total:.0f}'} steps"
    if record.disbelieved:
        steps += f" ({record.disbelieved}: how many it makes is not known)"
    elif total and outruns(done, total):
        steps += " (more than stated)"
    elif total:
        steps += f" ({min(100.0, 100 * done / total):.0f} %)"
    if line is not None and line.steps_per_s is not None:
        steps += f" at {line.steps_per_s:.3g} steps/s"
    return steps


def _past(found: Status, now: float) -> Iterator[str]:
    record = found.record
    if found.saved is not None and found.fork is None:
        ago = "" if found.saved.time is None else f", {span(max(0.0, now - found.saved.time))} ago"
        yield f"  checkpoint   at step {found.saved.step}{ago}"
    elif found.fork is None and record is not None and found.line is not None and found.line.started is not None:
        yield "  checkpoint   none yet"
    if record is not None and (record.moves or record.restarts):
        runs = [f"{place(r.held)} for {span(_until(r, found, now) - r.began)}" for r in found.runs if r.held]
        text = f": {'; '.join(runs[-5:])}" if runs else ""
        yield f"  moves        {counted(record.moves, 'move')}, {counted(record.restarts, 'restart')}{text}"
    if record is not None and record.retries:
        yield f"  retries      {record.retries}, after its command failed"
    if record is not None and record.forgotten:
        yield f"  WARNING      a move sets {record.forgotten} parts of this training back, which are in no checkpoint"


def _until(run: Run, found: Status, now: float) -> float:
    """When a run was over; that Slurm has begun the next one since, the next round will see."""
    started = found.line.started if found.line is not None else None
    return run.ended or (started if started is not None and started > run.began else now)


def _array(found: Status) -> Iterator[str]:
    counts = Counter(line.state for line in found.tasks) + Counter(task.word or "gone" for task in found.over)
    said = ", ".join(f"{count} {state.replace('_', ' ')}" for state, count in sorted(counts.items()))
    yield f"job array {found.job_id}: {said}"
    if found.fork is not None:
        total = "?" if found.fork["total_steps"] is None else f"{found.fork['total_steps']:.0f}"
        yield f"  forked job: {found.fork['steps']} of {total} steps are in consolidation {found.fork['consolidation']}"
    tasks = folded(found.tasks)
    yield from (f"  {line.job_id:<14} {_task(line)}" for line in tasks[:_MOST_TASKS])
    if len(tasks) > _MOST_TASKS:
        yield f"  and {len(tasks) - _MOST_TASKS} more"
    first = found.tasks[0].job_id if found.tasks else found.over[-1].job_id
    yield f"  next         hadar status {first}    one task"


def _task(line: Line) -> str:
    if line.state != "running":
        return f"{line.state}: {line.why or 'no round has looked at it yet'}"
    done = "" if line.done_share is None else f", {100 * line.done_share:.0f} % done"
    speed = "" if line.steps_per_s is None else f", {line.steps_per_s:.3g} steps/s"
    return f"running on {place(Placement.of(line.held)) if line.held else line.where}{speed}{done}"


def _next(found: Status) -> Iterator[tuple[str, str]]:
    """What its owner may want to type next, and what for."""
    job, line = found.job_id, found.line
    if line is not None and line.state == "pending":
        yield f"hadar explain {job}", "prices, who is before it, what if it took other GPUs"
        if line.tier in ("cannot-run", "pinned"):
            yield f"scontrol update JobId={job} Comment=hadar:...", "another comment (docs/comment.md)"
    elif line is not None:
        yield f"hadar logs -f {job}", "all that it writes, over all its runs"
        yield f"hadar explain {job}", "why it is there, what a move would cost"
    elif found.shown is not None:
        yield f"hadar logs {job}", "all that it wrote, over all its runs"
        if found.saved is not None and found.state in ("failed", "timeout", "node_fail", "out_of_memory"):
            yield f"scontrol requeue {job}", f"goes on from its checkpoint at step {found.saved.step}"
    if found.record is not None:
        yield f"hadar history {job}", "all that was decided about it"
