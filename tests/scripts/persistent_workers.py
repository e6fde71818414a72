"""Loaders that keep their worker from epoch to epoch, for training and evaluation."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

torch.manual_seed(22)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = TensorDataset(torch.randn(60, 4), torch.randn(60, 1))
loader = DataLoader(data, batch_size=6, shuffle=True, num_workers=1, persistent_workers=True)
evaluation = DataLoader(data, batch_size=30, num_workers=1, persistent_workers=True)

run = slurm_hadar.train(model, optimizer, total_steps=90, loader=loader)
for inputs, targets in run:
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if run.step % 9 == 0:
        with torch.no_grad():
            print(run.step, sum(nn.functional.mse_loss(model(x), y).item() for x, y in evaluation))

torch.save(model.state_dict(), args.out)
