"""A plain ``DataLoader`` that begins in the midst of an epoch, without loading what was used of it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from slurm_hadar.runtime import rng
from slurm_hadar.runtime.batches.generators import generators_of
from slurm_hadar.runtime.batches.kept import mark_ours
from slurm_hadar.runtime.batches.sampler import SharedBatchSampler
from slurm_hadar.runtime.batches.shares import Shares

__all__ = ["enter", "length_of", "positioned", "warm_up"]

#: What PyTorch lets a script set anew in a loader, and heeds from the next epoch on.
_SET_ANEW = ["num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "generator", "prefetch_factor"]


def length_of(source: Any) -> int | None:
    """How many batches it gives; None where only going through it would tell, as of a stream."""
    try:
        return len(source)
    except (TypeError, NotImplementedError):
        return None


def enter(loader: Any, skip: int, first: bool) -> Iterator[Any] | None:
    """An epoch of a ``DataLoader`` without its first ``skip`` batches, which are not loaded.

    None where only going through the batches leads there. Random numbers are drawn as by a whole epoch, the ``first``
    or a later one.
    """
    begins = positioned(loader, None, None)
    if begins is None:
        return None
    if not first:
        begins.warm_up()
    return begins.begin(skip, 0)


def warm_up(loader: Any) -> None:
    """Give a loader that keeps its workers the iterator that it has after its first epoch: to make it draws a random
    number, which later epochs do not. The random states stay as they are."""
    if getattr(loader, "persistent_workers", False) and getattr(loader, "_iterator", None) is None:
        generators = generators_of(loader)
        states = rng.capture(generators)
        iter(loader)
        rng.restore(states, generators)


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

    def __init__(self, loader: Any, batch: int | None, shares: Shares | None) -> None:
        from torch.utils.data import DataLoader

        batched = loader.batch_sampler is not None
        entries = loader.batch_sampler if batched else loader.sampler
        if batch is not None:
            entries = _batches_of(loader, batch, shares)
        self.shared = entries if isinstance(entries, SharedBatchSampler) else None
        self.ahead = (loader.prefetch_factor or 0) * loader.num_workers
        self.skipping = _Skipping(entries)
        names = "num_workers collate_fn pin_memory timeout worker_init_fn generator persistent_workers in_order"
        options = {n: getattr(loader, n) for n in names.split() if hasattr(loader, n)}
        if loader.num_workers:
            options["prefetch_factor"] = loader.prefetch_factor
            options["multiprocessing_context"] = loader.multiprocessing_context
        order = {"batch_sampler": self.skipping} if batched else {"batch_size": None, "sampler": self.skipping}
        self._given, self._loader = loader, DataLoader(loader.dataset, **order, **options)
        mark_ours(self._loader)

    def __len__(self) -> int:
        return len(self.skipping)

    def warm_up(self) -> None:
        self.skipping.skip = 0
        warm_up(self._loader)

    def begin(self, skip: int, first_turn: int) -> Iterator[Any]:
        """An epoch without its first ``skip`` batches. All random numbers for leaving them out are drawn on return.

        ``first_turn``: of the loop, in which the epoch's first batch is or would have been used.
        """
        self.skipping.skip = skip
        if self.shared is not None:
            self.shared.first_turn = first_turn
        for name in _SET_ANEW:
            setattr(self._loader, name, getattr(self._given, name))
        batches = iter(self._loader)
        self.skipping.entries.drop()
        return batches


def _batches_of(loader: Any, batch: int, shares: Shares | None) -> Any:
    """The batch sampler that a gang with a global batch uses instead of the loader's own."""
    from torch.utils.data import BatchSampler

    own = loader.batch_sampler
    if isinstance(own, SharedBatchSampler):
        if shares is not None:
            own.bind(shares)
        return own
    if type(own) is not BatchSampler:
        raise ValueError("global_batch= needs a DataLoader with batch_size=, without a batch sampler of its own")
    if shares is None:
        return BatchSampler(own.sampler, batch, own.drop_last)
    return SharedBatchSampler.over(own.sampler, shares, own.drop_last)


def positioned(source: Any, batch: int | None, shares: Shares | None) -> _Positioned | None:
    """None where only going through the batches leads to a position: not a plain loader, or data without indices."""
    if source is None:
        return None
    from torch.utils.data import DataLoader, IterableDataset

    if type(source) is not DataLoader or isinstance(source.dataset, IterableDataset):
        if batch is not None and isinstance(source, DataLoader):
            raise ValueError("global_batch= needs a plain DataLoader over a dataset with indices")
        return None
    return _Positioned(source, batch, shares)
