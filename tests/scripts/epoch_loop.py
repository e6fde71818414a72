"""Epochs in a loop of the script's own, each with a validation and a step of the scheduler behind it."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()
EPOCHS = 30

torch.manual_seed(29)
data, held_out = torch.randn(96, 6), torch.randn(32, 6)
loader = DataLoader(TensorDataset(data, data.sum(1, keepdim=True)), batch_size=8, shuffle=True)
net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.7)


def train_one_epoch(epoch: int) -> None:
    net.train()
    for inputs, targets in run:
        if run.epoch != epoch:
            break
        loss = nn.functional.mse_loss(net(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def validate() -> float:
    net.eval()
    return nn.functional.mse_loss(net(held_out), held_out.sum(1, keepdim=True)).item()


run = slurm_hadar.train(
    net, optimizer, total_steps=EPOCHS * len(loader), loader=loader, scheduler=scheduler, also={"losses": []}
)
for epoch in range(run.epoch, EPOCHS):
    train_one_epoch(epoch)
    del run.also["losses"][epoch:]
    run.also["losses"].append(validate())
    scheduler.step()

torch.save({"net": net.state_dict(), "losses": run.also["losses"]}, args.out)
