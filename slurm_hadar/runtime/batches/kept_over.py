"""Iterators of ``DataLoader``s that a source of batches keeps from one epoch to the next, as one that goes through two
loaders of unlike lengths by ``next()``. How far they are follows from no random number, and no checkpoint has it."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from typing import Any

from slurm_hadar.runtime.batches.positioned import length_of

__all__ = ["KeptOver", "place_in"]

_LOOKS = 4  # epochs: to look at all objects takes hundredths of a second


class KeptOver:
    """Those that are in their midst when an epoch begins, and go on in it, or are elsewhere when the next one does."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}  # by their data set, when the epoch began
        self._looks = 0
        self._found = False

    def begin_epoch(self) -> None:
        """The source is about to be asked for an epoch's batches."""
        if self._found or self._looks >= _LOOKS:
            return
        self._looks += 1
        now = {id(one._dataset): (weakref.ref(one), place) for one, place in _in_their_midst()}  # noqa: SLF001
        others = (now[data][1] != place for data, (_, place) in self._known.items() if data in now)
        self._found = self.found() or any(others)
        self._known = now

    def found(self) -> bool:
        """Whether there are any."""
        there = ((ref(), place) for ref, place in self._known.values())
        self._found = self._found or any(one is not None and place_in(one) != place for one, place in there)
        return self._found


def place_in(iterator: Any) -> int | None:
    """How many batches it has given; None where that is all, or where its loader begins anew each time."""
    given, length = iterator._num_yielded, length_of(iterator)  # noqa: SLF001
    over = length is not None and given >= length
    return None if over or iterator._persistent_workers else int(given)  # noqa: SLF001


def _in_their_midst() -> Iterator[tuple[Any, int]]:
    loaders = sys.modules.get("torch.utils.data.dataloader")
    if loaders is None:
        return
    for one in gc.get_objects():
        if issubclass(type(one), loaders._BaseDataLoaderIter) and (place := place_in(one)):  # noqa: SLF001 - of iter(loader)
            yield one, place
