"""The objective, as one writes it for ``hadar tune`` and for Optuna alone: one process trains with it on any GPUs.

``BENCH_DRAW`` says where a trial's hyper-parameters come from: ``number`` (everybody's the same, in the same order),
``sampler`` (Optuna's), or ``shapeless`` (Optuna's, all models alike, as population based training needs).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import optuna
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import slurm_hadar
from benchmarks.tuning.real.device import Device
from benchmarks.tuning.real.tasks import BATCH, REPORTS, STEPS, Choice, Range, Task, draw, task_here
from slurm_hadar import sharing


def objective(trial: Any) -> float:
    """Trains, and reports the error every :data:`STEPS` steps."""
    task = task_here()
    config = suggested(task, trial)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = Device(os.environ["HADAR_GPU_TYPE"], world, sharing.iteration)
    trained, judged = task.data()
    model = task.network(config)
    wrapped = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    sampler: Any = DistributedSampler(trained, num_replicas=world, rank=rank, drop_last=True)
    loader = DataLoader(trained, batch_size=BATCH, sampler=sampler, drop_last=True)
    run = slurm_hadar.train(
        wrapped, optimizer, total_steps=REPORTS * STEPS, loader=loader, global_batch=BATCH, save_every_s=None
    )
    optimizer.param_groups[0].update(lr=config["lr"], momentum=config["momentum"])  # of a copied one
    wrong = 1.0
    for batch in run:
        with device.step():
            optimizer.zero_grad()
            task.loss(wrapped, *batch).backward()
            optimizer.step()
        if (run.step + 1) % STEPS == 0:
            device.note()
            wrong = judge(task, model, judged)
            trial.report(wrong, (run.step + 1) // STEPS)
            if trial.should_prune():
                raise optuna.TrialPruned
    return wrong


def judge(task: Task, model: nn.Module, judged: Any) -> float:
    """The error; a training that has gone astray has a large one."""
    model.eval()
    with torch.no_grad():
        found = float(task.error(model, *judged.tensors))
    model.train()
    return min(found, 1e3) if found == found else 1e3


def suggested(task: Task, trial: Any) -> dict[str, Any]:
    """A trial's hyper-parameters, which the study knows of in any case."""
    how = os.environ["BENCH_DRAW"]
    if how == "number":
        fixed = draw(task, int(os.environ["BENCH_SEED"]), trial.number)
        for name, value in fixed.items():
            trial.suggest_float(name, value, value)
        return fixed
    config: dict[str, Any] = {}
    for name, one in task.space.items():
        if isinstance(one, Range):
            config[name] = trial.suggest_float(name, one.low, one.high, log=one.log)
        elif isinstance(one, Choice) and how == "sampler":
            config[name] = trial.suggest_categorical(name, list(one.of))
        else:
            config[name] = one.of[1]
    return config
