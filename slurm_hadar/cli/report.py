"""``hadar report``: a page of a result, or of what the controller did."""

from __future__ import annotations

import json
import time
from pathlib import Path

import click

from slurm_hadar.cli.common import config_options, open_journal
from slurm_hadar.cli.compare import typed
from slurm_hadar.config import Config
from slurm_hadar.errors import TraceError
from slurm_hadar.simulator.compare_page import check_document, compare_page
from slurm_hadar.simulator.journal_page import journal_page
from slurm_hadar.throughput.store import ThroughputStore

__all__ = ["report"]


@click.command()
@click.argument("result", required=False, type=click.Path(path_type=Path))
@click.option("--journal", "from_journal", is_flag=True, help="Of the controller's journal, instead of a result.")
@click.option("--days", type=click.FloatRange(min=0, min_open=True), default=7.0, show_default=True,
              help="How far back, with --journal.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The HTML file to write.")
@config_options
def report(config: Config, result: Path | None, from_journal: bool, days: float, out: Path) -> None:
    """Write a page that needs no other file.

    RESULT is a compare.json of hadar compare, or a result of hadar simulate --json (which has no pictures of jobs).
    With --journal the page tells what the controller did in the last days: moves and why, use of the GPUs, jobs,
    usage by user.
    """
    if (result is None) is not from_journal:
        raise click.UsageError("give either a RESULT file or --journal")
    if result is not None:
        out.write_text(_of_result(result), encoding="utf-8")
    else:
        out.write_text(_of_journal(config, days), encoding="utf-8")
    click.echo(f"written: {out}")


def _of_result(path: Path) -> str:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError(f"result {path} does not exist") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise TraceError(f"result {path} cannot be read: {error}") from None
    document = check_document(content, str(path))
    title = "Policies compared" if len(document["policies"]) > 1 else f"Policy {document['policies'][0]['label']}"
    return compare_page(document, title)


def _of_journal(config: Config, days: float) -> str:
    journal = open_journal(config)
    try:
        errors = ThroughputStore(journal.connection).errors()
        now = time.time()
        half_life_s = config.fairness.half_life_h * 3600.0
        return journal_page(journal, errors, half_life_s, now - days * 86400.0, now, typed())
    finally:
        journal.close()
