"""What a script has beside its training: generators in objects of its own, loaders within generators, workers that are
kept. Told of with what helps, and not where it is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BEGIN = """
import itertools, random, sys, numpy as np, torch, slurm_hadar
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
torch.manual_seed(0); torch.set_num_threads(1)
net = nn.Linear(3, 1); optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
data = TensorDataset(torch.randn(40, 3))
def step(x): optimizer.zero_grad(); net(x).square().mean().backward(); optimizer.step()
def train(**more): return slurm_hadar.train(net, optimizer, total_steps=14, **more)
class Env:
    def __init__(self): self.rng, self.choice, self.inner = np.random.default_rng(0), random.choice, random.Random(1)
    def look(self): return torch.tensor(self.rng.normal(size=(2, 3)) * self.inner.random()).float()
class Envs:
    def __init__(self): self.all = [Env() for _ in range(3)]
    def state_dict(self): return {str(n): one.rng.bit_generator.state for n, one in enumerate(self.all)}
    def load_state_dict(self, state): pass
class Stream(IterableDataset):
    def __iter__(self): return iter(torch.randn(8, 3))
class Placed(DataLoader):
    def state_dict(self): return {"place": 1}
    def load_state_dict(self, state): pass
def cycle(loader):
    while True: yield from loader
"""
NOT_SAVED = "not saved, so a move or a restart sets it back: "
TOLD = {
    "random number generator envs.0.rng": "envs = [Env() for _ in range(3)]\nfor i in train(): step(envs[1].look())",
    "the place in the DataLoader that the generator given as loader= goes through": (
        "for x, in train(loader=cycle(DataLoader(data, 4))): step(x)"
    ),
    "loader workers that are kept": (
        "for x in train(loader=DataLoader(Stream(), 2, num_workers=1, persistent_workers=True)): step(x)"
    ),
}
SILENT = {
    "an object that saves what it holds": (
        "envs = Envs(); mine = envs.all\nfor i in train(also={'envs': envs}): step(mine[1].look())"
    ),
    "generators that are given": (
        "env = Env(); also = {'a': env.rng, 'b': env.inner}\nfor i in train(also=also): step(env.look())"
    ),
    "Python's own generator": "env = Env()\nfor i in train(): step(torch.ones(2, 3) * env.choice([1, 2]))",
    "batches that are repeated": "for x, in train(loader=itertools.cycle(DataLoader(data, 4, shuffle=True))): step(x)",
    "a loader that saves its place": """
loader = Placed(data, 4, shuffle=True, generator=torch.Generator()); batches = iter(loader)
for i in train(also={"loader": loader}):
    try: x, = next(batches)
    except StopIteration: batches = iter(loader); x, = next(batches)
    step(x)
""",
    "a scheduler within one that gives its state as its own": """
class Outer:
    def __init__(self, inner): self.scheduler = inner
    def step(self): self.scheduler.step()
    def state_dict(self): return self.scheduler.state_dict()
    def load_state_dict(self, state): self.scheduler.load_state_dict(state)
outer = Outer(Outer(torch.optim.lr_scheduler.StepLR(optimizer, 5)))
for i in train(scheduler=outer): step(torch.ones(2, 3)); outer.step()
""",
    "states of arrays, which cannot be told to be equal": """
class Counts:
    def __init__(self): self.seen = np.zeros(3)
    def step(self): self.seen += 1
    def state_dict(self): return {"seen": self.seen.copy()}
    def load_state_dict(self, state): self.seen = state["seen"]
class Outer(Counts):
    def __init__(self): self.scheduler = Counts()
    def state_dict(self): return self.scheduler.state_dict()
outer = Outer()
for i in train(scheduler=outer): step(torch.ones(2, 3)); outer.scheduler.step()
""",
    "a scheduler that is its own": """
class Own:
    def __init__(self): self.scheduler = self
    def step(self): pass
    def state_dict(self): return {}
    def load_state_dict(self, state): pass
for i in train(scheduler=Own()): step(torch.ones(2, 3))
""",
    "the first epoch of workers that are kept": """
class Stream(IterableDataset):
    def __iter__(self): return iter(torch.randn(99, 3))
for x in train(loader=DataLoader(Stream(), 2, num_workers=1, persistent_workers=True)): step(x)
""",
}


@pytest.fixture
def warnings(job_env: dict[str, str], start_script: Callable[..., Any]) -> Callable[[str], list[str]]:
    """What a script is warned of."""

    def warnings(script: str) -> list[str]:
        started = start_script(BEGIN + script, {**job_env, "SLURM_RESTART_COUNT": "0"})
        _, said = started.communicate(300)
        assert started.returncode == 0, said
        return [line.partition("WARNING: ")[2] for line in said.splitlines() if "WARNING" in line]

    return warnings


@pytest.mark.parametrize("what", TOLD)
def test_it_is_told_of(what: str, warnings: Any) -> None:
    (line,) = warnings(TOLD[what])
    assert line.removeprefix(NOT_SAVED).startswith(what)
    assert ("also=" in line) is ("generator envs" in line)


@pytest.mark.parametrize("case", SILENT)
def test_no_word_of_what_is_saved(case: str, warnings: Any) -> None:
    assert warnings(SILENT[case]) == []
