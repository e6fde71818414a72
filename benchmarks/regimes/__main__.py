"""A map of regimes: every policy on clusters, loads and jobs of many kinds, and one against the best of all others.

    python -m benchmarks.regimes --page                        # the map; the page and its picture anew
    python -m benchmarks.regimes --quick --policies hadar,srtf # 12 GPUs, one seed
    python -m benchmarks.regimes --cells '^60-.*-none-'        # only cells whose name matches
    python -m benchmarks.regimes --cells '^60-.*-none-' --first 9 --seeds 9    # other draws of them
    python -m benchmarks.regimes --beyond 40 --page            # random regimes, and their page

Results are kept (``build/regimes.jsonl``), and a run is made only where there is none of the same scene and of the
same code of the policy, so that a map that was interrupted goes on, and after a change of one policy only that one is
run. A change of the simulator is not noticed: begin a new file then. ``hadar@before`` keeps the results of today's code
under a name; asked for again later, it stands beside ``hadar``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import click

from benchmarks.regimes import beyond, page, page_beyond
from benchmarks.regimes.cells import chosen, draws
from benchmarks.regimes.play import BOUND, Book, Task, code_of, play_all
from benchmarks.regimes.verdict import Map

POLICIES = (
    "fifo", "slurm", "srtf", "srtf:service=true", "allox", "tiresias", "gavel_las", "gavel_ftf", "gavel_ttd",
    "gavel_throughput", "asrpt", "spjf", "spwf", "spwf:theta=0.5", "wcs_duration", "wcs_workload", "wcs_subtime",
    "hadar", "hadar:frontier=0", "hadar:prices=round",
)  # fmt: skip
#: Not run with so many GPUs: 30 to 50 s of CPU a run, as much as all others together.
TOO_SLOW = {"240": "hadar:prices=round"}


@click.command(help=__doc__)
@click.option("--policies", default=",".join(POLICIES), metavar="P,...", help="Default: all that schedule whole jobs.")
@click.option("--judge", default="hadar", show_default=True, help="Who is held against the best other.")
@click.option("--cells", "pattern", default="", metavar="REGEX", help="Only cells whose name it is found in.")
@click.option("--quick", is_flag=True, help="Cells of 12 GPUs only, with one seed.")
@click.option("--full", is_flag=True, help="Three times as many cells.")
@click.option(
    "--beyond",
    "random",
    type=click.IntRange(min=1),
    metavar="N",
    help="N random regimes, not the map; --first K: those from number K on.",
)
@click.option("--seeds", type=click.IntRange(min=1), help="Default: 3, of 12 GPUs 9; with --quick 1.")
@click.option("--first", default=0, type=click.IntRange(min=0), help="Seed to begin with: other draws of a cell.")
@click.option("--jobs", "processes", default=2, show_default=True, type=click.IntRange(min=1), help="Processes.")
@click.option("--limit", "limit_s", default=120.0, show_default=True, help="CPU seconds that a run may take.")
@click.option("--results", default="build/regimes.jsonl", show_default=True, type=click.Path(path_type=Path))
@click.option(
    "--page", "write_page", is_flag=True, help="Write docs/results/regimes.md, .png and .json, or beyond.md and .json."
)
@click.option("--out", default="docs/results", type=click.Path(path_type=Path), help="Folder of the page.")
@click.option("--remark", default="", metavar="TEXT", help="What readers of the page must know of the runs first.")
def main(
    policies: str, judge: str, pattern: str, quick: bool, full: bool, random: int | None, seeds: int | None,
    first: int, processes: int, limit_s: float, results: Path, write_page: bool, out: Path, remark: str,
) -> None:  # fmt: skip
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of the processes that are started: each has one core
    numbers, first = (range(first, first + random), 0) if random else (range(0), first)
    every = [beyond.cell(number) for number in numbers] or chosen(quick=quick, full=full)
    cells = [cell for cell in every if re.search(pattern, cell.name)]
    names = list(dict.fromkeys(policies.split(",")))
    seeds_of = {cell: 1 if random else seeds or (1 if quick else draws(cell)) for cell in cells}
    # a seed after the other: a map that is cut short has all cells
    tasks = [
        Task(cell.name, seed, name, code_of(name))
        for seed in range(first, first + max(seeds_of.values(), default=0))
        for cell in cells
        if seed < first + seeds_of[cell]
        for name in (*names, BOUND)
        if random or name != TOO_SLOW.get(cell["gpus"])
    ]
    book = Book(results)
    play_all(tasks, book, processes, limit_s)
    found = Map(row for task in tasks if (row := book.get(task)) is not None)
    click.echo(page.summary(found, judge))
    if write_page:
        (page_beyond if random else page).write(found, judge, out, remark)


if __name__ == "__main__":
    main()
