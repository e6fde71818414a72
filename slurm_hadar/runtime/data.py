"""Batches, epoch after epoch, from any position: what makes a resumed training see the data it would have seen.

The order of an epoch is a function of the random states at its beginning. These are kept, so that on resuming the epoch
is begun again from them, as many batches are left out as were used, and then the states of the moment of the save are
put back. Shuffles are exactly those of an ordinary loop over the same loader; nothing about them is changed.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from itertools import count, islice
from typing import Any

from slurm_hadar.runtime import rng

__all__ = ["Feed"]


class Feed:
    """An endless supply of batches.

    Parameters
    ----------
    source: a ``DataLoader``; any other iterable that can be gone through again; a function, called once per epoch (with
        the epoch's number if it takes an argument), that returns an iterable; or None for the numbers 0, 1, 2, ...
    batch: batch size to use instead of the loader's own; a source that is no loader of whole batches is taken as it is.

    A plain ``DataLoader`` over a dataset with indices leaves out batches without loading them. Others are gone through.
    With worker processes that draw random numbers themselves (augmentation), an epoch resumed in its middle sees the
    same samples, but other random numbers in the workers.
    """

    def __init__(self, source: Any, batch: int | None = None) -> None:
        self.epoch = 0
        self.index = 0
        self._source = source
        self._generators = _generators(source)
        self._loader = _positioned(source, batch)
        self._iterator: Iterator[Any] | None = None
        self._epoch_rng: dict[str, Any] | None = None

    def next(self) -> Any:
        """The next batch; a used-up epoch is followed by the next. Raises ValueError if an epoch has none."""
        while True:
            if self._iterator is None:
                self._begin(skip=0)
            try:
                batch = next(self._iterator)  # type: ignore[arg-type]
            except StopIteration:
                if self.index == 0:
                    raise ValueError("the loader gives no batch at all") from None
                self.epoch, self.index, self._iterator = self.epoch + 1, 0, None
                continue
            self.index += 1
            return batch

    def position(self) -> dict[str, int]:
        """Epoch, and batches of it that were used; the same on all ranks."""
        return {"epoch": self.epoch, "index": self.index}

    def random_states(self) -> dict[str, Any]:
        """This rank's random states: now, and at the beginning of the epoch."""
        return {"now": rng.capture(self._generators), "epoch": self._epoch_rng}

    def restore(self, position: dict[str, int], states: dict[str, Any] | None) -> None:
        """Go to ``position``. Without ``states`` (a rank that did not exist) the present random states are used."""
        self.epoch, self.index, self._iterator = position["epoch"], 0, None
        if self._source is None:
            self.index = position["index"]
        elif position["index"]:
            if states is not None and states["epoch"] is not None:
                rng.restore(states["epoch"], self._generators)
            self._begin(skip=position["index"])
            self.index = position["index"]
        if states is not None:
            rng.restore(states["now"], self._generators)

    def _begin(self, skip: int) -> None:
        self._epoch_rng = rng.capture(self._generators)
        self._iterator = self._batches(skip)

    def _batches(self, skip: int) -> Iterator[Any]:
        if self._source is None:
            return count(self.index)
        if self._loader is not None:
            _set_epoch(self._source, self.epoch)
            return self._loader.begin(skip)
        batches = iter(self._open_source())
        for _ in islice(batches, skip):
            pass
        return batches

    def _open_source(self) -> Iterable[Any]:
        if not callable(self._source):
            _set_epoch(self._source, self.epoch)
            return self._source
        return self._source(self.epoch) if inspect.signature(self._source).parameters else self._source()


class _Entries:
    """A sampler's entries without the first ``skip``.

    When those are drawn matters, since drawing may use random numbers: like an ordinary first entry, after what the
    loader itself draws at the beginning of an epoch, hence not at once.
    """

    def __init__(self, sampler: Any, skip: int) -> None:
        self._entries, self._skip = iter(sampler), skip

    def __iter__(self) -> _Entries:
        return self

    def __next__(self) -> Any:
        self.drop()
        return next(self._entries)

    def drop(self) -> None:
        """Draw what is to be left out, if that has not been done."""
        skip, self._skip = self._skip, 0
        for _ in islice(self._entries, skip):
            pass


class _Skipping:
    """A sampler in front of another that leaves out the first ``skip`` entries of each epoch."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.skip = 0
        self.entries = _Entries((), 0)

    def __iter__(self) -> _Entries:
        self.entries = _Entries(self._inner, self.skip)  # a loader with workers asks twice
        return self.entries

    def __len__(self) -> int:
        return len(self._inner)


class _Positioned:
    """A copy of a DataLoader that can begin in the middle of an epoch."""

    def __init__(self, loader: Any, batch: int | None) -> None:
        from torch.utils.data import BatchSampler, DataLoader

        batched = loader.batch_sampler is not None
        entries = loader.batch_sampler if batched else loader.sampler
        if batch is not None:
            if type(entries) is not BatchSampler:
                raise ValueError(
                    "global_batch= needs a DataLoader with batch_size=, without a batch sampler of its own"
                )
            entries = BatchSampler(loader.sampler, batch, loader.drop_last)
        self.skipping = _Skipping(entries)
        names = "num_workers collate_fn pin_memory timeout worker_init_fn generator persistent_workers in_order"
        options = {n: getattr(loader, n) for n in names.split() if hasattr(loader, n)}
        if loader.num_workers:
            options["prefetch_factor"] = loader.prefetch_factor
            options["multiprocessing_context"] = loader.multiprocessing_context
        order = {"batch_sampler": self.skipping} if batched else {"batch_size": None, "sampler": self.skipping}
        self._loader = DataLoader(loader.dataset, **order, **options)

    def begin(self, skip: int) -> Iterator[Any]:
        """An epoch without its first ``skip`` batches. All random numbers for leaving them out are drawn on return."""
        self.skipping.skip = skip
        batches = iter(self._loader)
        self.skipping.entries.drop()
        return batches


def _positioned(source: Any, batch: int | None) -> _Positioned | None:
    """None where only going through the batches leads to a position: not a plain loader, or data without indices."""
    if source is None:
        return None
    from torch.utils.data import DataLoader, IterableDataset

    if type(source) is not DataLoader or isinstance(source.dataset, IterableDataset):
        if batch is not None and isinstance(source, DataLoader):
            raise ValueError("global_batch= needs a plain DataLoader over a dataset with indices")
        return None
    return _Positioned(source, batch)


def _generators(source: Any) -> list[Any]:
    """The user's own generators, whose states belong to the position."""
    sampler = getattr(source, "sampler", None)
    candidates = [getattr(source, "generator", None), getattr(sampler, "generator", None)]
    unique = {id(g): g for g in candidates if hasattr(g, "get_state") and hasattr(g, "set_state")}
    return list(unique.values())


def _set_epoch(source: Any, epoch: int) -> None:
    """Tell samplers that shuffle by epoch (``DistributedSampler``), as an ordinary loop over epochs would."""
    for part in (getattr(source, "sampler", None), getattr(source, "batch_sampler", None), source):
        if part is not None and hasattr(part, "set_epoch"):
            part.set_epoch(epoch)
            return
