"""``hadar queue``: the queue as the scheduler sees it."""

from __future__ import annotations

import sys
import time
from typing import Any, Literal

import click
from rich.console import Console
from rich.markup import escape
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
    terminal = sys.stdout.isatty()
    console = Console() if terminal else Console(width=10_000)
    if not lines:
        console.print("The queue is empty.")
        return
    console.print(_table(lines, shrink=terminal))


def _as_dict(line: Line) -> dict[str, Any]:
    return {name: getattr(line, name) for name in line.__slots__}


def _table(lines: list[Line], shrink: bool) -> Table:
    """One line a job. On a terminal WHERE and WHY give way, so that ids and states stay whole."""
    rows = [_cells(line) for line in lines]
    table = Table(box=None, pad_edge=False)
    for index, (title, justify) in enumerate(_COLUMNS):
        widest = max(len(title), *(len(row[index]) for row in rows))
        least = 12 if shrink and title in ("WHERE", "WHY") else widest
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis", min_width=min(widest, least))
    for line, row in zip(lines, rows, strict=True):
        row[3] = f"[{_COLOURS.get(line.state, 'white')}]{row[3]}[/]"
        table.add_row(*row[:-1], escape(row[-1]))
    return table


def _cells(line: Line) -> list[str]:
    done = "-" if line.done_share is None else f"{100 * line.done_share:.0f} %"
    speed = "-" if line.steps_per_s is None else f"{line.steps_per_s:.3g}"
    age = span(time.time() - line.arrival)
    name = escape(line.name[:20])
    return [line.job_id, line.user, name, line.state, str(line.gpus), line.where, speed, done, age, line.why]


_COLUMNS: tuple[tuple[str, Literal["left", "right"]], ...] = (
    ("JOB", "left"), ("USER", "left"), ("NAME", "left"), ("STATE", "left"), ("GPUS", "right"), ("WHERE", "left"),
    ("STEPS/S", "right"), ("DONE", "right"), ("AGE", "right"), ("WHY", "left"),
)  # fmt: skip
_COLOURS = {"running": "green", "pending": "yellow", "completing": "cyan"}
