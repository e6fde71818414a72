"""``hadar replay``: a site's own accounting under other policies."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from slurm_hadar.cli.common import console, print_json
from slurm_hadar.cli.studies.compare import (
    comparison_table,
    progress,
    tell_failures,
    tell_undone,
    typed,
    write_comparison,
)
from slurm_hadar.cli.studies.simulate import SceneOptions, scene, scene_options
from slurm_hadar.errors import TraceError
from slurm_hadar.pages.comparison import SITE_TITLE, compare_page
from slurm_hadar.simulator.compare import compare, document, read_contenders
from slurm_hadar.simulator.options import granted
from slurm_hadar.simulator.replay import (
    HAPPENED,
    Site,
    deviations,
    of_the_done,
    past,
    site_of_accounting,
    site_of_slurm,
)
from slurm_hadar.simulator.throughputs import load_table
from slurm_hadar.simulator.traces import Trace, node_types, read_text
from slurm_hadar.slurm.accounting import AccountedJob, parse_accounting
from slurm_hadar.slurm.backend.cli import CliBackend

__all__ = ["accounting_text", "replay"]

_SPAN = re.compile(r"(\d{1,4})([mhdw])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SACCT_S = 600.0
_KNOWN_LENGTHS = "policies are told how much work each job turned out to be, which on the day only its owner could say"
_OTHER_REASONS = (
    "in what happened, jobs may have waited for other reasons too: dependencies, holds, limits, reservations"
)


@click.command()
@scene_options
@click.option("--sacct", "file", metavar="FILE", help="Output of sacct -P or sacct --json; - reads it from stdin.")
@click.option("--since", default="30d", show_default=True, help="How far back to ask sacct: 30d, 12h, 2026-10-01.")
@click.option(
    "--node-types",
    "types",
    metavar="NODES=TYPE;...",
    help="GPU types of nodes, where accounting does not record them: gpu[01-08]=v100.",
)
@click.option("--policies", default="slurm,hadar", show_default=True, metavar="A,B:KEY=VALUE", help="Who decides.")
@click.option(
    "--out", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write a page and pictures here."
)
@click.option("-j", "--jobs", "processes", type=click.IntRange(min=1), help="Simulations at a time; default: CPUs.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def replay(policies: str, folder: Path | None, processes: int | None, as_json: bool, bounds: bool, **given: Any) -> int:
    """Say what policies would have made of the site's last weeks, against what happened.

    Policy slurm is the baseline: it is to do again what Slurm did by itself, and how near it comes to what happened is
    said, since the figures of the other policies can be trusted no further than that.
    Asks sacct and sinfo; with --sacct FILE it needs no Slurm. Only jobs with GPUs that have ended count. Everything
    that had to be assumed is listed. With --out it writes replay.html and pictures, as hadar compare does.
    """
    contenders = read_contenders(policies)
    file = given.pop("file")
    text, name = accounting_text(file, given.pop("since"))
    types_of = node_types(given.pop("types") or "")
    asked = SceneOptions(**given)
    table = load_table(asked.throughputs)
    trace = read_text(text, name, table, "sacct", types_of)
    records = parse_accounting(text, name)
    site = _site(records, trace, asked.cluster, asked=file is None)
    _, options = scene(replace(asked, cluster=site.spec), types_of)
    trace = granted(site.bound(trace), options.guard)
    count = processes or min(len(contenders), os.cpu_count() or 1)
    with progress([c.label for c in contenders]) as told:
        comparison = compare(trace, contenders, options, table, count, told, bounds)
    if comparison.results:
        happened = replace(past(records, trace, site, options.measure), bounds=comparison.bounds)
        happened = of_the_done(happened, [*comparison.results.values()])
        comparison.results = {HAPPENED: happened, **comparison.results}
    lengths = [_KNOWN_LENGTHS] if options.predictor is None else []
    content = document(comparison, typed(), time.time(), [*lengths, _OTHER_REASONS, *site.assumptions])
    _give(content, folder, as_json)
    tell_undone(content["policies"])
    return tell_failures(comparison)


def _give(content: dict[str, Any], folder: Path | None, as_json: bool) -> None:
    """Write the page and the pictures, and print the figures."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write_comparison(content, folder, "replay", compare_page(content, SITE_TITLE))
    if as_json:
        print_json(content)
    else:
        console().print(comparison_table(content["policies"]))
        for line in deviations(content["policies"]):
            click.echo(line)
        for line in content["assumptions"]:
            click.echo(f"assumed: {line}")
        if folder is not None:
            click.echo(f"written: {folder / 'replay.html'}")


def _site(records: Sequence[AccountedJob], trace: Trace, cluster: str | None, asked: bool) -> Site:
    """The cluster to simulate: as given, else as Slurm has it (if it was asked), else as the jobs show it."""
    if cluster is None and asked:
        return site_of_slurm(CliBackend().read().nodes)
    if cluster is None:
        return site_of_accounting(records, trace)
    try:
        return replace(site_of_accounting(records, trace), spec=cluster, assumptions=(), partitions={})
    except TraceError:  # no nodes are named: nothing is drawn of what happened, all else is known
        return Site(cluster, {})


def accounting_text(file: str | None, since: str) -> tuple[str, str]:
    """The text of sacct, and what it is called in errors. Users name their jobs, in whatever encoding."""
    if file is None:
        return CliBackend(timeout_s=_SACCT_S).accounting(_start(since)), "sacct"
    if file == "-":
        return sys.stdin.buffer.read().decode("utf-8-sig", "replace"), "stdin"
    try:
        return Path(file).read_text(encoding="utf-8-sig", errors="replace"), file
    except FileNotFoundError:
        raise TraceError(f"accounting {file} does not exist") from None
    except OSError as error:
        raise TraceError(f"accounting {file} cannot be read: {error}") from None


def since_epoch(since: str, now: float) -> float:
    """``30d``, ``12h`` or a local date as epoch seconds. Raises BadParameter."""
    match = _SPAN.fullmatch(since)
    if match:
        return now - int(match[1]) * dt.timedelta(**{_UNITS[match[2]]: 1}).total_seconds()
    return dt.datetime.fromisoformat(_start(since)).astimezone().timestamp()


def _start(since: str) -> str:
    """As sacct takes it."""
    match = _SPAN.fullmatch(since)
    if match:
        return f"now-{match[1]}{_UNITS[match[2]]}"
    if re.fullmatch(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d)?)?", since):
        with contextlib.suppress(ValueError, OverflowError):  # no such day, or none on this host's clock
            dt.datetime.fromisoformat(since).astimezone()
            return since
    raise click.BadParameter(f"{since!r} must be a span such as 30d or a date such as 2026-10-01", param_hint="--since")
