"""A script with checkpoints of its own: every so often, and when it is told to end."""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("--checkpoint", default="own.ckpt")
args = parser.parse_args()

torch.manual_seed(19)
model = nn.Linear(8, 2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
step = 0
told: list[int] = []
if Path(args.checkpoint).exists():
    state = torch.load(args.checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["rng"])
    step = state["step"]
signal.signal(signal.SIGTERM, lambda number, _frame: told.append(number))


def save() -> None:
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng": torch.get_rng_state(),
        "step": step,
    }
    torch.save(state, args.checkpoint + ".new")
    Path(args.checkpoint + ".new").replace(args.checkpoint)


while step < 340:
    inputs = torch.randn(32, 8)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(inputs), inputs[:, 2:4]).backward()
    optimizer.step()
    step += 1
    if told or step % 100 == 0:
        save()
    if told:
        sys.exit(143)
    time.sleep(float(os.environ.get("NAP_S", "0.1")))

torch.save(model.state_dict(), args.out)
