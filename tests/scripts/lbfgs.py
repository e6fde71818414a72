"""An optimizer that evaluates the loss itself, by a closure."""

import argparse

import torch
from torch import nn

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

torch.manual_seed(15)
inputs, targets = torch.randn(200, 5), torch.randn(200, 2)
model = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 2))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=4, history_size=8)

for _ in slurm_hadar.train(model, optimizer, total_steps=260):

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss

    optimizer.step(closure)

torch.save(model.state_dict(), args.out)
