"""``hadar queue``: the queue as the scheduler sees it."""

from __future__ import annotations

import click

from slurm_hadar.cli.common import config_options, console, json_option, print_json
from slurm_hadar.cli.jobs.queue_table import show
from slurm_hadar.config import Config
from slurm_hadar.controller.answers.lines import folded
from slurm_hadar.controller.answers.view import queue_view
from slurm_hadar.slurm.backend.select import choose

__all__ = ["queue"]


@click.command()
@click.option("--user", help="Only this user's jobs.")
@click.option("--tasks", is_flag=True, help="Each waiting task of a job array in a line of its own.")
@json_option
@config_options
def queue(config: Config, user: str | None, tasks: bool, as_json: bool) -> None:
    """Show jobs, their GPUs and speeds, and why each waiting one waits.

    Waiting tasks of a job array that are alike share a line; JSON has each. On a
    narrow terminal where a job runs, and why it waits, stand below its line.
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
    show(console(), lines if tasks else folded(lines))
