"""A critic that is trained in each turn, and a generator in each fourth: gradients that it has used stand between."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()
EVERY = 4

torch.manual_seed(37)
loader = DataLoader(TensorDataset(torch.randn(160, 2) * 0.3 + 1.0), batch_size=16, shuffle=True)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
critic = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))
opt_generator = torch.optim.RMSprop(generator.parameters(), lr=1e-3)
opt_critic = torch.optim.RMSprop(critic.parameters(), lr=1e-3)

run = slurm_hadar.train([generator, critic], [opt_generator, opt_critic], total_steps=300, loader=loader)
for (real,) in run:
    noise = torch.randn(len(real), 4)
    opt_critic.zero_grad()
    (critic(generator(noise).detach()).mean() - critic(real).mean()).backward()
    opt_critic.step()
    with torch.no_grad():
        for weight in critic.parameters():
            weight.clamp_(-0.1, 0.1)
    if run.step % EVERY == 0:
        opt_generator.zero_grad()
        (-critic(generator(noise)).mean()).backward()
        opt_generator.step()

torch.save({"generator": generator.state_dict(), "critic": critic.state_dict()}, args.out)
