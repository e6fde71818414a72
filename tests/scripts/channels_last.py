"""A convolution with its channels last in memory, and a fused optimizer."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

torch.manual_seed(21)
model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(96, 2))
model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
loader = DataLoader(TensorDataset(torch.randn(120, 3, 6, 6), torch.randn(120, 2)), batch_size=10, shuffle=True)

run = slurm_hadar.train(model, optimizer, total_steps=90, loader=loader)
for images, targets in run:
    loss = nn.functional.mse_loss(model(images), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

torch.save(model.state_dict(), args.out)
