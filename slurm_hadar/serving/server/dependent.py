"""Processes that end with the one that has started them."""

from __future__ import annotations

import ctypes
import signal

__all__ = ["die_with_parent"]

_PDEATHSIG = 1  # of Linux's prctl


def die_with_parent() -> None:
    """Nobody waits for this process once the thread that has started it is gone."""
    ctypes.CDLL(None).prctl(_PDEATHSIG, signal.SIGKILL)
