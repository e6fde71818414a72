"""An epoch as a loop of its own: what a function that trains for one epoch takes for its loader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import Any

from slurm_hadar.errors import HadarError
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
    """Those of a copy of a forked job, whose steps may lie anywhere: each as far as its batches follow each other.
    Raises HadarError where the script takes no batch of one: it would come again for ever."""
    batches, ahead, taken = iter(run), list[Any](), 0

    def comes() -> bool:
        if not ahead:
            ahead.extend(islice(batches, 1))
        return bool(ahead)

    def rest(epoch: int) -> Iterator[Any]:
        nonlocal taken
        while comes() and feed.epoch == epoch:
            taken += 1
            yield ahead.pop()

    while comes():
        epoch, before = feed.epoch, taken
        yield epoch, Epoch(feed, partial(rest, epoch), feed.index - 1)
        if taken == before:
            raise HadarError(
                f"epoch {epoch} was left without a step, and a forked job makes all of its steps: go through the "
                "batches of each epoch that run.epochs() gives, or train without fork= in the comment"
            )
