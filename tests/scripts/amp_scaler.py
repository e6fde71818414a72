"""Mixed precision with a gradient scaler."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

torch.manual_seed(12)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device, growth_interval=50)
loader = DataLoader(TensorDataset(torch.randn(480, 16), torch.randn(480, 1)), batch_size=30, shuffle=True)

for inputs, targets in slurm_hadar.train(model, optimizer, total_steps=330, loader=loader, also={"scaler": scaler}):
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = nn.functional.mse_loss(model(inputs.to(device)), targets.to(device))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()

torch.save({"model": model.state_dict(), "scaler": scaler.state_dict()}, args.out)
