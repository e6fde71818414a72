"""``make demo``: run it, watch it, compare it.

python -m examples.demo [--out DIR] [--only stock|hadar]
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean

import click
from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.demo.jobs import FASTEST_STEPS_PER_S, LEASE_S, NODES, SEED, SETTINGS, DemoJob, draw_jobs
from examples.demo.picture import draw
from examples.demo.record import RunRecord, final_words, make_track
from examples.demo.simulated import Simulated, simulated
from slurm_hadar.cli.main import run as run_command
from slurm_hadar.cluster import ClusterSpec, PrivateCluster, up
from slurm_hadar.cluster.daemon import controller_beside, hold_new_jobs
from slurm_hadar.config import load
from slurm_hadar.controller.journal import Journal
from slurm_hadar.errors import ClusterError
from slurm_hadar.slurm.backend.cli import CliBackend

HERE = Path(__file__).resolve().parent
EXAMPLES = HERE.parent
JOBS = draw_jobs(SEED)
LONGEST_RUN_S = 900.0
SAMPLE_S = 0.5

ROWS = (
    ("average JCT", "avg_jct_s", "{:.1f} s"),
    ("95th percentile JCT", "p95_jct_s", "{:.1f} s"),
    ("total time (TTD)", "ttd_s", "{:.1f} s"),
    ("GPU utilisation", "gru", "{:.0%}"),
    ("moves", "moves", "{:.0f}"),
    ("steps lost", "lost_steps", "{:.0f}"),
)

console = Console()


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("demo-results"), show_default=True)
@click.option("--only", type=click.Choice(["stock", "hadar"]), help="Run one of the two only.")
def main(out: Path, only: str | None) -> None:
    """The same training jobs under stock Slurm and under Hadar; a table and a picture at the end."""
    out.mkdir(parents=True, exist_ok=True)
    records = []
    for policy in ("stock", "hadar"):
        if only in (None, policy):
            console.rule(f"{len(JOBS)} jobs on {NODES}: {'stock Slurm' if policy == 'stock' else 'Hadar'}")
            records.append(run(policy, out))
    (out / "demo.json").write_text(json.dumps([r.as_dict() for r in records], indent=1) + "\n")
    draw(records, out / "demo.png")
    console.rule("result")
    console.print(_comparison(records))
    problems = _check(records)
    for problem in problems:
        console.print(f"[red]{problem}[/]")
    if len(records) == 2 and not problems:
        moved = sum(1 for t in records[1].jobs.values() if t.moves)
        console.print(f"All {len(JOBS)} jobs, {moved} of them moved, ended with bit-identical weights in both runs.")
        console.print(_expected(simulated(records, load(None, SETTINGS))))
    console.print(f"Picture: {out / 'demo.png'}   data: {out / 'demo.json'}")
    sys.exit(1 if problems else 0)


def run(policy: str, out: Path) -> RunRecord:
    """One run on a fresh cluster, taken down whatever happens. The controller's journal and log stay in ``out``."""
    state = out.resolve() / "controller"
    shutil.rmtree(state, ignore_errors=True)
    state.mkdir()
    with tempfile.TemporaryDirectory(prefix="hadar-demo-") as folder:
        spec = ClusterSpec(
            name=f"demo-{policy}-{os.getpid()}",
            nodes=NODES,
            directory=Path(folder) / "c",
            fastest_steps_per_s=FASTEST_STEPS_PER_S,
            plugins=policy == "hadar",
        )
        with up(spec) as cluster:
            if policy == "hadar":
                hold_new_jobs(cluster.env, LEASE_S)
            work = Path(folder) / "work"
            work.mkdir()
            with _controller(cluster, policy, state) as alive:
                record = _watch(cluster, policy, work, alive)
            _complete(record, work, state if policy == "hadar" else None)
    return record


@contextmanager
def _controller(cluster: PrivateCluster, policy: str, state: Path) -> Iterator[Callable[[], bool]]:
    """``hadar run`` beside the cluster; nothing for stock Slurm. Gives a function that says whether it is still
    there."""
    if policy == "stock":
        yield lambda: True
        return
    with controller_beside(cluster.env, state, settings=SETTINGS) as process:
        yield lambda: process.poll() is None


def _watch(cluster: PrivateCluster, policy: str, work: Path, alive: Callable[[], bool]) -> RunRecord:
    """Submit each job at its time, sample Slurm and keep the live table up to date until all have ended."""
    backend = CliBackend(env=cluster.env)
    nodes = {n.name: (next(iter(n.gpus)), sum(n.gpus.values())) for n in cluster.nodes}
    record = RunRecord(policy, nodes)
    waiting = list(JOBS)
    began = time.monotonic()
    with Live(console=console, refresh_per_second=2, transient=True) as live:
        while alive() and (waiting or not record.done):
            now_s = time.monotonic() - began
            if now_s > LONGEST_RUN_S:
                raise ClusterError(f"the demo did not end within {LONGEST_RUN_S:g} s; see {cluster.directory}")
            while waiting and waiting[0].arrival_s <= now_s:
                job = waiting.pop(0)
                job_id = _submit(cluster, job, work)
                record.jobs[job_id] = make_track(job, job_id, now_s)
            record.see(backend.read(), time.monotonic() - began)
            live.update(_live_table(record, len(waiting), time.monotonic() - began))
            time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - began - now_s)))
    return record


