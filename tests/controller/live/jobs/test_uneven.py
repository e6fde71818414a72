"""A gang on two GPU types, placed by a real controller: shares follow speed, samples and result stay the same."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.slurm, pytest.mark.torch]
pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[4]
DEADLINE_S = 240.0
BATCH, STEPS = 128, 120  # of all workers together
SCRIPT = """
import json, sys, torch, slurm_hadar
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
net = torch.nn.Linear(4, 1).double()
data = TensorDataset(torch.randn(1000, 4, dtype=torch.float64), torch.randn(1000, 1, dtype=torch.float64))
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
loader = DataLoader(data, batch_size=1, sampler=DistributedSampler(data, seed=3))
run = slurm_hadar.train(model, optimizer, total_steps=int(sys.argv[1]), loader=loader, global_batch=int(sys.argv[2]),
                        state={"shares": []})
for x, y in run:
    optimizer.zero_grad(); torch.nn.functional.mse_loss(model(x), y).backward(); optimizer.step()
    size = torch.tensor([len(x)]); dist.all_reduce(size)
    run.state["shares"].append([len(x), size.item()])
if dist.get_rank() == 0:
    print(json.dumps({"done": run.step, "shares": run.state["shares"], "weights": net.weight[0].tolist()}), flush=True)
"""
GANG = (
    "hadar-srun -- bash -c 'exec torchrun --nnodes=$SLURM_JOB_NUM_NODES --nproc-per-node=$SLURM_GPUS_ON_NODE "
    "--node-rank=$SLURM_PROCID --master-addr=$HADAR_MASTER_ADDR --master-port=$HADAR_MASTER_PORT "
    f"-- uneven.py {STEPS} {BATCH}'\n"
)


def expected_weights() -> list[float]:
    """What one worker with whole global batches comes to."""
    import torch

    torch.manual_seed(0)
    net = torch.nn.Linear(4, 1).double()
    x, y = torch.randn(1000, 4, dtype=torch.float64), torch.randn(1000, 1, dtype=torch.float64)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    sampler: Any = torch.utils.data.DistributedSampler(range(1000), num_replicas=1, rank=0, seed=3)
    batches = []
    for epoch in range(STEPS // (1000 // BATCH) + 1):
        sampler.set_epoch(epoch)
        batches.extend(torch.tensor(list(sampler)).split(BATCH))
    for indices in batches[:STEPS]:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(x[indices]), y[indices]).backward()
        optimizer.step()
    return net.weight[0].tolist()


def test_a_balanced_gang_runs_on_two_types(live: Any, poll: Any) -> None:
    """Asked for two GPUs on one node, with mix=balanced and up to two nodes: placed on a V100 and a K80. The V100 is
    soon given more than half of each step, every step has its samples, and the weights are those of one worker."""
    (live.work / "uneven.py").write_text(SCRIPT)
    path = os.pathsep.join([str(ROOT / "wrappers"), str(Path(sys.executable).parent), os.environ["PATH"]])
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR"))}
    env = {**clean, "PATH": path, "HADAR_PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    blocker = live.submit("--gres=gpu:4", "-N6", comment="")  # so that Slurm does not start it by itself
    told = f"hadar:model=resnet18,batch={BATCH // 2},steps={STEPS},mix=balanced,nodes=1-2"
    job = live.submit("--gres=gpu:2", comment=told, script=GANG, env=env)
    controller = live.controller(channel=True)
    controller.run_round()
    live.cluster.run(["scancel", blocker])
    poll(lambda: not live.gpus(blocker))
    live.place(**{f"j{job}": {"v100-1": 1, "k80-1": 1}})
    result = controller.run_round()
    assert result.record.failed == 0, result.outcome.log
    poll(lambda: live.holds(job, {"v100-1": 1, "k80-1": 1}))
    poll(lambda: live.state_of(job) not in ("PENDING", "RUNNING", "COMPLETING"), DEADLINE_S)

    text = (live.work / f"{job}.out").read_text()
    assert live.state_of(job) == "COMPLETED", text
    (words,) = [json.loads(line) for line in text.splitlines() if line.startswith('{"done"')]
    own, whole = zip(*words["shares"], strict=True)
    tail = 1000 % BATCH
    assert words["done"] == STEPS == len(own) and set(whole) == {BATCH, tail}
    assert own[0] == BATCH // 2  # equal to begin with
    first = re.search(r"hadar: from step (\d+) on (\d+)\+(\d+) of 128 samples per worker, by speeds of", text)
    # Slurm sorts nodes by name: the K80 has rank 0
    assert first and int(first[2]) < BATCH // 2 < int(first[3]), text
    assert own[int(first[1])] == int(first[2]) or whole[int(first[1])] == tail
    assert words["weights"] == pytest.approx(expected_weights(), rel=1e-10)
