"""Processes that end with the one that has started them."""

from __future__ import annotations

import ctypes
import os
import signal

__all__ = ["die_with_parent"]

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_prctl = ctypes.CDLL(None).prctl  # before the fork: a child of a process with threads must not import


def die_with_parent(parent: int | None = None, by: signal.Signals = signal.SIGKILL) -> None:
    """Called by the child, or between fork and exec: it is signalled when the thread that has forked it is gone. At
    once where ``parent``, the pid as it was before the fork, is its parent no more."""
    _prctl(_PR_SET_PDEATHSIG, by, 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os._exit(128 + by)
