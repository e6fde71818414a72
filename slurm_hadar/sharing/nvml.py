"""What a process takes of its GPU beside PyTorch's tensors: CUDA's context, and what libraries allocate themselves.

PyTorch's caching allocator sees its own memory alone; the driver sees all of it, and tells it by process through NVML
(``nvmlDeviceGetComputeRunningProcesses``; package nvidia-ml-py, extra ``nvml``).
"""

from __future__ import annotations

import os
import time
from typing import Any

__all__ = ["LOOK_S", "Overhead"]

#: It changes when a library is first used: a look now and then is enough, and each costs a call of the driver.
LOOK_S = 30.0


class Overhead:
    """Asked as often as one likes; looks every :data:`LOOK_S`. Where NVML is not there, or does not know this process
    (as in a container with process numbers of its own), nothing is known, and 0 is told."""

    def __init__(self) -> None:
        self._nvml: Any = _loaded()
        self._most = 0
        self._due_s = 0.0

    def bytes_beside(self, reserved_bytes: int) -> int:
        """The most that was seen beside what the caching allocator has reserved, which is ``reserved_bytes`` now."""
        now = time.monotonic()
        if self._nvml is not None and now >= self._due_s:
            self._due_s = now + LOOK_S
            try:
                self._most = max(self._most, _used_bytes(self._nvml) - reserved_bytes)
            except self._nvml.NVMLError:  # the driver went away, or does not tell: what is known stays
                self._nvml = None
        return self._most


def _loaded() -> Any:
    """NVML's binding; None where there is none."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except ImportError:
        return None
    except pynvml.NVMLError:
        return None
    return pynvml


def _used_bytes(nvml: Any) -> int:
    """Of this process on all GPUs; it takes turns on one, and has nothing on the others. Of several entries of one
    process on one GPU, as with MIG, all count. Where the driver knows no amount it says None."""
    mine, used = os.getpid(), 0
    for number in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        processes = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        used += sum(one.usedGpuMemory or 0 for one in processes if one.pid == mine)
    return used
