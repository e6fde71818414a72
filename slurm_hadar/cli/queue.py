"""``hadar queue``: the queue as the scheduler sees it."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from slurm_hadar.cli.common import config_options, json_option, print_json, span
from slurm_hadar.config import Config
from slurm_hadar.controller.view import Line, queue_view
from slurm_hadar.slurm.select import choose

__all__ = ["queue"]


@click.command()
@click.option("--user", help="Only this user's jobs.")
@json_option
@config_options
def queue(config: Config, user: str | None, as_json: bool) -> None:
    """Show jobs, their GPUs and speeds, and why each waiting one waits."""
    backend = choose("cli", config.slurm.timeout_s, config.slurm.retries)
    lines = [line for line in queue_view(backend, config) if user in (None, line.user)]
    if as_json:
        print_json([_as_dict(line) for line in lines])
        return
    # Into a file or a pipe nothing is cut; on a terminal each job keeps to its line.
    console = Console() if sys.stdout.isatty() else Console(width=240)
    if not lines:
        console.print("The queue is empty.")
        return
    console.print(_table(lines))


def _as_dict(line: Line) -> dict[str, Any]:
    return {name: getattr(line, name) for name in line.__slots__}


def _table(lines: list[Line]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title, justify in (("JOB", "left"), ("USER", "left"), ("NAME", "left"), ("STATE", "left"), ("GPUS", "right"),
                           ("WHERE", "left"), ("STEPS/S", "right"), ("DONE", "right"), ("AGE", "right"),
                           ("WHY", "left")):  # fmt: skip
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis")  # type: ignore[arg-type]
    now = time.time()
    for line in lines:
        done = "-" if line.done_share is None else f"{100 * line.done_share:.0f} %"
        speed = "-" if line.steps_per_s is None else f"{line.steps_per_s:.3g}"
        state = f"[{_COLOURS.get(line.state, 'white')}]{line.state}[/]"
        table.add_row(line.job_id, line.user, line.name[:20], state, str(line.gpus), line.where, speed, done,
                      span(now - line.arrival), line.why)  # fmt: skip
    return table


_COLOURS = {"running": "green", "pending": "yellow", "completing": "cyan"}
