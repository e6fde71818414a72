"""``hadar web``: the dashboard."""

from __future__ import annotations

from pathlib import Path

import click

from slurm_hadar.cli.common import config_options
from slurm_hadar.config import Config
from slurm_hadar.controller.state_dir import JOURNAL, chosen_state_dir
from slurm_hadar.listening import address, read_token

__all__ = ["web"]


@click.command()
@click.option("--listen", default="127.0.0.1:8641", show_default=True, metavar="HOST:PORT", help="Where to listen.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Only who sends the token in this file may look; needed where others can reach it.",
)
@config_options
def web(config: Config, listen: str, token_file: Path | None) -> None:
    """Serve the dashboard: the cluster, the queue, jobs, who ran where and prices, from the controller's journal.

    It only reads, and works while the controller runs and when it does not.
    """
    from slurm_hadar.web.app import create_app
    from slurm_hadar.web.serve import serve

    token = None if token_file is None else read_token(token_file)
    host, port = address(listen, token is not None)
    app = create_app(chosen_state_dir(config) / JOURNAL, config, token)
    hint = " (first time with ?token=...)" if token else ""
    serve(app, host, port, lambda url: click.echo(f"dashboard at {url}{hint}", err=True))
