"""From a decision to the first step of the job that takes over preempted GPUs.

    python -m benchmarks.costs.preempt [--swaps 8] [--megabytes 10]

Two training jobs take turns on the only node of a private cluster; each turn checkpoints one and starts the other.
Prints the median of the whole and of its parts: ask and save, requeue, the node handed over and the batch script
started, and Python, PyTorch and the checkpoint loaded until the first step is done.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from slurm_hadar.cluster import ClusterSpec, PrivateCluster, up
from slurm_hadar.comment import read
from slurm_hadar.config import load
from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.loop import Controller
from slurm_hadar.controller.parts import Parts
from slurm_hadar.controller.setup import steer
from slurm_hadar.messages import CHANNEL_FILE, MAX_BYTES
from slurm_hadar.model import EMPTY, Placement, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import Policy
from slurm_hadar.slurm.backend.cli import CliBackend

SETTINGS = ("controller.mode=act", "controller.round_s=60", "guard.min_run_s=0", "guard.max_moves_per_job=1000",
            "jobs.ack_timeout_s=30")  # fmt: skip

SCRIPT = """#!/bin/bash
#SBATCH --requeue
#SBATCH --open-mode=append
export OMP_NUM_THREADS=1
date +'script %s.%N' >> {work}/$1
hadar-srun -- python {work}/train.py $1
"""

TRAINING = """
import sys, time
import torch
import slurm_hadar
torch.set_num_threads(1)
side = int(({megabytes} * 1e6 / 4) ** 0.5)
model = torch.nn.Linear(side, side, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
run = slurm_hadar.train(model, optimizer, total_steps=10**9, model_name="resnet18", batch=64)
said = False
for _ in run:
    optimizer.zero_grad()
    model(torch.ones(1, side)).sum().backward()
    optimizer.step()
    if not said:
        said = True
        with open("{work}/" + sys.argv[1], "a") as out:
            out.write(f"step {{time.time()}}\\n")
"""


class Swap(Policy):
    """Gives the node to the job that is named, and lets the other wait."""

    name = "swap"
    turn = ""

    def allocate(self, snapshot: Snapshot) -> Plan:
        jobs = {j.job_id for j in snapshot.steerable_jobs}
        where = Placement.of({"v100-1": {"v100": 2}})
        placed = {j: where for j in jobs if j == self.turn}
        return Plan(self.name, placed, {j: Wait(Tier.POLICY, "not its turn", wanted=EMPTY) for j in jobs - set(placed)})


def moments(path: Path, word: str) -> list[float]:
    """The times that a job noted under ``word``."""
    if not path.exists():
        return []
    return [float(line.split()[1]) for line in path.read_text().splitlines() if line.startswith(word + " ")]


def wait_for(path: Path, word: str, count: int, deadline_s: float = 120.0) -> float:
    """The ``count``-th time noted under ``word``, once it is there."""
    end = time.monotonic() + deadline_s
    while len(found := moments(path, word)) < count:
        if time.monotonic() > end:
            raise SystemExit(f"{path.name} did not note {word!r} {count} times within {deadline_s:g} s")
        time.sleep(0.01)
    return found[count - 1]


def submit(cluster: PrivateCluster, work: Path, name: str) -> str:
    path = f"{Path(sys.executable).parent}:{cluster.env['PATH']}"
    command = [
        "sbatch",
        "--parsable",
        "--gres=gpu:2",
        "--begin=now",
        "--comment=hadar:model=resnet18,batch=64",
        f"--chdir={work}",
        f"--output={work}/{name}.out",
        str(work / "job.sh"),
        name,
    ]
    return cluster.run(command, check=True, env={**cluster.env, "PATH": path}, cwd=work).stdout.strip()


def bench(swaps: int, megabytes: float) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as folder:
        work = Path(folder) / "work"
        work.mkdir()
        (work / "job.sh").write_text(SCRIPT.format(work=work))
        (work / "train.py").write_text(TRAINING.format(work=work, megabytes=megabytes))
        spec = ClusterSpec(name="preempt", nodes="v100:1x2", directory=Path(folder) / "c", fastest_steps_per_s=100.0)
        with up(spec) as cluster:
            return _swap(cluster, work, Path(folder), swaps, megabytes)


def _swap(cluster: PrivateCluster, work: Path, folder: Path, swaps: int, megabytes: float) -> dict[str, object]:
    book = ReportBook()
    file = Path(cluster.conf).parent / CHANNEL_FILE
    channel = Channel(book, folder, "tcp://127.0.0.1:*", "127.0.0.1", file, MAX_BYTES)
    policy = Swap()
    backend = CliBackend(env=cluster.env)
    controller = steer(policy, load(None, SETTINGS), Parts(backend, Journal(":memory:"), book, channel))
    names = {submit(cluster, work, "a"): "a"}
    wait_for(work / "a", "step", 1)
    names[submit(cluster, work, "b")] = "b"
    parts: dict[str, list[float]] = {"save": [], "requeue": [], "start": [], "load_and_first_step": [], "total": []}
    try:
        jobs = list(names)
        policy.turn = jobs[0]
        controller.run_round()
        for index in range(swaps):
            _wait_resumable(backend, book, policy.turn, restart=index // 2)
            policy.turn = jobs[(index + 1) % 2]
            _one_swap(controller, work / names[policy.turn], parts)
    finally:
        channel.close()
        cluster.run(["scancel", *names])
    medians = {f"{k}_s": round(statistics.median(v), 3) for k, v in parts.items()}
    return {"swaps": swaps, "checkpoint_megabytes": megabytes, **medians}


def _wait_resumable(backend: CliBackend, book: ReportBook, job_id: str, restart: int, deadline_s: float = 60.0) -> None:
    """Until the running job's agent has told the controller that it can save, and its comment vouches for it."""
    end = time.monotonic() + deadline_s
    while True:
        book.expect({job.job_id: read(job.comment)[0].key for job in backend.read_jobs()})
        news = book.get(job_id)
        if news is not None and news.report.restart >= restart and news.report.resumable:
            return
        if time.monotonic() > end:
            raise SystemExit(f"job {job_id} did not report within {deadline_s:g} s")
        time.sleep(0.05)


def _one_swap(controller: Controller[Any], log: Path, parts: dict[str, list[float]]) -> None:
    scripts, steps = len(moments(log, "script")), len(moments(log, "step"))
    decided = time.time()
    result = controller.run_round()
    if result.record.preemptions != 1 or result.outcome is None:
        raise SystemExit(f"the swap did not happen: {[c.why for c in result.changes]}")
    marks = result.outcome.marks
    started, stepped = wait_for(log, "script", scripts + 1), wait_for(log, "step", steps + 1)
    parts["save"].append(marks["saved"] - decided)
    parts["requeue"].append(marks["written"] - marks["saved"])
    parts["start"].append(started - marks["written"])
    parts["load_and_first_step"].append(stepped - started)
    parts["total"].append(stepped - decided)


@click.command()
@click.option("--swaps", default=8, show_default=True)
@click.option("--megabytes", default=10.0, show_default=True, help="Size of the model's weights.")
def main(swaps: int, megabytes: float) -> None:
    """Measure how long preempted GPUs stand still."""
    click.echo(json.dumps(bench(swaps, megabytes), indent=1))


if __name__ == "__main__":
    main()
