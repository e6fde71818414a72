"""``hadar compare``: several policies on one trace, side by side."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from slurm_hadar.cli.common import cell, console, print_json
from slurm_hadar.cli.studies.simulate import inputs, simulation_options
from slurm_hadar.controller.words import plain
from slurm_hadar.pages.comparison import compare_page, write_pictures
from slurm_hadar.pages.html import percent
from slurm_hadar.simulator.compare import Comparison, document, read_contenders
from slurm_hadar.simulator.compare import compare as run_comparison
from slurm_hadar.simulator.undone import comparable, share_undone, undone_lines
from slurm_hadar.units import lasting

__all__ = ["compare", "comparison_table", "progress", "tell_failures", "tell_undone", "typed", "write_comparison"]

_TIMES = ("avg_jct_s", "p50_jct_s", "p95_jct_s", "ttd_s")


@click.command()
@simulation_options
@click.option("--policies", required=True, metavar="A,B:KEY=VALUE", help="Who decides; parameters after colons.")
@click.option(
    "--out", "folder", required=True, type=click.Path(path_type=Path, file_okay=False), help="Where to write."
)
@click.option("-j", "--jobs", "processes", type=click.IntRange(min=1), help="Simulations at a time; default: CPUs.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def compare(policies: str, folder: Path, processes: int | None, as_json: bool, bounds: bool, **given: Any) -> int:
    """Simulate a trace under several policies and write a page, pictures and the figures.

    Writes compare.html (one file that needs no other), compare.json, and overview, jct_cdf, utilisation and gantt as
    PNG into the directory --out. Exit code 1 if a policy failed.
    """
    contenders = read_contenders(policies)
    trace, table, options = inputs(**given)
    folder.mkdir(parents=True, exist_ok=True)
    count = processes or min(len(contenders), os.cpu_count() or 1)
    with progress([c.label for c in contenders]) as told:
        comparison = run_comparison(trace, contenders, options, table, count, told, bounds)
    content = document(comparison, typed(), time.time())
    write_comparison(content, folder, "compare", compare_page(content))
    if as_json:
        print_json(content)
    else:
        console().print(comparison_table(content["policies"]))
        click.echo(f"written: {folder / 'compare.html'}")
    tell_undone(content["policies"])
    return tell_failures(comparison)


def tell_undone(policies: Sequence[dict[str, Any]]) -> None:
    """Say on stderr which policies left jobs undone, and how many."""
    for line in undone_lines(policies):
        click.echo(plain(f"hadar: {line}"), err=True)


def tell_failures(comparison: Comparison) -> int:
    """Say on stderr which policies failed, and why there are no bounds where some were asked for; the exit code."""
    if comparison.unbounded:
        click.echo(f"hadar: {comparison.unbounded}", err=True)
    for label, why in comparison.failed.items():
        click.echo(f"hadar: {label} failed: {why}", err=True)
    return 1 if comparison.failed else 0


def typed() -> str:
    """The command line, as it can be typed again."""
    return shlex.join(["hadar", *sys.argv[1:]])


def write_comparison(content: dict[str, Any], folder: Path, name: str, page: str) -> None:
    """``NAME.json``, ``NAME.html`` and the pictures."""
    (folder / f"{name}.json").write_text(json.dumps(content, separators=(",", ":")) + "\n", encoding="utf-8")
    (folder / f"{name}.html").write_text(page, encoding="utf-8")
    write_pictures(content, folder)


@contextmanager
def progress(labels: Sequence[str]) -> Iterator[Callable[[str, int, int], None] | None]:
    """Bars on stderr, one a policy, on a terminal only; gives what is to be told of progress."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("jobs"),
               TimeElapsedColumn())  # fmt: skip
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks = {label: bars.add_task(label, total=None) for label in labels}
        yield lambda label, done, total: bars.update(tasks[label], completed=done, total=total)


def comparison_table(policies: Sequence[dict[str, Any]]) -> Table:
    """One line a policy; with how many jobs it left undone, where any did."""
    table = Table(box=None, pad_edge=False)
    undone, judged = [share_undone(p, policies) for p in policies], comparable(policies)
    table.add_column("POLICY")
    if any(undone):
        table.add_column("NOT DONE", justify="right")
    for title in ("AVG JCT", "x BOUND", "MEDIAN", "95 %", "TTD", "x BOUND", "FAIRNESS", "WORST", "GPUS HELD",
                  "MOVES/JOB", "DECISION"):  # fmt: skip
        table.add_column(title, justify="right")
    for p, share in zip(policies, undone, strict=True):
        times = {key: lasting(p[key], (q[key] for q in policies)) for key in _TIMES}
        table.add_row(
            cell(p["label"]),
            *([share or "-"] if any(undone) else []),
            times["avg_jct_s"],
            _over(p["avg_jct_s"], p["lower_bound_avg_jct_s"] if p in judged else None),
            times["p50_jct_s"],
            times["p95_jct_s"],
            times["ttd_s"],
            _over(p["ttd_s"], p["lower_bound_ttd_s"] if p in judged else None),
            _number(p["ftf_mean"]),
            _number(p["ftf_max"]),
            percent(p["gru"]),
            _number(p["moves_per_job"] if p["rounds"] else None),
            f"{1000 * p['decide_mean_s']:.1f} ms" if p["rounds"] else "-",
        )
    return table


def _over(value: float | None, bound: float | None) -> str:
    return f"{value / bound:.2f}" if value and bound else "-"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
