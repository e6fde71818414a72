"""An ordinary PyTorch loop that knows nothing of slurm_hadar: its speed is measured all the same.

    hadar-srun -- python examples/plain.py --steps 500

It cannot be saved on request, so the scheduler leaves it where it is (or, with ``lose=yes``, may start it over).
"""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=2000)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(args.seed)
teacher = nn.Linear(64, 1)
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

for step in range(1, args.steps + 1):
    x = torch.randn(args.batch, 64)
    loss = nn.functional.mse_loss(model(x), teacher(x).detach())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 100 == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
print(f"done: loss {loss.item():.4f}")
