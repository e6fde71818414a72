"""A compiled model."""

import argparse
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

torch.manual_seed(13)
model = nn.Sequential(nn.Linear(10, 40), nn.SiLU(), nn.Linear(40, 5))
compiled: Any = torch.compile(model, backend="aot_eager")  # the default backend needs a C++ compiler
optimizer = torch.optim.RMSprop(compiled.parameters(), lr=1e-3)
loader = DataLoader(TensorDataset(torch.randn(320, 10), torch.randint(0, 5, (320,))), batch_size=32, shuffle=True)

for inputs, labels in slurm_hadar.train(compiled, optimizer, total_steps=320, loader=loader):
    optimizer.zero_grad()
    nn.functional.cross_entropy(compiled(inputs), labels).backward()
    optimizer.step()

torch.save(model.state_dict(), args.out)
