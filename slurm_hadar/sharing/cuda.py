"""What a member of a shared GPU asks of CUDA: whether the GPU has done what it was given, how long it took, and memory.

A training runs ahead of its GPU: the Python code of the next iteration orders work while the last one's is under way.
As long as nobody else wants the turn that goes on, by one iteration: moments are stamped by events in the GPU's queue,
and the GPU is waited for when the turn is handed over (:meth:`Gpu.settle`). Where others have had turns of late, the
GPU is waited for at each iteration's end, unless iterations are short, so that others wait for one at the most. Nothing
is asked while a CUDA graph is being captured, which any other call would break.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from typing import Any

from slurm_hadar.joblog import say
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.nvml import Overhead

__all__ = ["LOOK_S", "OTHERS_S", "SHORT_MS", "SLACK", "SWITCH_NS", "Gpu", "gpu_in_use"]

#: PyTorch counts each block of memory: to add that up takes longer than a hand-over. Peaks last until they are read.
LOOK_S = 0.25
#: Who has handed its turn over so lately does not run ahead by an iteration of more than so many milliseconds.
OTHERS_S, SHORT_MS = 2.0, 5.0
#: What a hand-over costs a GPU at least, which has nothing to do for so long (docs/results/sharing.md).
SWITCH_NS = 1_000_000
#: What PyTorch may take beyond what was told: it keeps whole blocks of memory for parts of them.
SLACK = 1.1


def gpu_in_use() -> Any:
    """``torch.cuda``, once this process uses a GPU; else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)  # which may be on its way in
    return cuda if cuda is not None and cuda.is_initialized() else None


class Gpu:
    """This process's GPU. ``cuda`` is ``torch.cuda``; ``told`` what the job has told of its memory, to which it is held
    (None: nothing)."""

    def __init__(self, cuda: Any, told: Demand | None) -> None:
        self._cuda, self._frees = cuda, False
        self._overhead = Overhead()
        self._beside = 0
        self._has_run = False
        self._begun: Any = None
        self._spans: deque[tuple[Any, Any]] = deque()
        self._spare: list[Any] = []
        self._due_s = 0.0
        self._switch_ns = SWITCH_NS
        self._settled_s, self._last_ms = -math.inf, 0.0
        #: After :meth:`end`: nothing is under way, and nothing to be given back, so that :meth:`settle` is not needed.
        self.idle = False
        if told is not None:
            self._fence(told)

    def capturing(self) -> bool:
        """Whether what is ordered now is not done, but noted for a CUDA graph."""
        return bool(self._cuda.is_current_stream_capturing())

    def begin(self) -> None:
        """An iteration begins where the GPU's queue ends now."""
        if not self.capturing():
            self._begun = self._stamp()

    def end(self, frees: bool) -> int:
        """It has been ordered; nanoseconds of those that the GPU has done since this was last told. ``frees``: what an
        iteration needs is the others' when the turn is."""
        self._frees = frees
        if self._begun is not None:
            self._spans.append((self._begun, self._stamp()))
            self._begun = None
        waits = self._last_ms > SHORT_MS and time.monotonic() - self._settled_s < OTHERS_S
        self.idle = waits and not self._frees
        if waits:
            self._cuda.synchronize()
        elif len(self._spans) > 1:
            self._spans[-2][1].synchronize()
        return self._spent_ns()

    def settle(self) -> tuple[int, int]:
        """Wait until the GPU has done all, and give back what was kept for the next iteration where others need it;
        nanoseconds as above, and what that costs: to take the memory anew takes about as long as to give it back. A
        capture begins with such a wait, so that there is nothing to be waited for within it."""
        if self.capturing():
            return 0, self._switch_ns
        self._cuda.synchronize()
        self._settled_s = time.monotonic()
        began_ns = time.perf_counter_ns()
        if self._frees:
            self._cuda.empty_cache()
            self._switch_ns = SWITCH_NS + 2 * (time.perf_counter_ns() - began_ns)
        return self._spent_ns(), self._switch_ns

    def free(self) -> None:
        """Give back what was kept for the next iteration."""
        if not self.capturing():
            self._cuda.empty_cache()

    def taken(self) -> tuple[int, int] | None:
        """Bytes that PyTorch holds tensors in between two iterations, with what NVML was last seen to say that the
        context and libraries take beside that; and how many more for tensors at the most since this was last told. None
        where that was a moment ago."""
        now = time.monotonic()
        if now < self._due_s:
            return None
        self._due_s = now + LOOK_S
        persistent, peak = self._cuda.memory_allocated(), self._cuda.max_memory_allocated()
        self._cuda.reset_peak_memory_stats()
        self._has_run = True
        return persistent + self._beside, max(0, peak - persistent)

    def look(self) -> None:
        """Ask the driver what is there beside PyTorch's memory, once it has been used; not within a turn, since the
        driver may take its time."""
        if self._has_run:
            self._beside = self._overhead.bytes_beside(self._cuda.memory_reserved())

    def _stamp(self) -> Any:
        event = self._spare.pop() if self._spare else self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def _spent_ns(self) -> int:
        spent_ms = 0.0
        while self._spans and self._spans[0][1].query():
            begin, end = self._spans.popleft()
            self._last_ms = begin.elapsed_time(end)
            spent_ms += self._last_ms
            self._spare += [begin, end]
        return round(spent_ms * 1e6)

    def _fence(self, told: Demand) -> None:
        """Have PyTorch give this process no more than it has told and :data:`SLACK`, context and libraries included:
        who told too little fails itself, and not who is beside it."""
        total = self._cuda.get_device_properties(self._cuda.current_device()).total_memory
        # a look of its own: the next of the other is due when libraries have been used
        most = round(SLACK * told.alone_bytes) - Overhead().bytes_beside(self._cuda.memory_reserved())
        if 0 < most < total:
            self._cuda.set_per_process_memory_fraction(most / total)
            say(
                f"PyTorch gives this job {most >> 20} MiB of the GPU, since it has told that it needs "
                f"{told.alone_bytes >> 20} MiB (HADAR_SHARE_PERSISTENT, HADAR_SHARE_EPHEMERAL)"
            )
