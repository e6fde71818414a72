"""Trainings on a GPU that are stopped go on exactly, and what copies of one exchange fits on it."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

#: Dropout by the GPU's own generator, batch norm, AdamW, a schedule, shuffling.
SCRIPT = """
import hashlib, json, os, signal, sys, torch, slurm_hadar
from torch.utils.data import DataLoader, TensorDataset
torch.use_deterministic_algorithms(True)
nn, many = torch.nn, "WORLD_SIZE" in os.environ
if many: torch.distributed.init_process_group("nccl", device_id=torch.device("cuda", 0))
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(64, 512), nn.BatchNorm1d(512), nn.Dropout(0.2), nn.Linear(512, 1)).cuda()
model = nn.parallel.DistributedDataParallel(net) if many else net
data = TensorDataset(torch.randn(1000, 64), torch.randn(1000, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=60)
loader = DataLoader(data, batch_size=50, shuffle=True, pin_memory=True)
stop, how = int(sys.argv[1]), sys.argv[2]
run = slurm_hadar.train(model, optimizer, total_steps=60, loader=loader, scheduler=schedule, state={"seen": 0},
                        save_every_steps=7, async_save=how == "async", directory=sys.argv[3])
begun = run.step
for x, y in run:
    loss = nn.functional.mse_loss(model(x.cuda(non_blocking=True)), y.cuda(non_blocking=True))
    optimizer.zero_grad(); loss.backward(); optimizer.step(); schedule.step()
    run.state["seen"] += len(x)
    if run.step == stop: os.kill(os.getpid(), signal.SIGKILL if how == "async" else signal.SIGTERM)
digest = hashlib.sha256(b"".join(t.cpu().numpy().tobytes() for t in net.state_dict().values())).hexdigest()
print(json.dumps({"weights": digest, "seen": run.state["seen"], "begun": begun}))
if many: torch.distributed.destroy_process_group()
"""
#: Two copies of a model that have trained for 3 and 5 steps, and what becomes of them, back on the GPU.
COPIES = """
import json, pathlib, sys, torch
from slurm_hadar.runtime.forks import weights
folder = pathlib.Path(sys.argv[1])
sources, states = [], []
for steps in (3, 5):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8)).cuda()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    torch.manual_seed(steps)
    for _ in range(steps):
        optimizer.zero_grad(); model(torch.randn(16, 8, device="cuda")).square().mean().backward(); optimizer.step()
    tensors, plain = weights.pack({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    path = folder / f"{steps}.safetensors"
    weights.write(path, tensors, {"content": plain, "parameters": ()})
    sources.append(weights.Source(path, steps))
    states.append(model.state_dict()["0.weight"].double())
weights.consolidate(sources, folder / "out")
tensors, plain = weights.read(folder / "out")
found = weights.unpack(tensors, plain["content"])
model.load_state_dict(found["model"]); optimizer.load_state_dict(found["optimizer"])
mean = (3 * states[0] + 5 * states[1]) / 8
print(json.dumps({"off": (model.state_dict()["0.weight"] - mean).abs().max().item(),
                  "moments": optimizer.state_dict()["state"][0]["exp_avg"].device.type}))
"""


@pytest.mark.parametrize(("how", "code"), [("async", -signal.SIGKILL), ("waiting", -signal.SIGTERM)])
@pytest.mark.parametrize("many", [False, True], ids=["alone", "nccl"])
def test_a_resumed_training_ends_with_the_same_bits(
    run: Callable[..., Any], script: Callable[[str], str], tmp_path: Path, how: str, code: int, many: bool
) -> None:
    """Killed while it saves behind its back, and told to end."""
    path = script(SCRIPT)
    gang = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    more = gang if many else {}
    alone = json.loads(run(path, "-1", how, str(tmp_path / "alone"), **more).stdout.splitlines()[-1])
    assert alone["begun"] == 0 and alone["seen"] == 60 * 50
    run(path, "31", how, str(tmp_path / "moved"), code=code, **more)
    resumed = json.loads(run(path, "-1", how, str(tmp_path / "moved"), **more).stdout.splitlines()[-1])
    assert 14 <= resumed["begun"] <= 32
    assert (resumed["weights"], resumed["seen"]) == (alone["weights"], alone["seen"])


def test_copies_of_a_job_are_averaged(run: Callable[..., Any], script: Callable[[str], str], tmp_path: Path) -> None:
    """From GPU to GPU by files."""
    said = json.loads(run(script(COPIES), str(tmp_path)).stdout)
    assert said["off"] < 1e-6 and said["moments"] == "cuda"


@pytest.mark.parametrize("name", ["cnn", "charlm", "recommender"])
def test_examples_train_on_it(run: Callable[..., Any], script: Callable[[str], str], tmp_path: Path, name: str) -> None:
    """As on a CPU, without an argument for it."""
    folder = Path(__file__).resolve().parents[2] / "examples"
    path = script(
        f"import runpy, sys, torch\nsys.path.insert(0, {str(folder)!r})\nsys.argv[1:] = ['--steps', '20']\n"
        f"runpy.run_path({str(folder / (name + '.py'))!r}, run_name='__main__')\n"
        "print(torch.cuda.max_memory_allocated())\n"
    )
    done = run(path, HADAR_JOB_DIR=str(tmp_path / "job")).stdout.splitlines()
    assert json.loads(done[-2])["done"] and int(done[-1]) > 0
