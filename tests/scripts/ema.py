"""An average of the weights beside them, and a best loss with its history."""

import argparse

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

torch.manual_seed(11)
model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(TensorDataset(torch.randn(384, 12), torch.randn(384, 3)), batch_size=24, shuffle=True)
losses: list[float] = []

run = slurm_hadar.train(
    model, optimizer, total_steps=340, loader=loader, also={"ema": ema, "losses": losses, "best": float("inf")}
)
for inputs, targets in run:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    ema.update_parameters(model)
    losses.append(loss.item())
    run.also["best"] = min(run.also["best"], loss.item())

torch.save({"ema": ema.state_dict(), "losses": losses, "best": run.also["best"]}, args.out)
