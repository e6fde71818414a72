"""Reinforcement learning: an agent plays, remembers, and learns from what it draws from its memory. A turn is an
episode; the memory has a state of its own, and so has what the environment draws."""

import argparse
import random
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import nn

import slurm_hadar

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
args = parser.parse_args()


class Memory:
    """What was seen and done, as plain data."""

    def __init__(self, size: int) -> None:
        self.kept = deque[tuple[Any, ...]](maxlen=size)

    def draw(self, count: int) -> list[torch.Tensor]:
        drawn = random.sample(self.kept, min(count, len(self.kept)))
        return [torch.as_tensor(np.array(part)) for part in zip(*drawn, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        return {"kept": list(self.kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept.clear()
        self.kept.extend(state["kept"])


class Walk:
    """Two ways to go, of which one leads back."""

    def __init__(self) -> None:
        self.dice = np.random.default_rng(31)

    def reset(self) -> Any:
        self.place = self.dice.normal(size=4).astype(np.float32)
        return self.place

    def step(self, way: int) -> tuple[Any, np.float32, bool]:
        self.place = np.float32(0.9) * self.place + np.float32(0.3 - 0.6 * way)
        reward = np.float32(-np.abs(self.place).sum())
        return self.place, reward, bool(self.dice.random() < 0.2)


torch.manual_seed(31)
random.seed(31)
environment, memory = Walk(), Memory(200)
network, target = nn.Linear(4, 2), nn.Linear(4, 2)
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)

run = slurm_hadar.train(
    [network, target],
    optimizer,
    total_steps=300,
    also={"memory": memory, "dice": environment.dice, "epsilon": 1.0},
)
for episode in run:
    place, over = environment.reset(), False
    while not over:
        with torch.no_grad():
            best = int(network(torch.from_numpy(place)).argmax())
        way = random.randrange(2) if random.random() < run.also["epsilon"] else best
        there, reward, over = environment.step(way)
        memory.kept.append((place, way, there, reward))
        place = there
    run.also["epsilon"] *= 0.99
    places, ways, nexts, rewards = memory.draw(16)
    with torch.no_grad():
        goal = rewards + 0.9 * target(nexts).max(1).values
    loss = nn.functional.smooth_l1_loss(network(places).gather(1, ways[:, None])[:, 0], goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if episode % 10 == 9:
        target.load_state_dict(network.state_dict())

torch.save({"network": network.state_dict(), "epsilon": run.also["epsilon"], "kept": len(memory.kept)}, args.out)
