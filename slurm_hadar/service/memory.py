"""How the C library gives memory to a process that needs much of it for some seconds of each round."""

from __future__ import annotations

import contextlib
import ctypes

__all__ = ["return_memory_early"]

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # malloc.h of glibc
_LARGE = 32 << 10  # a fixed threshold: glibc would raise its own with each larger piece that is freed


def return_memory_early() -> None:
    """Large pieces go back to the system once they are free, and all threads share one arena. Elsewhere than with glibc
    nothing happens."""
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, value in ((_M_ARENA_MAX, 1), (_M_MMAP_THRESHOLD, _LARGE), (_M_TRIM_THRESHOLD, _LARGE)):
            mallopt(option, value)
