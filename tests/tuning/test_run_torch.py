"""Trials that train with PyTorch: on parts of a GPU, on several, from checkpoint to checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("optuna")
pytestmark = [pytest.mark.torch, pytest.mark.thorough]

STUDY = """
import torch, slurm_hadar, time
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

torch.set_num_threads(1)
DATA = TensorDataset(torch.arange(64.0).unsqueeze(1))

def objective(trial):
    lr = trial.suggest_float("lr", 0.05, 0.05)  # all are alike
    several = torch.distributed.is_initialized()
    world, rank = (torch.distributed.get_world_size(), torch.distributed.get_rank()) if several else (1, 0)
    torch.manual_seed(0)
    model = nn.Linear(1, 1)
    net = nn.parallel.DistributedDataParallel(model) if several else model
    optimizer = torch.optim.SGD(net.parameters(), lr=lr * 1e-3)
    loader = DataLoader(DATA, batch_size=8, sampler=DistributedSampler(DATA, world, rank, shuffle=False))
    run = slurm_hadar.train(net, optimizer, total_steps=90, loader=loader, global_batch=8, save_every_s=None)
    print("begins at", run.step, "as one of", world, flush=True)
    for (x,) in run:
        optimizer.zero_grad()
        (net(x) - 1).pow(2).mean().backward()
        optimizer.step()
        time.sleep(0.2 if run.step < 10 else 0.01)  # long enough to the first rung for the tuner to hear of it
        if (run.step + 1) % 10 == 0:
            trial.report(model.weight.item() * 0 + lr, (run.step + 1) // 10)
            trial.should_prune()
    return float(sum(p.double().sum() for p in model.parameters()).item())
"""


def test_from_rung_to_rung_on_more_gpus(tuner: Any, study: Callable[..., str]) -> None:
    """The one that is promoted goes on at its step with all GPUs, and ends with the weights of an undisturbed run."""
    code, out, err = tuner("run", study(STUDY), "--trials", "3", "--algorithm", "sha", "--gpus", "2", "--widest", "2",
                           "--seed", "0", "--json", "-")  # fmt: skip
    assert code == 0, err
    result = json.loads(out)
    assert result["trials"] == {"complete": 1, "pruned": 2}, err
    last = [event for event in tuner.events("start") if event["trial"] == result["best"]["trial"]][-1]
    log = next(tuner.folder.glob(f"*.hadar/*/trials/{last['trial']}/log")).read_text()
    assert last["width"] == "2" and "begins at 10 as one of 2" in log and "begins at 0 as one of 1" in log
    again = tuner.folder / "again"
    again.mkdir()
    (again / "study.py").write_text(STUDY)
    code, out, err = tuner("run", "again/study.py:objective", "--trials", "1", "--algorithm", "random", "--gpus", "1",
                           "--storage", "sqlite:///again/tune.db", "--json", "-")  # fmt: skip
    assert code == 0, err
    assert json.loads(out)["best"]["value"] == pytest.approx(result["best"]["value"], rel=1e-4)


def test_each_trial_has_checkpoints_of_its_own(tuner: Any, study: Callable[..., str]) -> None:
    """One directory for all would have the second go on from where the first has ended, and be over at once."""
    objective = STUDY.replace("save_every_s=None", "save_every_s=None, directory='kept'")
    code, out, err = tuner("run", study(objective), "--trials", "2", "--algorithm", "random", "--gpus", "1",
                           "--packed", "1", "--json", "-")  # fmt: skip
    assert code == 0 and json.loads(out)["trials"] == {"complete": 2}, err
    logs = [file.read_text() for file in tuner.folder.glob("*.hadar/*/trials/*/log")]
    assert len(logs) == 2 and all("begins at 0" in log and "directory=kept would be all trials'" in log for log in logs)
    assert not (tuner.folder / "kept").exists()


def test_a_save_that_fails_at_a_rung_is_said_on_the_terminal(tuner: Any, study: Callable[..., str]) -> None:
    unwritable = """
    kept = pathlib.Path(os.environ["HADAR_JOB_DIR"], "checkpoints")
    if not kept.is_file():
        shutil.rmtree(kept, ignore_errors=True)
        kept.touch()
"""
    begins = '    print("begins at"'
    objective = STUDY.replace("import torch,", "import os, pathlib, shutil, torch,").replace(
        begins, unwritable + begins
    )
    _, _, err = tuner("run", study(objective), "--trials", "3", "--algorithm", "sha", "--gpus", "1", "--packed", "1",
                       "--seed", "0", "--json", "-")  # fmt: skip
    assert "was told to save at step" in err and "its newest checkpoint is of step 0" in err
