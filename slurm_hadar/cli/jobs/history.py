"""``hadar history``: what was decided about a job, why, and what became of it."""

from __future__ import annotations

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from slurm_hadar.cli.common import (
    as_in_the_queue,
    config_options,
    console,
    json_option,
    known_jobs,
    open_journal,
    print_json,
)
from slurm_hadar.config import Config
from slurm_hadar.controller.words import clock, in_words, plain, summary
from slurm_hadar.errors import HadarError

__all__ = ["history"]


@click.command()
@click.argument("job_id", metavar="JOB", shell_complete=known_jobs)
@click.option("--commands", is_flag=True, help="Show what Slurm was told word for word.")
@json_option
@config_options
def history(config: Config, job_id: str, commands: bool, as_json: bool) -> None:
    """What was decided about JOB, why, and what became of it, in order of time; of an array, about all its tasks."""
    with open_journal(config) as journal:
        if journal.job(job_id) is None and not journal.history(job_id) and not journal.tasks(job_id):
            job_id = as_in_the_queue(config, job_id)
        entries, record = journal.history(job_id), journal.job(job_id)
        tasks = [] if entries else journal.tasks(job_id)
        entries += [{"job_id": task, **entry} for task in tasks for entry in journal.history(task)]
    entries.sort(key=lambda entry: float(entry["time"]))
    for entry in entries:
        entry["words"] = ": ".join(part for part in in_words(entry) if part)
    if not entries:
        raise HadarError(f"nothing is recorded about job {job_id}; is the id right (array tasks: 123_4)?")
    if as_json:
        print_json(entries)
        return
    if record is not None and not tasks:
        click.echo(plain(summary(record)))
    console().print(_table(entries, bool(tasks), commands))


def _table(entries: list[dict[str, Any]], tasks: bool, commands: bool) -> Table:
    """``tasks``: with a column for whose an entry is; ``commands``: word for word."""
    table = Table(box=None, pad_edge=False)
    for title in ("TIME", "ROUND", *(["JOB"] if tasks else []), "WHAT", "DETAIL"):
        table.add_column(title, no_wrap=title != "DETAIL")
    for entry in entries:
        what, detail = in_words(entry)
        if commands and "command" in entry:
            detail = entry["command"] + (f"  ({entry['detail']})" if entry["detail"] else "")
        style = "dim" if "command" in entry and entry["outcome"] == "ok" else ""
        task = [entry["job_id"]] if tasks else []
        table.add_row(clock(entry["time"]), str(entry["round"]), *task, Text(what, style), Text(plain(detail), style))
    return table
