"""Another number of workers goes on in the midst of an epoch: each sample of it is seen once, whoever batches."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SAMPLES, IN_A_STEP = 96, 8
TRAINING = """
import json, os, sys, torch, slurm_hadar
import torch.distributed as dist
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
torch.set_num_threads(1)
dist.init_process_group("gloo")
world, rank, data = dist.get_world_size(), dist.get_rank(), torch.arange(96.0)
sampler = DistributedSampler(data, seed=3)
mine = 8 // world
loader, more = {
    "scaled by the script": (DataLoader(data, mine, sampler=sampler), {}),
    "batches of its own": (DataLoader(data, batch_sampler=BatchSampler(sampler, mine, False)), {}),
    "global": (DataLoader(data, batch_sampler=BatchSampler(sampler, mine, False)), {"global_batch": 8}),
    "a function": (lambda: (data[n + rank * mine:][:mine] for n in range(0, 96, 8)), {}),
}[sys.argv[1]]
net = torch.nn.Linear(1, 1)
run = slurm_hadar.train(net, torch.optim.SGD(net.parameters(), lr=1e-4), total_steps=24, loader=loader,
                        save_every_steps=1, async_save=False, **more)
for x in run:
    print(json.dumps([run.step, run.epoch, x.tolist()]), flush=True)
    if run.step == int(sys.argv[2]): os._exit(9)
"""


@pytest.mark.parametrize("loader", ["scaled by the script", "batches of its own", "global", "a function"])
@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_each_sample_of_the_epoch_is_seen_once(
    run_gang: Any, job_env: dict[str, str], loader: str, before: int, after: int
) -> None:
    """And the next epoch comes in another order, where that is shuffled. Of a function nobody knows how many samples
    its batches have: the output says what it was taken for."""
    steps: dict[int, tuple[int, list[float]]] = {}
    for restart, (world, stop) in enumerate(((before, 5), (after, 99))):
        done = run_gang(TRAINING, {**job_env, "SLURM_RESTART_COUNT": str(restart)}, world, loader, str(stop))
        said = done[0].stderr
        lines = [json.loads(line) for one in done for line in one.stdout.splitlines()]
        for step, epoch, samples in lines:
            if step < stop:
                steps[step] = epoch, [*steps.get(step, (0, []))[1], *samples]
    if loader == "a function":
        assert f"{after} workers go on in the epoch of {before}, and the loader does not tell" in said
        return
    assert "WARNING" not in said
    seen = [Counter(x for of, samples in steps.values() if of == epoch for x in samples) for epoch in (0, 1)]
    assert seen == [Counter(map(float, range(SAMPLES)))] * 2
    assert all(len(samples) == IN_A_STEP for _, samples in steps.values()) and sorted(steps) == list(range(24))
    assert sorted(steps[0][1]) != sorted(steps[SAMPLES // IN_A_STEP][1])
