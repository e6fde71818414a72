"""Two networks that train against each other, each with its optimizer."""

import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()

torch.manual_seed(10)
real_data = TensorDataset(torch.randn(500, 2) * 0.3 + torch.tensor([1.0, -1.0]))
loader = DataLoader(real_data, batch_size=25, shuffle=True)
generator = nn.Sequential(nn.Linear(4, 16), nn.LeakyReLU(0.2), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1))
opt_g = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
opt_d = torch.optim.Adam(discriminator.parameters(), lr=2e-4, betas=(0.5, 0.999))
bce = nn.BCEWithLogitsLoss()

run = slurm_hadar.train([generator, discriminator], {"g": opt_g, "d": opt_d}, total_steps=360, loader=loader)
for (real,) in run:
    fake = generator(torch.randn(len(real), 4))
    opt_d.zero_grad()
    loss_d = bce(discriminator(real), torch.ones(len(real), 1)) + bce(
        discriminator(fake.detach()), torch.zeros(len(real), 1)
    )
    loss_d.backward()
    opt_d.step()
    opt_g.zero_grad()
    bce(discriminator(fake), torch.ones(len(real), 1)).backward()
    opt_g.step()

torch.save({"g": generator.state_dict(), "d": discriminator.state_dict()}, args.out)
