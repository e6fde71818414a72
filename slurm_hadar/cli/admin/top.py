"""``hadar top``: the cluster live in a terminal."""

from __future__ import annotations

import sys
import time

import click

from slurm_hadar.cli.common import Number, config_options
from slurm_hadar.config import Config
from slurm_hadar.controller.answers.view import job_view, picture_of
from slurm_hadar.controller.journal import ReadOnlyJournal
from slurm_hadar.controller.state_dir import JOURNAL, chosen_state_dir
from slurm_hadar.errors import StoreError
from slurm_hadar.slurm.backend.select import choose

__all__ = ["top"]

_PATIENCE_S = 10.0


@click.command()
@click.option("--refresh", type=Number(1.0, 86400.0), default=30.0, show_default=True,
              help="Seconds between two looks at Slurm.")  # fmt: skip
@config_options
def top(config: Config, refresh: float) -> None:
    """Watch GPUs, jobs and decisions live. Keys are shown at the bottom; ? explains them.

    Where Slurm does not answer, it shows what the controller's last round saw.
    """
    from slurm_hadar.tui.app import Top
    from slurm_hadar.tui.details import in_lines
    from slurm_hadar.tui.signs import signs_for

    if sys.stdin is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("top needs a terminal; hadar queue and hadar status print once")
    # who watches does not want to wait for a Slurm that is away, and looks again anyway
    backend = choose("cli", min(_PATIENCE_S, config.slurm.timeout_s), retries=0)

    def details(job_id: str) -> list[str]:
        try:
            with ReadOnlyJournal(chosen_state_dir(config) / JOURNAL) as journal:
                found = job_view(journal, job_id)
        except StoreError as error:
            return [str(error)]
        return in_lines(found, time.time()) if found else [f"The controller has not seen job {job_id} yet."]

    app = Top(lambda: picture_of(backend, config, time.time()), details, refresh, signs_for(sys.stdout.encoding))
    app.run()
    raise SystemExit(app.return_code or 0)
