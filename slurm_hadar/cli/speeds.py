"""``hadar speeds``: what is known of training speeds, and how good the estimates were."""

from __future__ import annotations

import click
from rich.console import Console
from rich.table import Table

from slurm_hadar.cli.common import config_options, json_option, open_journal, print_json, span
from slurm_hadar.config import Config
from slurm_hadar.throughput.store import ThroughputStore

__all__ = ["speeds"]


@click.command()
@json_option
@config_options
def speeds(config: Config, as_json: bool) -> None:
    """Show measured steps per second by workload and GPU type, and the error of each estimate made before."""
    raise NotImplementedError
