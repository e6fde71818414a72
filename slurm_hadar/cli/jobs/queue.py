"""``hadar queue``: the queue as the scheduler sees it."""

from __future__ import annotations

import time

import click
from rich.table import Table

from slurm_hadar.cli.common import cell, config_options, console, json_option, print_json, span
from slurm_hadar.config import Config
from slurm_hadar.controller.answers.lines import Line, folded
from slurm_hadar.controller.answers.view import queue_view
from slurm_hadar.controller.words import sharing
from slurm_hadar.slurm.select import choose

__all__ = ["queue"]


@click.command()
@click.option("--user", help="Only this user's jobs.")
@click.option("--tasks", is_flag=True, help="Each waiting task of a job array in a line of its own.")
@json_option
@config_options
def queue(config: Config, user: str | None, tasks: bool, as_json: bool) -> None:
    """Show jobs, their GPUs and speeds, and why each waiting one waits.

    Waiting tasks of a job array that are alike share a line; JSON has each.
    """
    backend = choose("cli", config.slurm.timeout_s, config.slurm.retries)
    everything, note = queue_view(backend, config)
    lines = [line for line in everything if user in (None, line.user)]
    if note:
        click.echo(f"note: {note}", err=True)
    if as_json:
        print_json([line.as_dict() for line in lines])
        return
    if not lines:
        click.echo("The queue is empty.")
        return
    console().print(_table(lines if tasks else folded(lines)))


def _table(lines: list[Line]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title, justify in (("JOB", "left"), ("USER", "left"), ("NAME", "left"), ("STATE", "left"), ("GPUS", "right"),
                           ("WHERE", "left"), ("STEPS/S", "right"), ("DONE", "right"), ("SIZE", "left"),
                           ("AGE", "right"), ("WHY", "left")):  # fmt: skip
        # only these two give way on a narrow terminal
        table.add_column(title, justify=justify, no_wrap=title not in ("WHERE", "WHY"))  # type: ignore[arg-type]
    now = time.time()
    for line in lines:
        done = "-" if line.done_share is None else f"{100 * line.done_share:.0f} %"
        speed = "-" if line.steps_per_s is None else f"{line.steps_per_s:.3g}"
        table.add_row(
            cell(line.job_id),
            cell(line.user),
            cell(line.name[:20]),
            cell(line.state, _COLOURS.get(line.state, "")),
            str(line.gpus),
            cell(_where(line)),
            speed,
            done,
            cell(_size(line)),
            span(now - line.arrival),
            cell(line.why),
        )
    return table


def _where(line: Line) -> str:
    """With the GPU that it shares, and with whom."""
    return "; ".join(part for part in (line.where, sharing(line.shares)) if part)


def _size(line: Line) -> str:
    """Where it is known from how long the job is; of a prediction also how long it takes alone on the fastest GPUs."""
    if line.size == "predicted" and line.forecast is not None:
        return f"predicted {span(line.forecast['expected_s'])}"
    return line.size or "-"


_COLOURS = {"running": "green", "pending": "yellow", "completing": "cyan"}
