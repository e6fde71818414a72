"""A function that trains for one epoch, as in many vision repositories: it asks its loader for a length, goes through
it by a logger, counts it, and takes learning rate and momentum of a teacher from schedules by that count."""

import argparse
import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()
EPOCHS = 30


def log_every(iterable: Any, every: int, header: str) -> Iterator[Any]:
    for i, batch in enumerate(iterable):
        yield batch
        if i % every == 0:
            print(f"{header} [{i}/{len(iterable)}]")


def train_one_epoch(loader: Any, epoch: int, rates: list[float], momenta: list[float]) -> None:
    student.train()
    for i, (inputs,) in enumerate(log_every(loader, 5, f"Epoch: [{epoch}]"), loader.start):
        i += len(loader) * epoch
        for group in optimizer.param_groups:
            group["lr"] = rates[i]
        loss = nn.functional.mse_loss(student(inputs), teacher(inputs + 0.1) + inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for mine, its in zip(student.parameters(), teacher.parameters(), strict=True):
                its.mul_(momenta[i]).add_(mine, alpha=1 - momenta[i])


@torch.no_grad()
def validate(batches: Iterable[Any]) -> float:
    student.eval()
    return sum(student(inputs).square().mean().item() for (inputs,) in batches)


def cosine(first: float, last: float) -> list[float]:
    steps = EPOCHS * len(loader)
    return [last + (first - last) * (1 + math.cos(math.pi * i / steps)) / 2 for i in range(steps)]


torch.manual_seed(31)
data = TensorDataset(torch.randn(96, 6))
loader: Any = DataLoader(data, batch_size=8, shuffle=True, drop_last=True)
student, teacher = (nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.Linear(16, 1)) for _ in range(2))
teacher.requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters())
rates, momenta = cosine(1e-2, 1e-4), cosine(0.9, 1.0)

run = slurm_hadar.train(
    [student, teacher], optimizer, total_steps=EPOCHS * len(loader), loader=loader, also={"best": math.inf, "seen": []}
)
for epoch, loader in run.epochs():
    train_one_epoch(loader, epoch, rates, momenta)
    found = validate(DataLoader(data, batch_size=32, shuffle=True))
    run.also["best"] = min(run.also["best"], found)
    run.also["seen"].append(found)

torch.save({"student": student.state_dict(), "teacher": teacher.state_dict(), **run.also}, args.out)
