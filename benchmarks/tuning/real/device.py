"""The emulated GPU that a trial trains on: the same for everybody who tunes it.

Of a step :data:`HOST_S` are the host's (data, Python) and :data:`DEVICE_S` a fast GPU's at the whole batch; a GPU
computes for one trial at a time. Both are shared out where several GPUs train together, which then cost :data:`SYNC_S`
more. The computation itself, some milliseconds of a real CPU, is within the device's time as long as that has room for
it: a step is as long as it is so that two cores can stand for eight GPUs.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["GPUS", "SPEEDS", "Device"]

HOST_S, DEVICE_S, SYNC_S = 0.04, 0.04, 0.008
SPEEDS = {"fast": 1.0, "slow": 0.5}
GPUS = ("fast",) * 4 + ("slow",) * 4


class Device:
    """``kind``: of this GPU. ``world``: how many train together. ``turn``: where the GPU may be shared, what waits for
    it. The time that the GPU computes goes to a file of this process under ``$BENCH_BUSY``."""

    def __init__(self, kind: str, world: int = 1, turn: Callable[[], Any] = contextlib.nullcontext) -> None:
        self._device_s, self._host_s = DEVICE_S / SPEEDS[kind] / world, HOST_S / world
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
        """Write down how long the GPU has computed."""
        self._file.write_text(f"{self._busy_s}")
