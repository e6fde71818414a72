"""A gang on unlike GPUs: equal shares of the global batch against shares that follow speed.

    python -m benchmarks.uneven [--fastest 12] [--seconds 20] [--json FILE]

Real jobs under real Slurm: each trains by DistributedDataParallel on a private cluster of one fast and one slow node,
whose GPU types are paced 3:1 in samples per second (a step takes as long as its samples: ``batch_exponent`` 1).
What a gang does is not paced: its workers wait for each other in their collectives, and measure themselves.

The rates alone are those of one worker with its own batch, in samples per second; a gang's are all its samples per
second, of a global batch twice as large. Exits with 1 if the balanced gang is slower than 1.5 times the gated one or
than 90 % of the two rates alone.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from slurm_hadar.cluster import ClusterSpec, PrivateCluster, up
from slurm_hadar.cluster.emulation import FILE

ROOT = Path(__file__).resolve().parents[1]
RATIO = 3.0
BATCH = 32  # of one worker
SETTLED = 48  # steps of a gang that do not count: it has found its shares by then
OVER_GATED, OF_SUM = 1.5, 0.9

SCRIPT = """#!/bin/bash
export OMP_NUM_THREADS=1
hadar-srun -- bash -c 'exec torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node=1 --node-rank=$SLURM_PROCID \\
    --master-addr=$HADAR_MASTER_ADDR --master-port=$HADAR_MASTER_PORT train.py'
"""

TRAINING = """
import json, os, time, torch, slurm_hadar
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
how = json.loads(os.environ["UNEVEN"])
torch.set_num_threads(1)
dist.init_process_group("gloo")
world, fast = dist.get_world_size(), os.environ["SLURMD_NODENAME"].startswith("v100")
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
data = TensorDataset(torch.randn(1 << 14, 64), torch.randn(1 << 14, 1))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=how["batch"], sampler=DistributedSampler(data), drop_last=True)
run = slurm_hadar.train(model, optimizer, total_steps=how["steps"], loader=loader, model_name="uneven",
                        batch=how["batch"], global_batch=how["batch"] * world, balanced=how["balanced"])
times = []
for x, y in run:
    if fast and run.step >= how["throttle_from"]:
        time.sleep(len(x) / how["throttle_to"])
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    times.append((time.time(), run.share))
if fast or world == 1:
    with open(how["out"], "w") as file:
        json.dump({"times": times, "global_batch": how["batch"] * world}, file)
"""


def describe_speeds(cluster: PrivateCluster, fastest: float) -> None:
    """Make the fast node's type ``fastest`` steps/s of BATCH samples and the slow one's a third of it."""
    path = cluster.conf.with_name(FILE)
    content = json.loads(path.read_text())
    rates = {"v100": fastest, "k80": fastest / RATIO}
    content["speeds"] = {f"uneven:{BATCH}": {t: {"1": {"one_node": rate}} for t, rate in rates.items()}}
    content["batch_exponent"] = 1.0
    path.write_text(json.dumps(content))


def train(cluster: PrivateCluster, work: Path, name: str, nodes: str, **how: Any) -> dict[str, Any]:
    """Run one training as a job on ``nodes``; the fast worker's times of its steps and its shares."""
    out = work / f"{name}.json"
    never = {"throttle_from": 1 << 60, "throttle_to": 1.0}
    told = json.dumps({"batch": BATCH, "balanced": False, "out": str(out), **never, **how}, separators=(",", ":"))
    bins = f"{Path(sys.executable).parent}:{cluster.env['PATH']}"
    python_path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    env = {**cluster.env, "PATH": bins, "PYTHONPATH": python_path, "UNEVEN": told}
    argv = [
        "sbatch",
        "--parsable",
        "--wait",
        "--gres=gpu:1",
        f"--nodelist={nodes}",
        f"-N{nodes.count(',') + 1}",
        f"--chdir={work}",
        f"--output={work}/{name}.out",
        str(work / "job.sh"),
    ]
    done = cluster.run(argv, check=False, env=env, cwd=work, timeout_s=600)
    if done.returncode or not out.exists():
        log = (work / f"{name}.out").read_text() if (work / f"{name}.out").exists() else done.stderr
        raise SystemExit(f"training {name} failed:\n{log}")
    click.echo(f"{name}: done", err=True)
    said = [line for line in (work / f"{name}.out").read_text().splitlines() if "samples per worker" in line]
    return {**json.loads(out.read_text()), "said": said}


