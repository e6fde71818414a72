"""Trials on a GPU: parts of it and the whole, forked from a process that has imported PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("optuna")
pytestmark = pytest.mark.torch

STUDY = """
import torch, slurm_hadar
from torch import nn

def objective(trial):
    lr = trial.suggest_float("lr", 1e-3, 1e-1, log=True)
    torch.manual_seed(trial.number)
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    batches = [(torch.randn(256, 256), torch.randn(256, 1)) for _ in range(20)]
    run = slurm_hadar.train(model, optimizer, total_steps=200, loader=batches, save_every_s=None)
    for x, y in run:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        if (run.step + 1) % 50 == 0:
            trial.report(loss.item(), (run.step + 1) // 50)
            trial.should_prune()
    return loss.item()
"""


@pytest.mark.parametrize("algorithm", ["random", "sha"])
def test_trials_share_it(run: Callable[..., Any], tmp_path: Path, algorithm: str) -> None:
    (tmp_path / "study.py").write_text(STUDY)
    words = ("study.py:objective", "--trials", "6", "--algorithm", algorithm, "--gpus", "1", "--packed", "2")
    done = run("-m", "slurm_hadar.cli.main", "tune", "run", *words, "--json", "-")
    result = json.loads(done.stdout)
    assert sum(result["trials"].values()) == 6 and "failed" not in result["trials"], done.stderr
    lines = [line for file in tmp_path.glob("*.hadar/*/events.jsonl") for line in file.read_text().splitlines()]
    widths = [event["width"] for event in map(json.loads, lines) if event["event"] == "start"]
    assert "1/2" in widths, widths
