"""A classifier with a scheduler, epoch by epoch: the loop of most tutorials."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

torch.manual_seed(0)
data = TensorDataset(torch.randn(512, 20), torch.randint(0, 4, (512,)))
loader = DataLoader(data, batch_size=32, shuffle=True)
net = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, 4))
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 400)

run = slurm_hadar.train(net, optimizer, total_steps=400, loader=loader, scheduler=scheduler)
for inputs, labels in run:
    loss = nn.functional.cross_entropy(net(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()

torch.save(net.state_dict(), args.out)
