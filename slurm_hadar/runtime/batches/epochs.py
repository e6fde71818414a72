"""An epoch as a loop of its own: what a function that trains for one epoch takes for its loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from slurm_hadar.runtime.batches.data import Feed

__all__ = ["Epoch", "epochs_of"]


class Epoch:
    """The batches of one epoch that are still to come, under the loader's length and with its other attributes.

    Parameters
    ----------
    feed: is in that epoch. begin: begins the pass over its batches, or goes on with it.
    start: how many of them were used before, by an earlier run of the job; mostly 0.
    """

    def __init__(self, feed: Feed, begin: Callable[[], Iterator[Any]], start: int) -> None:
        self.start = start
        self._begin, self._batches, self._loader = begin, feed.epoch_batches, feed.source

    def __iter__(self) -> Iterator[Any]:
        return self._begin()

    def __len__(self) -> int:
        if self._batches is None:
            raise TypeError(f"a loader of type {type(self._loader).__name__} tells no number of batches")
        return self._batches

    def __bool__(self) -> bool:
        return True  # as a loader without a length is

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # while it is copied it has no loader yet
            raise AttributeError(name)
        return getattr(self._loader, name)


def epochs_of(run: Iterable[Any], feed: Feed) -> Iterator[tuple[int, Epoch]]:
    """Those of a copy of a forked job, whose steps may lie anywhere: each as far as its batches follow each other."""
    batches, ahead = iter(run), list[Any]()

    def comes() -> bool:
        if not ahead:
            ahead.extend(islice(batches, 1))
        return bool(ahead)

    def rest(epoch: int) -> Iterator[Any]:
        while comes() and feed.epoch == epoch:
            yield ahead.pop()

    while comes():
        yield feed.epoch, Epoch(feed, partial(rest, feed.epoch), feed.index - 1)
