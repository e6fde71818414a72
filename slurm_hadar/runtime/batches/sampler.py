"""Global batches in one order for all workers, of which each takes its share."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from slurm_hadar.runtime.batches.shares import Shares, positions

__all__ = ["SharedBatchSampler"]


class SharedBatchSampler:
    """A batch sampler whose global batches are the same whatever each worker takes of them.

    ::

        loader = DataLoader(data, batch_sampler=slurm_hadar.SharedBatchSampler(data, 512, seed=1))
        run = slurm_hadar.train(model, optimizer, total_steps=..., loader=loader, global_batch=512)

    The order is that of ``DistributedSampler(data, shuffle=, seed=)``: global batch i of an epoch has the samples that
    equal workers with batches of ``global_batch / workers`` would have had in step i. By itself it shares equally.

    Parameters
    ----------
    dataset: what the indices are of. global_batch: samples over all workers, which their number must divide.
    shuffle, seed: as of ``DistributedSampler``. drop_last: leave out an incomplete global batch at an epoch's end.

    Made after ``init_process_group``. Raises ValueError if ``global_batch`` cannot be shared equally.
    """

    def __init__(
        self, dataset: Any, global_batch: int, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> None:
        from torch import distributed as dist
        from torch.utils.data import DistributedSampler

        many = dist.is_available() and dist.is_initialized()
        world, rank = (dist.get_world_size(), dist.get_rank()) if many else (1, 0)
        if global_batch < world or global_batch % world:
            raise ValueError(f"global_batch={global_batch} cannot be shared equally by {world} workers")
        self._sampler: Any = DistributedSampler(dataset, num_replicas=world, rank=rank, shuffle=shuffle, seed=seed)
        self._drop_last = drop_last
        self._shares = Shares(global_batch, world, rank)
        self.first_turn = 0

    @classmethod
    def over(cls, sampler: Any, shares: Shares, drop_last: bool) -> SharedBatchSampler:
        """The global batches of a ``DistributedSampler``, shared by ``shares``.

        Raises ValueError for any other sampler: workers that draw their samples independently have no common order.
        """
        from torch.utils.data import DistributedSampler

        if not isinstance(sampler, DistributedSampler) or type(sampler).__iter__ is not DistributedSampler.__iter__:
            raise ValueError(
                f"a balanced training needs a DistributedSampler, not {type(sampler).__name__}; or a loader with "
                "batch_sampler=slurm_hadar.SharedBatchSampler(...)"
            )
        if (sampler.num_replicas, sampler.rank) != (shares.world, shares.rank):
            raise ValueError(
                f"the DistributedSampler is of rank {sampler.rank} of {sampler.num_replicas}, and the training of rank "
                f"{shares.rank} of {shares.world}"
            )
        made = cls.__new__(cls)
        # a second constructor
        made._sampler, made._drop_last, made._shares, made.first_turn = sampler, drop_last, shares, 0  # noqa: SLF001
        return made

    def bind(self, shares: Shares) -> None:
        """Share by ``shares`` from now on. Raises ValueError if they are of another global batch or other workers."""
        own = self._shares
        if (own.total, own.world, own.rank) != (shares.total, shares.world, shares.rank):
            raise ValueError(
                f"SharedBatchSampler(..., {own.total}) for {own.world} workers does not go with "
                f"global_batch={shares.total} of {shares.world} workers"
            )
        self._shares = shares

    def set_epoch(self, epoch: int) -> None:
        """Another order in each epoch, as of ``DistributedSampler``; ``train`` calls it."""
        self._sampler.set_epoch(epoch)

    def size(self, index: int) -> int:
        """Samples over all workers in global batch ``index`` of an epoch."""
        return int(min(self._shares.total, self._sampler.total_size - index * self._shares.total))

    def __len__(self) -> int:
        whole, rest = divmod(self._sampler.total_size, self._shares.total)
        return int(whole + (rest > 0 and not self._drop_last))

    def __iter__(self) -> Iterator[list[int]]:
        """This worker's part of each global batch of an epoch.

        ``first_turn`` is the loop's turn in which the first is used. Shares are looked up when a batch is drawn.
        """
        order = self._order()
        for index in range(len(self)):
            begin = index * self._shares.total
            shares = self._shares.at(self.first_turn + index, self.size(index))
            yield [order[begin + p] for p in positions(shares, self._shares.rank)]

    def _order(self) -> list[int]:
        """All workers' samples of the epoch; those that fill up the last round are among them."""
        whole = copy.copy(self._sampler)
        whole.num_replicas, whole.rank, whole.num_samples = 1, 0, whole.total_size
        return list(whole)
