"""A loop of one's own around what Accelerate has prepared, which fetches a batch ahead: its noise is drawn before that
of the step before."""

import argparse
from typing import Any

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, Dataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()


class Noisy(Dataset[Any]):
    def __init__(self) -> None:
        self.inputs, self.labels = torch.randn(300, 16), torch.randint(0, 2, (300,))

    def __len__(self) -> int:
        return 300

    def __getitem__(self, index: int) -> Any:
        return self.inputs[index] + 0.1 * torch.randn(16), self.labels[index]


torch.manual_seed(7)
accelerator = Accelerator(cpu=True)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 100, 0.5)
loader = DataLoader(Noisy(), batch_size=20, shuffle=True)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

for inputs, labels in slurm_hadar.train(model, optimizer, total_steps=350, loader=loader, scheduler=schedule):
    loss = nn.functional.cross_entropy(model(inputs), labels)
    accelerator.backward(loss)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()

accelerator.save(accelerator.unwrap_model(model).state_dict(), args.out)
