"""What the trials train: three small tasks, each with its search space, the same for everybody who tunes them.

A convolutional network on scikit-learn's digits, a language model on text of a generated grammar, and a denoising
autoencoder of the digits.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

__all__ = ["BATCH", "REPORTS", "STEPS", "TASKS", "Choice", "Range", "Task", "draw", "task_here", "write_data"]

BATCH, STEPS, REPORTS = 64, 15, 27  # samples in a step, steps in a report, reports of a whole trial
_WORDS, _LENGTH = 24, 12
Config = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers from ``low`` to ``high``."""

    low: float
    high: float
    log: bool = False

    def draw(self, dice: random.Random) -> float:
        if self.log:
            return math.exp(dice.uniform(math.log(self.low), math.log(self.high)))
        return dice.uniform(self.low, self.high)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of these, which change the model's shape."""

    of: tuple[int, ...]

    def draw(self, dice: random.Random) -> int:
        return dice.choice(self.of)


@dataclass(frozen=True)
class Task:
    """``loss`` and ``error`` (what is reported: less is better) are of a model and tensors. ``target``: of the error,
    by runs with seeds of 100 and more, which are reported nowhere."""

    space: Mapping[str, Range | Choice]
    data: Callable[[], tuple[TensorDataset, TensorDataset]]
    network: Callable[[Config], nn.Module]
    loss: Callable[..., torch.Tensor]
    error: Callable[..., torch.Tensor]
    target: float


def draw(task: Task, seed: int, number: int, shapes: bool = True) -> dict[str, Any]:
    """A trial's hyper-parameters at random; without ``shapes`` the model is everybody's."""
    dice = random.Random(f"{seed} {number}")
    drawn = {name: one.draw(dice) for name, one in task.space.items()}
    return drawn | ({} if shapes else {n: one.of[1] for n, one in task.space.items() if isinstance(one, Choice)})


def task_here() -> Task:
    """The one that this run is about."""
    torch.manual_seed(0)  # everybody begins with the same weights
    torch.set_num_threads(1)
    return TASKS[os.environ["BENCH_TASK"]]


def write_data(file: Path) -> None:
    """scikit-learn's digits in a file, since scikit-learn takes longer to import than an epoch."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    torch.save((x, torch.tensor(digits.target)), file)


def _digits() -> tuple[TensorDataset, TensorDataset]:
    x, y = torch.load(os.environ["BENCH_DATA"])
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return TensorDataset(x[:1200], y[:1200]), TensorDataset(x[1200:], y[1200:])


def _cnn(config: Config) -> nn.Module:
    c = config["channels"]
    return nn.Sequential(
        nn.Conv2d(1, c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Dropout(config["dropout"]), nn.Linear(2 * c * 16, 10),
    )  # fmt: skip


def _wrong(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    wrong: torch.Tensor = model(x).argmax(1) != y
    return wrong.float().mean()


def _text() -> tuple[TensorDataset, TensorDataset]:
    """Sequences of a Markov chain of the second order, whose next word is one of three."""
    dice = torch.Generator().manual_seed(0)
    follow = torch.randint(_WORDS, (_WORDS, _WORDS, 3), generator=dice)
    words = torch.randint(_WORDS, (1600, 2), generator=dice)
    for _ in range(_LENGTH - 1):
        pick = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), len(words), True, generator=dice)
        words = torch.cat([words, follow[words[:, -2], words[:, -1], pick].unsqueeze(1)], 1)
    return TensorDataset(words[:1200]), TensorDataset(words[1200:])


class _Language(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, 32)
        self.rnn = nn.GRU(32, config["hidden"], batch_first=True)
        self.drop, self.out = nn.Dropout(config["dropout"]), nn.Linear(config["hidden"], _WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """The logarithms of the odds of each next word."""
        found: torch.Tensor = self.out(self.drop(self.rnn(self.words(words[:, :-1]))[0]))
        return found


def _entropy(model: nn.Module, words: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(words).flatten(0, 1), words[:, 1:].flatten())


def _autoencoder(config: Config) -> nn.Module:
    h = config["hidden"]
    return nn.Sequential(
        nn.Flatten(), nn.Dropout(config["noise"]), nn.Linear(64, h), nn.ReLU(), nn.Linear(h, 12), nn.Linear(12, h),
        nn.ReLU(), nn.Linear(h, 64),
    )  # fmt: skip


def _distance(model: nn.Module, x: torch.Tensor, _y: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(model(x), x.flatten(1))


TASKS: dict[str, Task] = {
    "cnn": Task(
        {"lr": Range(1e-4, 1.0, log=True), "momentum": Range(0, 0.95), "dropout": Range(0, 0.5),
         "channels": Choice((4, 8, 16))},
        _digits, _cnn, lambda model, x, y: nn.functional.cross_entropy(model(x), y), _wrong, 0.021,
    ),
    "language": Task(
        {"lr": Range(1e-3, 10.0, log=True), "momentum": Range(0, 0.95), "dropout": Range(0, 0.5),
         "hidden": Choice((16, 32, 48))},
        _text, _Language, _entropy, _entropy, 1.93,
    ),
    "autoencoder": Task(
        {"lr": Range(1e-3, 10.0, log=True), "momentum": Range(0, 0.95), "noise": Range(0, 0.5),
         "hidden": Choice((32, 64, 128))},
        _digits, _autoencoder, _distance, _distance, 0.025,
    ),
}  # fmt: skip
