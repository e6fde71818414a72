"""Gradients of four small batches for each optimizer step."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

EVERY = 4
torch.manual_seed(14)
model = nn.Sequential(nn.Linear(14, 28), nn.ReLU(), nn.Linear(28, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
loader = DataLoader(TensorDataset(torch.randn(600, 14), torch.randn(600, 1)), batch_size=6, shuffle=True)

run = slurm_hadar.train(model, optimizer, total_steps=400, loader=loader)
for inputs, targets in run:
    loss = nn.functional.mse_loss(model(inputs), targets) / EVERY
    loss.backward()
    if (run.step + 1) % EVERY == 0:
        optimizer.step()
        optimizer.zero_grad()

torch.save(model.state_dict(), args.out)
