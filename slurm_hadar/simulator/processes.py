"""Simulations in processes of their own, which end when their user has had enough."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.context import SpawnContext
from typing import Any

from slurm_hadar.errors import HadarError

__all__ = ["CONTEXT", "pool"]

CONTEXT: SpawnContext = get_context("spawn")


@contextmanager
def pool(count: int, begin: Callable[..., None] | None = None, *given: Any) -> Iterator[ProcessPoolExecutor]:
    """At most ``count`` processes, each of which first calls ``begin(*given)``. Whatever goes wrong, no further
    simulation is begun. Raises HadarError where a process was killed."""
    with ProcessPoolExecutor(max(1, count), CONTEXT, _begin, (begin, given)) as made:
        try:
            yield made
        except BrokenExecutor:
            raise HadarError(
                "a simulation's process was killed, perhaps for want of memory: try fewer --jobs"
            ) from None
        except BaseException:
            made.shutdown(wait=False, cancel_futures=True)
            raise


def _begin(begin: Callable[..., None] | None, given: tuple[Any, ...]) -> None:
    """Where a terminal tells all to stop, a process ends at once, and without a traceback."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if begin is not None:
        begin(*given)
