"""``hadar report``: a page of a result, or of what the controller did."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from slurm_hadar.cli.common import Number, config_options, journal_path
from slurm_hadar.cli.studies.compare import typed
from slurm_hadar.config import Config
from slurm_hadar.controller.answers.savings import SAVINGS_DAYS
from slurm_hadar.controller.journal import journal_copy
from slurm_hadar.errors import TraceError, reason_of
from slurm_hadar.pages.comparison import SITE_TITLE, TITLE, check_document, compare_page
from slurm_hadar.pages.report import journal_page
from slurm_hadar.simulator.replay import HAPPENED
from slurm_hadar.throughput.store import ThroughputStore

__all__ = ["report"]

_MOST_DAYS = 36_500.0  # all that there can be
_OF_ANOTHER_FORM = (TypeError, KeyError, IndexError, ValueError, AttributeError)


@click.command()
@click.argument("result", required=False, type=click.Path(path_type=Path))
@click.option("--journal", "from_journal", is_flag=True, help="Of the controller's journal, instead of a result.")
@click.option("--days", type=Number(0.0, _MOST_DAYS, min_open=True), default=SAVINGS_DAYS, show_default=True,
              help="How far back, with --journal.")  # fmt: skip
@click.option("--replay", "replayed", type=click.Path(path_type=Path, dir_okay=False),
              help="replay.json of hadar replay --out, to be told on the page too, with --journal.")  # fmt: skip
@click.option("--out", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The HTML file to write.")
@config_options
def report(
    config: Config, result: Path | None, from_journal: bool, days: float, replayed: Path | None, out: Path
) -> None:
    """Write a page that needs no other file.

    RESULT is a compare.json of hadar compare, or a result of hadar simulate --json (which has no pictures of jobs).
    With --journal the page tells what the controller did in the last days: what it gained, or would have gained in
    modes observe and advise, moves and why, use of the GPUs, jobs, usage by user.
    """
    if (result is None) is not from_journal:
        raise click.UsageError("give either a RESULT file or --journal")
    if replayed is not None and not from_journal:
        raise click.UsageError("--replay goes with --journal")
    if result is not None:
        out.write_text(_of_result(result), encoding="utf-8")
    else:
        out.write_text(_of_journal(config, days, replayed), encoding="utf-8")
    click.echo(f"written: {out}")


def _of_result(path: Path) -> str:
    document = _document(path)
    try:
        labels = [policy["label"] for policy in document["policies"]]
        if HAPPENED in labels:
            return compare_page(document, SITE_TITLE)
        return compare_page(document, TITLE if len(labels) > 1 else f"Policy {labels[0]}")
    except _OF_ANOTHER_FORM as error:
        raise TraceError(f"result {path} is damaged, or of another version: {reason_of(error)}") from error


def _document(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TraceError(f"result {path} does not exist") from None
    except (OSError, ValueError, RecursionError) as error:
        raise TraceError(f"result {path} cannot be read: {error}") from None
    return check_document(content, str(path))


def _of_journal(config: Config, days: float, replayed: Path | None) -> str:
    document = None if replayed is None else _document(replayed)
    if document is not None and all(policy.get("label") != HAPPENED for policy in document["policies"]):
        raise TraceError(f"{replayed} is not of hadar replay: it does not tell what happened")
    with journal_copy(journal_path(config)) as journal:
        errors = ThroughputStore(journal.connection).errors()
        now = time.time()
        half_life_s = config.fairness.half_life_h * 3600.0
        return journal_page(journal, errors, half_life_s, now - days * 86400.0, now, typed(), document)
