"""The workers of one training as seen by one of them: few, small agreements, led by rank 0."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import datetime as dt
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

__all__ = ["Gang"]

MOST_STEPS_UNWATCHED = 10_000
PATIENCE = dt.timedelta(hours=2)  # a save on a slow file system is waited for
FAREWELL = dt.timedelta(seconds=10)

_Decision = TypeVar("_Decision", bound="DataclassInstance")


class Gang:
    """Rank and size of the training, and agreement among its workers.

    Uses a process group of its own over gloo, so that nothing here waits for a GPU or mixes with the training's own
    collectives. Making one is itself collective. Without ``torch.distributed`` it is a gang of one.
    """

    def __init__(self) -> None:
        self.rank, self.world = 0, 1
        self._dist: Any = None
        distributed = sys.modules.get("torch.distributed")
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            self._dist = distributed
            self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        if self.world > 1:
            self._group = self._dist.new_group(backend="gloo", timeout=PATIENCE)

    def apart(self) -> Gang:
        """The same workers over connections of their own, for another thread; collective.

        Agreements of two threads on one process group would be taken for each other's.
        """
        return self if self.world == 1 else Gang()

    def leave_together(self) -> None:
        """At the end of the process wait for the others before the connections are closed.

        A worker whose peer is gone while its own gloo threads still run aborts ("terminate called without an active
        exception", PyTorch 2.13), and a finished training would count as failed.
        """
        if self.world > 1:
            atexit.register(self._leave, os.getpid())

    def _leave(self, worker: int) -> None:
        """Not in a process that it has forked, which ends by itself: that would wait, and not come back."""
        if os.getpid() != worker or not self._dist.is_initialized():
            return
        with contextlib.suppress(RuntimeError, ValueError):
            self._dist.monitored_barrier(group=self._group, timeout=FAREWELL)
            self._dist.destroy_process_group()

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which decides and writes for all."""
        return self.rank == 0

    def steps_until_look(self, every_s: float, per_step_s: float) -> int:
        """After how many steps the workers shall agree again, to do so about each ``every_s``; 1 for a lone worker, who
        has nobody to ask."""
        if self.world == 1:
            return 1
        return max(1, min(MOST_STEPS_UNWATCHED, int(every_s / max(per_step_s, 1e-9))))

    def agree(self, decision: _Decision) -> _Decision:
        """Rank 0's decision, on all ranks: a dataclass of truth values and numbers. The others give one of the same
        class, whose content does not count."""
        if self.world == 1:
            return decision
        import torch

        given = dataclasses.astuple(decision)
        wire = torch.tensor(given, dtype=torch.float64)
        self._dist.broadcast(wire, src=0, group=self._group)
        return type(decision)(*(type(mine)(said) for mine, said in zip(given, wire.tolist(), strict=True)))

    def broadcast(self, value: Any) -> Any:
        """Rank 0's object, on all ranks."""
        if self.world == 1:
            return value
        box = [value]
        self._dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def all_gather(self, values: tuple[float, ...]) -> list[tuple[float, ...]]:
        """All ranks' numbers by rank, on all ranks; each gives as many."""
        if self.world == 1:
            return [values]
        import torch

        own = torch.tensor(values, dtype=torch.float64)
        found = [torch.empty_like(own) for _ in range(self.world)]
        self._dist.all_gather(found, own, group=self._group)
        return [tuple(t.tolist()) for t in found]

    def gather(self, value: Any) -> list[Any] | None:
        """All ranks' objects by rank, on rank 0; None on the others."""
        if self.world == 1:
            return [value]
        found: list[Any] | None = [None] * self.world if self.leads else None
        self._dist.gather_object(value, found, dst=0, group=self._group)
        return found

    def scatter(self, values: list[Any] | None) -> Any:
        """Rank 0's objects, one to each rank, by rank; the others give None."""
        if self.world == 1:
            assert values is not None
            return values[0]
        box: list[Any] = [None]
        self._dist.scatter_object_list(box, values, src=0, group=self._group)
        return box[0]
