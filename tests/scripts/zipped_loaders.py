"""Two loaders side by side, each shuffled by a generator of its own; one has it in its batch sampler."""

import argparse

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

torch.manual_seed(23)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
labelled = TensorDataset(torch.randn(60, 4), torch.randn(60, 1))
plain = TensorDataset(torch.randn(90, 4))
order = BatchSampler(RandomSampler(labelled, generator=torch.Generator().manual_seed(1)), 6, drop_last=False)
with_labels = DataLoader(labelled, batch_sampler=order)
without = DataLoader(plain, batch_size=9, shuffle=True, generator=torch.Generator().manual_seed(2))

run = slurm_hadar.train(model, optimizer, total_steps=90, loader=lambda: zip(with_labels, without, strict=True))
for (inputs, targets), (more,) in run:
    loss = nn.functional.mse_loss(model(inputs), targets) + 0.1 * model(more).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

torch.save(model.state_dict(), args.out)
