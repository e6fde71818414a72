"""``hadar history``: what was decided about a job, why, and what became of it."""

from __future__ import annotations

import re
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from slurm_hadar.cli.common import (
    clock,
    config_options,
    console,
    json_option,
    open_journal,
    place,
    plain,
    print_json,
    span,
)  # fmt: skip
from slurm_hadar.config import Config, Mode
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.errors import HadarError
from slurm_hadar.model import Placement

__all__ = ["history", "in_words"]

_DECIDED = {"start": "starts", "move": "moves", "preempt": "is stopped", "wait": "waits", "end": "has ended"}
# what a policy would do, where nobody lets it
_WOULD = {"start": "would start", "move": "would move", "preempt": "would be stopped", "wait": "would wait"}
_HAPPENED = {"restart": "begins again", "forecast": "is expected to take", "graph": "goes on without its graph"}
_OUTCOMES = {
    "ok": "Slurm was told", "refused": "Slurm refused", "ineffective": "without effect", "undone": "undone",
    "slow": "Slurm takes time", "sent": "sent, no answer known",
}  # fmt: skip


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--commands", is_flag=True, help="Show what Slurm was told word for word.")
@json_option
@config_options
def history(config: Config, job_id: str, commands: bool, as_json: bool) -> None:
    """What was decided about JOB, why, and what became of it, in order of time."""
    journal = open_journal(config)
    try:
        entries, record = journal.history(job_id), journal.job(job_id)
    finally:
        journal.close()
    for entry in entries:
        entry["words"] = ": ".join(part for part in in_words(entry) if part)
    if as_json:
        print_json(entries)
        return
    if not entries:
        raise HadarError(f"nothing is recorded about job {job_id}; is the id right (array tasks: 123_4)?")
    if record is not None:
        click.echo(plain(_summary(record)))
    table = Table(box=None, pad_edge=False)
    for title in ("TIME", "ROUND", "WHAT", "DETAIL"):
        table.add_column(title, no_wrap=title != "DETAIL")
    for entry in entries:
        what, detail = in_words(entry)
        if commands and "command" in entry:
            detail = entry["command"] + (f"  ({entry['detail']})" if entry["detail"] else "")
        style = "dim" if "command" in entry and entry["outcome"] == "ok" else ""
        table.add_row(clock(entry["time"]), str(entry["round"]), Text(what, style), Text(plain(detail), style))
    console().print(table)


def _summary(record: JobRecord) -> str:
    """The job in one line: whose it is, since when, and how often it was moved and begun again."""
    parts = [f"job {record.job_id} of {record.user or 'unknown'} ({record.name or 'no name'})",
             f"submitted {clock(record.arrival)}", _times(record.moves, "move"), _times(record.restarts, "restart"),
             f"{span(record.attained_s)} of GPU time"]  # fmt: skip
    if record.lost_steps:
        parts.append(f"{record.lost_steps:.0f} steps done twice")
    if record.ended is not None:
        parts.append(f"ended {clock(record.ended)} ({record.final.lower() or 'unknown'})")
    return ", ".join(parts)


def _times(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def in_words(entry: dict[str, Any]) -> tuple[str, str]:
    """An entry of :meth:`Journal.history` for people: what, and the detail."""
    if "event" in entry:
        return _HAPPENED.get(entry["event"], entry["event"]), entry["why"]
    if "command" in entry:
        told = _told(entry["command"], entry["time"])
        return f"  {_OUTCOMES.get(entry['outcome'], entry['outcome'])}", told + (
            f" ({entry['detail']})" if entry["detail"] else ""
        )
    new, old = Placement.of(entry["new"]), Placement.of(entry["old"])
    where = f"from {place(old)} to {place(new)}" if old and new else place(new or old)
    what = _DECIDED if entry.get("mode") in (None, Mode.ACT) else _WOULD
    kind = entry["kind"]
    detail = "; ".join(part for part in (where if where != "-" else "", entry["why"]) if part)
    return what.get(kind, _DECIDED.get(kind, kind)), detail


def _told(command: str, moment: float) -> str:
    """A write to Slurm in words; word for word if it is none of those that the controller makes.

    ``moment`` is when it was written: its start times are relative to that.
    """
    verb, _, rest = command.partition(" ")
    if verb in ("requeue", "release"):
        return "stop it and put it back into the queue" if verb == "requeue" else "release it"
    fields = dict(re.findall(r"(\w+)=(\S*)", rest))
    start = re.fullmatch(r"now(?:\+(\d+))?", fields.get("StartTime", ""))
    if verb != "update" or start is None:
        return command
    later = int(start[1] or 0)
    if fields.get("NodeList"):
        gpus = re.search(r"gpu:(\d+)$", fields.get("TresPerNode", ""))
        each = f", {gpus[1]} GPUs on each" if gpus else ""
        return f"start it on {fields['NodeList']}{each}" + (f" in {later} s" if later else "")
    if later:
        return f"not to start it before {clock(moment + later)}, unless told otherwise (lease)"
    return "start it anywhere, as it was submitted" if "NodeList" in fields else "start it now"
