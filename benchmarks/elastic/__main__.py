"""Elastic gangs on the traces of Sia (SOSP 2023).

    python -m benchmarks.elastic DATA [--policies hadar,hadar:frontier=0] [--traces philly-1,saturn-3] [--page]

DATA is a folder with Sia's tables and traces, of which nothing is shipped with this project: ``job_types.csv``
(application, progress_total, restart_s), ``isolated_runtimes.csv`` (application, gpu, gpus, runtime_s: a job alone),
``traces/NAME.csv`` (name, time, application) and ``results/runs.csv`` (what Sia's own simulator gave). With ``--page``
the figures are kept in ``docs/results/elastic.json``, in which runs of other policies and traces stay as they are, and
``docs/results/elastic.md`` is made from it.
"""

from __future__ import annotations

from pathlib import Path

import click

from benchmarks.elastic import page
from benchmarks.elastic.data import read_peers
from benchmarks.elastic.play import play

TRACES = ("philly-1", "philly-3", "philly-5", "saturn-1", "saturn-3")


@click.command(help=__doc__)
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--policies", default="hadar", show_default=True, metavar="P,...")
@click.option("--traces", default=",".join(TRACES), show_default=True, metavar="T,...")
@click.option("--page", "keep", is_flag=True, help="Keep the figures, and write the page.")
@click.option("--out", default="docs/results", type=click.Path(path_type=Path), help="Folder of the page.")
def main(data: Path, policies: str, traces: str, keep: bool, out: Path) -> None:
    found = page.Book(
        [play(data, trace, policy) for trace in traces.split(",") for policy in policies.split(",")],
        [peer for trace in traces.split(",") for peer in read_peers(data, trace)],
    )
    click.echo(page.tables(found))
    if keep:
        page.write(found, out)


if __name__ == "__main__":
    main()
