"""What a trial trains, and the emulated GPU that it trains on. The same for everybody who tunes it.

A small convolutional network on scikit-learn's digits. Of a step :data:`HOST_S` are the host's (data, Python) and
:data:`DEVICE_S` a fast GPU's at the whole batch; a GPU computes for one trial at a time. Both are shared out where
several GPUs train together, which then cost :data:`SYNC_S` more. The computation itself, a millisecond or two of a real
CPU, is within the device's time as long as that has room for it.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

__all__ = ["BATCH", "REPORTS", "STEPS", "Device", "data", "draw", "error", "network", "write_data"]

HOST_S, DEVICE_S, SYNC_S = 0.015, 0.015, 0.003
BATCH, STEPS, REPORTS = 32, 40, 27  # samples in a step, steps in a report, reports of a whole trial


def draw(seed: int, number: int) -> dict[str, Any]:
    """The hyper-parameters of a trial: everybody's the same, in the same order."""
    dice = random.Random(f"{seed} {number}")
    return {
        "lr": 10 ** dice.uniform(-4, 0),
        "momentum": dice.uniform(0, 0.95),
        "channels": dice.choice([4, 8, 16]),
        "dropout": dice.uniform(0, 0.5),
    }


def data() -> tuple[TensorDataset, TensorDataset]:
    """Digits to train with, and to judge by: from a file, since scikit-learn takes longer to import than an epoch."""
    x, y = torch.load(os.environ["BENCH_DATA"])
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    return TensorDataset(x[:1200], y[:1200]), TensorDataset(x[1200:], y[1200:])


def network(config: dict[str, Any]) -> nn.Module:
    """By the hyper-parameters; always from the same weights."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    c = config["channels"]
    return nn.Sequential(
        nn.Conv2d(1, c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Dropout(config["dropout"]), nn.Linear(2 * c * 16, 10),
    )  # fmt: skip


def error(model: nn.Module, judged: TensorDataset) -> float:
    """Share of wrong answers."""
    model.eval()
    with torch.no_grad():
        x, y = judged.tensors
        wrong = (model(x).argmax(1) != y).float().mean()
    model.train()
    return float(wrong)


def write_data(file: Path) -> None:
    """scikit-learn's digits, for :func:`data`."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
    torch.save((x, torch.tensor(digits.target)), file)


class Device:
    """``speed``: of this GPU. ``world``: how many train together. ``turn``: where the GPU may be shared, what waits for
    it. The time that the GPU computes goes to a file of this process under ``$BENCH_BUSY``."""

    def __init__(self, speed: float, world: int = 1, turn: Callable[[], Any] = contextlib.nullcontext) -> None:
        self._device_s, self._host_s = DEVICE_S / speed / world, HOST_S / world
        self._sync_s = SYNC_S if world > 1 else 0.0
        self._turn, self._busy_s = turn, 0.0
        self._file = Path(os.environ["BENCH_BUSY"]) / f"{os.getpid()}-{time.time_ns()}"

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """A training step."""
        time.sleep(self._host_s)
        with self._turn():
            began = time.monotonic()
            yield
            time.sleep(max(0.0, self._device_s + self._sync_s - (time.monotonic() - began)))
        self._busy_s += self._device_s

    def note(self) -> None:
        self._file.write_text(f"{self._busy_s}")
