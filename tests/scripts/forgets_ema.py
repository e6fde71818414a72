"""An average of the weights that its author forgot to give to train()."""

import argparse

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

torch.manual_seed(17)
model = nn.Linear(6, 3)
ema = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(TensorDataset(torch.randn(256, 6), torch.randn(256, 3)), batch_size=16, shuffle=True)

for inputs, targets in slurm_hadar.train(model, optimizer, total_steps=300, loader=loader):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), targets).backward()
    optimizer.step()
    ema.update_parameters(model)

torch.save(model.state_dict(), args.out)
