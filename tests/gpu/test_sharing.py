"""Jobs that share a real GPU's time and memory by turns."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch

HADAR = ("-m", "slurm_hadar.cli.main", "share", "run", "--memory")
MIB = 2**20
#: Keeps 256 MiB and needs about 1 GiB more within an iteration; says what its weights are, and what it saw.
TRAINING = """
import hashlib, json, sys, time, torch
from slurm_hadar.sharing.broker.queries import status_of
import os, pathlib
torch.use_deterministic_algorithms(True)
torch.manual_seed(int(sys.argv[1]))
model = torch.nn.Sequential(*(p for _ in range(8) for p in (torch.nn.Linear(1024, 1024), torch.nn.Dropout(0.1)))).cuda()
kept = torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
for folder in map(pathlib.Path, sys.argv[3:]):  # begins when the other does
    (folder / sys.argv[1]).touch()
    while len(list(folder.iterdir())) < 2:
        time.sleep(0.01)
for _ in range(30):
    optimizer.zero_grad()
    model(torch.randn(1024, 1024, device="cuda").repeat(int(sys.argv[2]), 1)).square().mean().backward()
    optimizer.step()
measured = None
if os.environ.get("HADAR_SHARE"):
    sessions = status_of(pathlib.Path(os.environ["HADAR_SHARE"]))["sessions"]
    measured = [s["measured"] for s in sessions if s["pid"] == os.getpid()]
digest = hashlib.sha256(b"".join(v.cpu().numpy().tobytes() for v in model.state_dict().values())).hexdigest()
freed = torch.cuda.memory_stats()["num_device_free"]
said = {"weights": digest, "measured": measured, "allocated": torch.cuda.memory_allocated(), "freed": freed}
print(json.dumps(said), flush=True)
"""


#: As PyTorch's documentation of CUDA graphs has it: warmed up on a stream of its own, captured whole, replayed.
GRAPH = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1)).cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01, capturable=True)
x, y = torch.randn(512, 256, device="cuda"), torch.randn(512, 1, device="cuda")
def iteration():
    optimizer.zero_grad(set_to_none=True)
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss
stream = torch.cuda.Stream()
stream.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(stream):
    for _ in range(3): first = iteration()
torch.cuda.current_stream().wait_stream(stream)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    loss = iteration()
for _ in range(200): graph.replay()
print("fell", (loss < first).item(), flush=True)
"""


def _said(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("memory", ["6G", "8G"], ids=["handed on", "kept"])
def test_weights_are_those_of_a_job_alone_bit_by_bit(
    run: Callable[..., Any], script: Callable[[str], str], tmp_path: Path, memory: str
) -> None:
    """What an iteration needs of memory is handed on at each switch, or kept where it fits beside the other's."""
    path = script(TRAINING)
    alone = [_said(run(path, seed, "32").stdout)[0]["weights"] for seed in "12"]
    assert alone[0] != alone[1]
    told = {"HADAR_SHARE_PERSISTENT": "1G", "HADAR_SHARE_EPHEMERAL": "3G"}
    both = tmp_path / "both"
    both.mkdir()
    done = run(*HADAR, memory, *(f"{sys.executable} {path} {seed} 32 {both}" for seed in "12"), **told)
    assert {said["weights"] for said in _said(done.stdout)} == set(alone)
    assert [said["freed"] > 0 for said in _said(done.stdout)] == [memory == "6G"] * 2
    turns = re.findall(r"ended with 0 .*: (\d+) turns", done.stderr)
    assert len(turns) == 2 and all(int(n) >= 30 for n in turns), done.stderr


def test_what_a_job_takes_is_measured(run: Callable[..., Any], script: Callable[[str], str]) -> None:
    """P holds its tensors, and context and libraries where the driver tells of them; E the most of an iteration."""
    (said,) = _said(run(*HADAR, "8G", f"{sys.executable} {script(TRAINING)} 1 32").stdout)
    (measured,) = said["measured"]
    beside = measured["persistent_bytes"] - said["allocated"]
    assert 0 <= beside < 4096 * MIB
    rows, kept_per_row = 32 * 1024, 8 * 1024 * 5
    assert rows * kept_per_row < measured["ephemeral_bytes"] < 3 * rows * kept_per_row


def test_who_tells_too_little_fails_itself(run: Callable[..., Any], script: Callable[[str], str]) -> None:
    """And not the one beside it."""
    path = script(TRAINING)
    little = f"HADAR_SHARE_PERSISTENT=1G HADAR_SHARE_EPHEMERAL=512M {sys.executable} {path} 1 64"
    done = run(*HADAR, "8G", little, f"{sys.executable} {path} 2 8", code=1)
    assert len(_said(done.stdout)) == 1
    assert "PyTorch gives this job" in done.stderr and "OutOfMemoryError" in done.stderr, done.stderr


def test_a_captured_graph_is_not_broken(run: Callable[..., Any], script: Callable[[str], str]) -> None:
    """By turns that end within it, and one beside it that wants them."""
    done = run(*HADAR, "8G", f"{sys.executable} {script(GRAPH)}", f"{sys.executable} {script(TRAINING)} 1 8")
    assert "fell True" in done.stdout
