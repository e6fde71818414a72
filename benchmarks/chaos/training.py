"""A small training with PyTorch, a function of its seed: dropout, momentum, shuffled data, a learning-rate schedule.

hadar-srun -- python -m benchmarks.chaos.training --steps 300 --seed 1 --nap 0.1 --result FILE
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path

import torch
from torch import nn

import slurm_hadar
from benchmarks.chaos.result import note_end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--nap", type=float, default=0.0, help="seconds to sleep in each step")
    parser.add_argument("--result", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=40, gamma=0.9)
    x = torch.randn(256, 8)
    data = torch.utils.data.TensorDataset(x, x.sin().sum(1, keepdim=True))
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    run = slurm_hadar.train(
        model, optimizer, total_steps=args.steps, loader=loader, scheduler=scheduler, save_every_s=3.0
    )
    for inputs, wanted in run:
        loss = (model(inputs) - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        time.sleep(args.nap)
    weights = b"".join(t.contiguous().numpy().tobytes() for t in model.state_dict().values())
    note_end(args.result, run.step, hashlib.sha256(weights).hexdigest())


if __name__ == "__main__":
    main()
