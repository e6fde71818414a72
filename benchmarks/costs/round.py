"""One controller round on the private cluster: 60 nodes with 240 GPUs and 1,000 or 5,000 pending jobs.

    python -m benchmarks.costs.round [--jobs 1000 --jobs 5000] [--repeat 5]

Prints, per queue length, the median seconds of each part: the two reads, making the snapshot with its estimates, the
policy's decision, comparing it with what runs, and writing 100 changed jobs in one batch of scontrol.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import click

from slurm_hadar.cluster import ClusterSpec, PrivateCluster, up
from slurm_hadar.config import load
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.observe.graphs import GraphBook
from slurm_hadar.controller.observe.observer import Observer
from slurm_hadar.controller.observe.slurm_view import SlurmView
from slurm_hadar.controller.observe.sources import Sources
from slurm_hadar.controller.observe.usage import UsageBook
from slurm_hadar.controller.safety.guard import changes_of, limit
from slurm_hadar.policies import registry
from slurm_hadar.policies.check import check_plan
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.state import Write
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.throughput.table import reference

NODES = "v100:20x4,p100:20x4,k80:20x4"
FAMILIES = (("resnet18", 64), ("resnet50", 64), ("lm", 20), ("transformer", 64), ("recommendation", 2048))


def submit(cluster: PrivateCluster, count: int, first: int) -> None:
    """Pending jobs of five families and gangs of 1, 2 and 4; arrays of 50 tasks, since sbatch takes 8 ms a call."""
    tasks = 50
    for index in range(first, first + count, tasks):
        model, batch = FAMILIES[(index // tasks) % len(FAMILIES)]
        gpus = (1, 2, 4)[(index // tasks) % 3] if model != "recommendation" else 1
        comment = f"hadar:model={model},batch={batch},steps={1000 * (1 + index % 40)}"
        array = f"--array=1-{min(tasks, first + count - index)}"
        command = [
            "sbatch",
            array,
            f"--gres=gpu:{gpus}",
            f"--comment={comment}",
            "--requeue",
            "-o",
            "/dev/null",
            "--wrap",
            "sleep 9999",
        ]
        cluster.run(command, check=True)


def fill(cluster: PrivateCluster) -> None:
    """Occupy every GPU with jobs that the controller may move, so that the rest is pending."""
    comment = "hadar:model=resnet18,batch=64,steps=90000,lose=yes"
    sleeper = ["--requeue", "-o", "/dev/null", "--wrap", "sleep 9999"]
    cluster.run(["sbatch", "--array=1-60", "--gres=gpu:4", f"--comment={comment}", *sleeper], check=True)
    deadline = time.monotonic() + 120
    while sum(sum(n.gpus_used.values()) for n in cluster.node_states()) < 240:
        if time.monotonic() > deadline:
            raise SystemExit("the cluster did not fill up within 120 s")
        time.sleep(0.2)


def measure(cluster: PrivateCluster, repeat: int) -> dict[str, float]:
    """Median seconds of each part of a round."""
    backend = CliBackend(env=cluster.env)
    config = load(None, ["guard.max_preemptions=1000", "guard.min_run_s=0"])
    journal = Journal(":memory:")
    estimator, usage = Estimator(reference(), ThroughputStore(journal.connection)), UsageBook(journal, 7 * 86400.0)
    observer = Observer(config, Sources(ReportBook(), estimator, {}, usage, GraphBook(config.network)))
    policy = registry.get("hadar")
    parts: dict[str, list[float]] = {}

    def timed(part: str, began: float) -> float:
        now = time.perf_counter()
        parts.setdefault(part, []).append(now - began)
        return now

    for _ in range(repeat + 1):
        clock = time.perf_counter()
        state = backend.read()
        clock = timed("read_s", clock)
        seen = observer.observe(SlurmView.of(state, config.gpus.memory_gb))
        clock = timed("observe_s", clock)
        plan = policy.allocate(seen.snapshot)
        clock = timed("decide_s", clock)
        problems = check_plan(seen.snapshot, plan)
        changes = limit(seen.snapshot, changes_of(seen.snapshot, plan), config)
        clock = timed("diff_s", clock)
        if problems:
            raise SystemExit(f"the plan broke its contract: {problems[0]}")
        waiting = [j.job_id for j in seen.snapshot.jobs if not j.running][:100]
        backend.write([Write("update", (j,), (("NodeList", "v100-1"), ("StartTime", "now+900"))) for j in waiting])
        clock = timed("write_100_s", clock)
        backend.write([Write("update", tuple(waiting), (("StartTime", "now+900"),))])
        timed("lease_100_s", clock)
        backend.write([Write("update", (j,), (("NodeList", ""), ("StartTime", "now"))) for j in waiting])
    # The first turn pays for imports, caches and records of new jobs; a daemon pays that once.
    medians = {part: round(statistics.median(values[1:]), 4) for part, values in parts.items()}
    medians["first_round_s"] = round(sum(parts[p][0] for p in ("read_s", "observe_s", "decide_s", "diff_s")), 4)
    medians["round_s"] = round(sum(medians[p] for p in ("read_s", "observe_s", "decide_s", "diff_s")), 4)
    return {"jobs": len(state.jobs), "changes": sum(1 for c in changes if c.kind.occupies or c.kind.stops), **medians}


def bench(sizes: tuple[int, ...], repeat: int) -> dict[str, object]:
    """All sizes on one cluster, the queue growing from one to the next."""
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as folder:
        conf = ("MaxArraySize=1001", "MaxJobCount=20000")
        with up(ClusterSpec(name="bench", nodes=NODES, directory=Path(folder) / "c", extra_conf=conf)) as cluster:
            fill(cluster)
            results, pending = [], 0
            for size in sorted(sizes):
                submit(cluster, size - pending, pending)
                pending = size
                results.append({"pending": size, **measure(cluster, repeat)})
    return {"nodes": 60, "gpus": 240, "rounds": results}


@click.command()
@click.option("--jobs", "sizes", multiple=True, type=int, default=(1000, 5000), show_default=True)
@click.option("--repeat", default=5, show_default=True)
def main(sizes: tuple[int, ...], repeat: int) -> None:
    """Measure the parts of a controller round."""
    click.echo(json.dumps(bench(sizes, repeat), indent=1))


if __name__ == "__main__":
    main()
