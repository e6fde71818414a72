"""What a page of the dashboard costs the server, with 10,000 jobs in the journal and a controller that goes on writing.

    python -m benchmarks.costs.web [--jobs 10000] [--nodes 60] [--repeat 40] [--json FILE]

Each page and its JSON is asked for ``repeat`` times, through everything but the network; the times are those of the
server, percentiles over the requests; the first of a page, which also reads its template, is told apart. ``cpu`` is the
processor time of a request, which does not depend on what else the machine does, and by which it is judged.
A process beside it writes to the journal all the time as a controller does: a round, its waits, prices and 200 changed
jobs, then a pause of 0.5 s.
"""

from __future__ import annotations

import json
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.synchronize import Event
from pathlib import Path

import click
from starlette.testclient import TestClient

from slurm_hadar.config import load
from slurm_hadar.controller.journal import DashboardChanges, Journal, RoundRecord
from slurm_hadar.testing.journals import write_journal
from slurm_hadar.web.app import create_app

PAGES = ("/", "/queue", "/queue?sort=start&page=50", "/queue?sort=price&desc=1", "/queue?text=resnet&user=ann",
         "/job/1", "/job/4000", "/node/a100-1", "/timeline", "/timeline?span=7d", "/timeline?span=7d&colour=user",
         "/ended", "/ended?user=ann", "/users", "/partitions", "/prices", "/prices?span=7d", "/api/overview.json",
         "/api/queue.json", "/api/timeline.json", "/api/prices.json", "/healthz")  # fmt: skip
LIMIT_S = 0.2


def keep_writing(path: Path, stop: Event) -> None:
    """Rounds as a controller writes them, over and over."""
    journal = Journal(path)
    rows, waits = journal.queue_rows(), journal.waits()
    turn = 0
    while not stop.wait(0.5):
        now, turn = time.time(), turn + 1
        number = journal.add_round(RoundRecord(now, "act", "hadar", round_s=360.0))
        journal.replace_waits(number, waits)
        first = turn * 200 % len(rows)
        journal.update_dashboard(
            now, DashboardChanges(queue=rows[first : first + 200], prices=[("v100", 1.0, 2.0, 3.0)])
        )
    journal.close()


def measure(jobs: int, nodes: int, repeat: int) -> list[dict[str, object]]:
    """One row for each page: percentiles in ms, bytes."""
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as folder:
        path, stop = Path(folder) / "journal.db", multiprocessing.Event()
        write_journal(path, time.time(), jobs=jobs, nodes=nodes, days=7.0, tasks=jobs // 2).close()
        writer = multiprocessing.Process(target=keep_writing, args=(path, stop))
        client = TestClient(create_app(path, load()), base_url="http://localhost")
        writer.start()
        try:
            return [_page(client, page, repeat) for page in PAGES]
        finally:
            stop.set()
            writer.join()


def _page(client: TestClient, page: str, repeat: int) -> dict[str, object]:
    times, cpu, size = [], [], 0
    for _ in range(repeat + 1):
        began, worked = time.perf_counter(), time.process_time()
        answer = client.get(page)
        times.append(time.perf_counter() - began)
        cpu.append(time.process_time() - worked)
        if answer.status_code != 200:
            raise SystemExit(f"{page}: {answer.status_code} {answer.text[:200]}")
        size = len(answer.content)
    found: dict[str, object] = {"page": page, "bytes": size, "first_cpu_ms": round(1000 * cpu[0], 1)}
    for name, values in (("cpu", cpu[1:]), ("wall", times[1:])):
        parts = statistics.quantiles(values, n=100, method="inclusive")
        found |= {f"{name}_p50_ms": round(1000 * parts[49], 1), f"{name}_p95_ms": round(1000 * parts[94], 1)}
    return found


@click.command()
@click.option("--jobs", default=10_000, show_default=True)
@click.option("--nodes", default=60, show_default=True)
@click.option("--repeat", default=40, show_default=True)
@click.option("--json", "file", type=click.Path(path_type=Path, dir_okay=False))
def main(jobs: int, nodes: int, repeat: int, file: Path | None) -> None:
    """Measure, print one object, and fail where the 95th percentile of a page's processor time is above 200 ms."""
    pages = measure(jobs, nodes, repeat)
    result = {"jobs": jobs, "nodes": nodes, "repeat": repeat, "pages": pages}
    text = json.dumps(result, indent=2)
    click.echo(text)
    if file is not None:
        file.write_text(text + "\n")
    slow = [p["page"] for p in pages if float(str(p["cpu_p95_ms"])) > 1000 * LIMIT_S]
    if slow:
        raise SystemExit(f"above {1000 * LIMIT_S:g} ms: {', '.join(map(str, slow))}")


if __name__ == "__main__":
    main()
