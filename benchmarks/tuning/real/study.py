"""The objective, as one writes it for ``hadar tune`` and for Optuna alone: one process trains with it on any GPUs."""

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
from benchmarks.tuning.real.workload import BATCH, REPORTS, STEPS, Device, data, draw, error, network
from slurm_hadar import sharing

SPEEDS = {"fast": 1.0, "slow": 0.5}


def objective(trial: Any) -> float:
    """Trains as the trial's number says; reports the error of each epoch."""
    config = draw(int(os.environ["BENCH_SEED"]), trial.number)
    for name, value in config.items():
        trial.suggest_float(name, value, value)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    device = Device(SPEEDS[os.environ["HADAR_GPU_TYPE"]], world, sharing.iteration)
    trained, judged = data()
    model = network(config)
    wrapped = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    optimizer = torch.optim.SGD(model.parameters(), lr=config["lr"], momentum=config["momentum"])
    sampler: Any = DistributedSampler(trained, num_replicas=world, rank=rank, drop_last=True)
    loader = DataLoader(trained, batch_size=BATCH, sampler=sampler, drop_last=True)
    run = slurm_hadar.train(
        wrapped, optimizer, total_steps=REPORTS * STEPS, loader=loader, global_batch=BATCH, save_every_s=None
    )
    wrong = 1.0
    for x, y in run:
        with device.step():
            optimizer.zero_grad()
            nn.functional.cross_entropy(wrapped(x), y).backward()
            optimizer.step()
        if (run.step + 1) % STEPS == 0:
            device.note()
            wrong = error(model, judged)
            trial.report(wrong, (run.step + 1) // STEPS)
            if trial.should_prune():
                raise optuna.TrialPruned
    return wrong
