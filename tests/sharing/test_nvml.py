"""What a process takes of a GPU beside tensors, as a driver that is played here tells it."""

from __future__ import annotations

import os
import sys
import types
from typing import Any

import pytest

from slurm_hadar.sharing import nvml
from slurm_hadar.sharing.cuda import Gpu
from slurm_hadar.sharing.nvml import Overhead

MINE = os.getpid()


class _NVMLError(Exception):
    """As NVML's binding raises it."""


class _Driver(types.ModuleType):
    """Two GPUs; says of each which processes have how much of it."""

    NVMLError = _NVMLError

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.there: list[list[tuple[int, int | None]]] = [[(MINE, 900), (1, 5000)], [(1, 70)]]
        self.works, self.asked = True, 0

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's names
        if not self.works:
            raise _NVMLError

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self.nvmlInit()
        self.asked += 1
        return len(self.there)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:  # noqa: N802
        return number

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:  # noqa: N802
        return [types.SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in self.there[handle]]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> _Driver:
    playing = _Driver()
    monkeypatch.setitem(sys.modules, "pynvml", playing)
    monkeypatch.setattr(nvml, "LOOK_S", 0.0)
    return playing


def test_what_the_driver_sees_beside_the_allocator_counts(driver: _Driver) -> None:
    """The most of it: a library that was loaded stays."""
    overhead = Overhead()

    assert overhead.bytes_beside(600) == 300
    driver.there[0][0] = (MINE, 1000)
    assert overhead.bytes_beside(600) == 400
    assert overhead.bytes_beside(990) == 400


def test_what_the_driver_does_not_tell_is_nothing(driver: _Driver) -> None:
    unknown: list[list[tuple[int, int | None]]] = [[], [(MINE, None)], [(1, 5000)]]
    for there in unknown:
        driver.there = [there]
        assert Overhead().bytes_beside(600) == 0
    driver.there, broken = [[(MINE, 700)]], Overhead()
    assert broken.bytes_beside(600) == 100
    driver.works = False
    assert broken.bytes_beside(0) == 100 and Overhead().bytes_beside(0) == 0


def test_without_nvml_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)

    assert Overhead().bytes_beside(0) == 0


def test_the_driver_is_not_asked_at_each_iteration(driver: _Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "LOOK_S", 1000.0)
    overhead = Overhead()

    assert [overhead.bytes_beside(600) for _ in range(50)] == [300] * 50 and driver.asked == 1


def _later(gpu: Gpu) -> Gpu:
    """When it may be asked again."""
    gpu._due_s = 0.0  # noqa: SLF001
    return gpu


def test_it_is_persistent_memory_of_the_job(driver: _Driver) -> None:
    """Beside what tensors take between two iterations, and within one."""
    assert driver.works
    cuda = types.SimpleNamespace(
        memory_allocated=lambda: 400,
        max_memory_allocated=lambda: 550,
        memory_reserved=lambda: 600,
        reset_peak_memory_stats=lambda: None,
    )
    gpu = Gpu(cuda, None)
    gpu.look()
    assert driver.asked == 0 and gpu.taken() == (400, 150)  # libraries have not been used yet
    gpu.look()
    assert _later(gpu).taken() == (700, 150)