def rate(result: dict[str, Any], begin: int, end: int | None = None) -> float:
    """Samples per second of the whole job from step ``begin`` to step ``end``."""
    times = [t for t, _ in result["times"]][begin:end]
    return float((len(times) - 1) * result["global_batch"] / (times[-1] - times[0]))


def changed(cluster: PrivateCluster, work: Path, fastest: float, seconds: float) -> dict[str, Any]:
    """A balanced gang whose fast worker is throttled to the slow one's speed in mid-run."""
    slow = fastest / RATIO * BATCH
    at = SETTLED + int(seconds * fastest * 2 / 3)
    steps = at + int(seconds * fastest / RATIO) + SETTLED
    result = train(
        cluster, work, "changed", "v100-1,k80-1", steps=steps, balanced=True, throttle_from=at, throttle_to=slow
    )
    shares = [share for _, share in result["times"]]
    again = next((i for i in range(at, steps) if shares[i] <= BATCH * 1.2), None)
    if again is None:
        raise SystemExit("the shares did not follow the change: " + "; ".join(result["said"]))
    return {
        "before_samples_per_s": round(rate(result, SETTLED, at), 1),
        "until_shared_anew_samples_per_s": round(rate(result, at, again), 1),
        "after_samples_per_s": round(rate(result, again), 1),
        "sum_of_present_rates": round(2 * slow, 1),
        "steps_until_shared_anew": again - at,
        "seconds_until_shared_anew": round(result["times"][again][0] - result["times"][at][0], 1),
        "fast_worker_share": [shares[at - 1], shares[-1]],
    }


def bench(fastest: float, seconds: float) -> dict[str, Any]:
    """All runs, one after the other."""
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as folder:
        work = Path(folder) / "work"
        work.mkdir()
        (work / "train.py").write_text(TRAINING)
        (work / "job.sh").write_text(SCRIPT)
        spec = ClusterSpec(name="uneven", nodes="v100:1x1,k80:1x1", directory=Path(folder) / "c")
        with up(spec) as cluster:
            describe_speeds(cluster, fastest)
            slow, both = fastest / RATIO, "v100-1,k80-1"
            alone = {
                node: rate(train(cluster, work, node, node, steps=int(seconds * speed) + 8), 8)
                for node, speed in (("v100-1", fastest), ("k80-1", slow))
            }
            gated = rate(train(cluster, work, "gated", both, steps=int(seconds * slow) + 8), 8)
            run = train(cluster, work, "balanced", both, steps=int(seconds * slow * 2) + SETTLED, balanced=True)
            balanced = rate(run, SETTLED)
            later = changed(cluster, work, fastest, seconds)
    total = sum(alone.values())
    return {
        "time": time.strftime("%Y-%m-%d", time.gmtime()),
        "fast_alone_samples_per_s": round(alone["v100-1"], 1),
        "slow_alone_samples_per_s": round(alone["k80-1"], 1),
        "gated_samples_per_s": round(gated, 1),
        "balanced_samples_per_s": round(balanced, 1),
        "fast_worker_share": run["times"][-1][1],
        "balanced_over_gated": round(balanced / gated, 3),
        "balanced_of_sum": round(balanced / total, 3),
        "changed_in_mid_run": later,
    }


@click.command()
@click.option("--fastest", default=12.0, show_default=True, help="Steps per second of the fast type alone.")
@click.option("--seconds", default=20.0, show_default=True, help="About how long each run is measured.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there too.")
def main(fastest: float, seconds: float, file: Path | None) -> None:
    """Measure a gang on unlike GPUs with equal and with balanced shares."""
    found = bench(fastest, seconds)
    text = json.dumps(found, indent=1)
    click.echo(text)
    if file is not None:
        file.write_text(text + "\n")
    if found["balanced_over_gated"] < OVER_GATED or found["balanced_of_sum"] < OF_SUM:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