def _submit(cluster: PrivateCluster, job: DemoJob, work: Path) -> str:
    bin_dir = Path(sys.executable).parent
    env = {**cluster.env, "PATH": f"{bin_dir}:{cluster.env['PATH']}", "HADAR_DEMO_WORKERS": str(job.workers)}
    # hadar-srun takes these from the comment only where a controller listens; jobs of stock Slurm feel the same speeds
    env |= {"HADAR_MODEL": job.model, "HADAR_BATCH": str(job.batch)}
    command = [
        "sbatch",
        "--parsable",
        f"--job-name={job.name}",
        f"--gres=gpu:{job.workers}",
        f"--comment={job.comment}",
        f"--output={work}/{job.name}.out",
        f"--chdir={work}",
        str(HERE / "job.sbatch"),
        str(EXAMPLES / job.script),
        f"--steps={job.steps}",
        f"--seed={sum(job.name.encode())}",
        f"--log={work}/{job.name}.jsonl",
    ]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=work)
    if done.returncode != 0:
        raise ClusterError(f"sbatch refused job {job.name}: {done.stderr.strip()}")
    return done.stdout.strip().split(";")[0]


def _complete(record: RunRecord, work: Path, state: Path | None) -> None:
    """Add what Slurm does not know: results from the jobs' output, moves and lost steps from the journal."""
    journal = Journal(state / "journal.db") if state else None
    for track in record.jobs.values():
        track.result = final_words(work / f"{track.name}.out")
        known = journal.job(track.job_id) if journal else None
        if known is not None:
            track.lost_steps, track.start_s = known.lost_steps, known.start_s
        if not track.result:
            tail = (work / f"{track.name}.out").read_text(errors="replace").splitlines()[-3:]
            console.print(f"[red]{track.name} did not finish:[/] {' / '.join(tail)}")
    if journal:
        journal.close()


def _live_table(record: RunRecord, waiting: int, now_s: float) -> Table:
    table = Table(title=f"{record.policy}, {now_s:.0f} s, {waiting} jobs still to come", box=None, pad_edge=False)
    for title in ("job", "GPUs", "state", "where", "moves", "time"):
        table.add_column(title, justify="right" if title in ("GPUs", "moves", "time") else "left", min_width=6)
    colours = {"running": "green", "pending": "yellow", "done": "dim"}
    for track in record.jobs.values():
        where = "+".join(track.stints[-1].nodes) if track.stints and track.state == "running" else ""
        span = (track.end_s or now_s) - track.submit_s
        colour = colours.get(track.state, "white")
        table.add_row(
            track.name, str(track.workers), f"[{colour}]{track.state}[/]", where, str(track.moves), f"{span:.0f} s"
        )
    return table


def _comparison(records: list[RunRecord]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for record in records:
        table.add_column("stock Slurm" if record.policy == "stock" else "Hadar", justify="right")
    if len(records) == 2:
        table.add_column("ratio", justify="right")
    summaries = [r.summary() for r in records]
    for label, key, form in ROWS:
        values = [s[key] for s in summaries]
        ratio = [f"{values[0] / values[1]:.2f} x"] if len(values) == 2 and key.endswith("_s") and values[1] else []
        table.add_row(label, *(form.format(v) for v in values), *ratio)
    return table


def _expected(what: Simulated) -> str:
    """What the simulator says of this queue and of others."""

    def told(key: str) -> str:
        this, *others = (ratios[key] for ratios in what.ratios)
        return f"{this:.2f} x ({fmean(others):.2f} x, {min(others):.2f} to {max(others):.2f})"

    return (
        f"Simulated, with starts of {what.start_s:.0f} s as here (in brackets: other draws of jobs, mean and range): "
        f"average JCT {told('avg_jct_s')}, TTD {told('ttd_s')}. In the median over jobs a completion time differs from "
        f"the simulated one by {what.off['stock']:.0%} under stock Slurm, by {what.off['hadar']:.0%} under Hadar."
    )


def _check(records: list[RunRecord]) -> list[str]:
    """Every job must have finished, and with the same weights in both runs."""
    problems = [f"{r.policy}: {t.name} ended {t.state}" for r in records for t in r.jobs.values() if not t.result]
    if len(records) == 2:
        results = [{t.name: t.result for t in r.jobs.values()} for r in records]
        differing = [n for n in results[0] if results[0][n] and results[1].get(n) and results[0][n] != results[1][n]]
        problems += [f"{n}: weights or loss differ between the runs" for n in differing]
    return problems


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit takes the cluster down, a kill would not
    run_command(main, "demo")
