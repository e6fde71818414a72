"""Signals for who waits in select(2) without an end.

Python calls a signal's handler between two instructions of its own. A signal that comes after the last of these and
before the process sleeps in the kernel ends no wait: what it asked for is done whenever something else happens.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

__all__ = ["signals_wake"]


@contextlib.contextmanager
def signals_wake() -> Iterator[int]:
    """A descriptor that is readable once a signal has come that has a handler; each byte is the number of one. In the
    main thread alone, and one at a time: see signal.set_wakeup_fd()."""
    woken, wake = os.pipe()
    try:
        os.set_blocking(wake, False)
        before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        try:
            yield woken
        finally:
            signal.set_wakeup_fd(before)
    finally:
        os.close(woken)
        os.close(wake)
