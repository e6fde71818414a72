"""SIGTERM in a training process: what Slurm sends before it ends a job, and so the last moment to save in."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["Ending", "at_once", "die"]


class Ending:
    """While it is entered, SIGTERM does not end this process but is noted in ``asked``. A handler of the training's own
    is left alone, and so is a training that is not in the main thread; ``library`` tells handlers that are the
    library's, not the training's."""

    def __init__(self, library: Callable[[Any], bool] = lambda _handler: False) -> None:
        self.asked = False
        self._library = library
        self._before: Any = None

    def __enter__(self) -> Ending:
        handler = signal.getsignal(signal.SIGTERM)
        if _may_handle() and (handler is signal.SIG_DFL or self._library(handler)):
            self._before = signal.signal(signal.SIGTERM, self._on_sigterm)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None and _may_handle() and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, self._before)
        self._before = None
        if self.asked:
            die()

    def _on_sigterm(self, _number: int, _frame: Any) -> None:
        self.asked = True


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Within it SIGTERM ends the process, whoever handles it otherwise: all that was made is saved."""
    if not _may_handle():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def die() -> None:
    """End as by an unhandled SIGTERM."""
    if _may_handle():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _may_handle() -> bool:
    return threading.current_thread() is threading.main_thread()
