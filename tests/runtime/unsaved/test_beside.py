"""What a script has beside its training: generators in objects of its own, loaders within generators, workers that are
kept. Told of with what helps, and not where it is saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

BEGIN = """
import copy, itertools, random, sys, numpy as np, torch, slurm_hadar
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
class Warmup:
    def __init__(self): self.turns, self.optimizer = 0, optimizer
    def __call__(self): self.turns += 1; optimizer.param_groups[0]["lr"] = 0.01 * self.turns
    def state_dict(self): return {"turns": self.turns}
    def load_state_dict(self, state): self.turns = state["turns"]
class Average:
    def __init__(self, inplace):
        self.model, self.inplace = net, inplace
        self.shadow = {n: p.detach().clone() for n, p in net.named_parameters()}
    def __call__(self):
        for n, p in net.named_parameters():
            mean = self.shadow[n].lerp(p.detach(), 0.1)
            if self.inplace: self.shadow[n].copy_(mean)
            else: self.shadow[n] = mean
    def state_dict(self): return self.shadow
    def load_state_dict(self, state): self.shadow = state
class Handler:
    def __init__(self): self.model, self.mean = net, copy.deepcopy(net)
    def __call__(self):
        for a, p in zip(self.mean.parameters(), net.parameters()): a.data.lerp_(p.data, 0.1)
def each(run, *calls):
    for i in run: step(torch.ones(2, 3)); [call() for call in calls]
class Stream(IterableDataset):
    def __iter__(self): return iter(torch.randn(8, 3))
class Placed(DataLoader):
    def state_dict(self): return {"place": 1}
    def load_state_dict(self, state): pass
def cycle(loader):
    while True: yield from loader
class Endless:
    def __init__(self, loader): self.loader, self.batches = loader, iter(loader)
    def __next__(self):
        try: return next(self.batches)
        except StopIteration: self.batches = iter(self.loader); return next(self.batches)
class Two:
    def __init__(self): self.a, self.b = (Endless(DataLoader(data, n, shuffle=True)) for n in (4, 10))
    def __iter__(self):
        for _ in range(5): yield next(self.a)[0], next(self.b)[0]
"""
NOT_SAVED = "not saved, so a move or a restart sets it back: "
TOLD = {
    "the Warmup warmup (turns goes on)": "warmup = Warmup()\neach(train(), warmup)",
    "the Average average (shadow goes on)": "average = Average(inplace=False)\neach(train(), average)",
    "the Average mean (shadow goes on)": "mean = Average(inplace=True)\neach(train(), mean)",
    "the model handler.mean": "handler = Handler()\neach(train(), handler)",
    "random number generator envs.0.rng": "envs = [Env() for _ in range(3)]\nfor i in train(): step(envs[1].look())",
    "the place in the DataLoader that the generator given as loader= goes through": (
        "for x, in train(loader=cycle(DataLoader(data, 4))): step(x)"
    ),
    "the place in a DataLoader whose iterator loader= goes on with": "for x, y in train(loader=Two()): step(x)",
    "the place in a DataLoader whose iterator loader= goes on": (
        "a = Endless(DataLoader(data, 4, shuffle=True))\n"
        "for x, in train(loader=lambda: (next(a) for _ in range(4))): step(x)"
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
    "iterators that begin anew in each epoch": """
a, b = (DataLoader(data, n, shuffle=True) for n in (5, 10))
run = train(loader=lambda: zip(a, itertools.cycle(b)))
for epoch, batches in run.epochs():
    look = iter(b); next(look)
    for (x,), _ in batches: step(x)
""",
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
    "objects that are given, or held by one that is": """
class Both(Warmup):
    def __init__(self): self.parts = [warmup, other]
    def state_dict(self): return {str(n): one.turns for n, one in enumerate(self.parts)}
warmup, other, handler, average = Warmup(), Warmup(), Handler(), Average(inplace=False)
each(train(also={"both": Both(), "mean": handler.mean, "average": average}), warmup, other, handler, average)
""",
    "gradient scalers whose states are given by an object around them": """
class Scaler:
    def __init__(self): self.scaler = torch.amp.GradScaler("cpu")
    def __call__(self):
        loss = self.scaler.scale(net(torch.ones(2, 3)).mean()); loss.backward()
        self.scaler.step(optimizer); self.scaler.update(); optimizer.zero_grad()
    def state_dict(self): return self.scaler.state_dict()
    def load_state_dict(self, state): self.scaler.load_state_dict(state)
class Trainer(Scaler):
    def state_dict(self): return {"scaler": self.scaler.state_dict(), "turns": 1}
one, other = Scaler(), Trainer()
for i in train(also={"one": one, "other": other}): one(); other()
""",
    "an object that is given to another training": """
one, two = Warmup(), Warmup()
other = nn.Linear(3, 1); second = torch.optim.SGD(other.parameters(), lr=0.1)
first = train(also={"one": one}, name="first")
last = slurm_hadar.train(other, second, total_steps=14, also={"two": two}, name="second")
each(first, one)
for i in last: second.zero_grad(); other(torch.ones(2, 3)).mean().backward(); second.step(); two()
""",
    "objects whose parts are given": """
class Trainer(Warmup):
    def __init__(self): super().__init__(); self.net, self.last, self.grads = net, None, {}
    def __call__(self):
        self.turns += 1; self.last = torch.randn(2, 3); self.grads = {n: p.grad * 2 for n, p in net.named_parameters()}
    def state_dict(self): return {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "turns": self.turns}
trainer = Trainer()
each(train(), trainer)
""",
    "objects that begin anew by themselves": """
class Metric(Warmup):
    def reset(self): self.turns = 0
    def compute(self): return self.turns
class Sampler(Warmup):
    def __iter__(self): return iter(range(3))
class Engine(Warmup):
    def __init__(self): self.state = type("State", (), {"turns": 0})()
    def __call__(self): self.state.turns += 1
metric, sampler, engine = Metric(), Sampler(), Engine()
each(train(), metric, sampler, engine)
""",
    "weights that are made of others before each use": """
import torch.nn.utils.prune as prune
wrap = [nn.utils.weight_norm, nn.utils.spectral_norm, lambda one: prune.l1_unstructured(one, "weight", 0.5)]
teachers = [one(nn.Linear(3, 1)).requires_grad_(False) for one in wrap]
run = slurm_hadar.train([net, *teachers], optimizer, total_steps=14)
for i in run:
    for one in teachers: one(torch.ones(2, 3)); [p.mul_(0.9) for p in one.parameters()]
    step(torch.ones(2, 3))
""",
    "objects that cannot be looked at": """
class Failing(Warmup):
    turns = property(lambda self: 1 / 0); __init__ = __call__ = lambda self: None
class Odd:
    __slots__ = ()
    def __getattr__(self, name): raise RuntimeError(name)
    def state_dict(self): raise RuntimeError
    def load_state_dict(self, state): raise RuntimeError
failing, odd, lazy, handler = Failing(), Odd(), nn.LazyLinear(3), type("Handler", (), {})()
handler.lazy, handler.sparse = lazy, torch.eye(3).to_sparse()
each(train(), failing)
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
    assert ("also=" in line) is what.startswith(("random", "the Warmup", "the Average", "the model"))


@pytest.mark.parametrize("case", SILENT)
def test_no_word_of_what_is_saved(case: str, warnings: Any) -> None:
    assert warnings(SILENT[case]) == []
