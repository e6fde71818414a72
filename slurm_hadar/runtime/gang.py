"""The workers of one training as seen by one of them: few, small agreements, led by rank 0."""

from __future__ import annotations

import atexit
import contextlib
import datetime as dt
import sys
from typing import Any

__all__ = ["Gang"]

PATIENCE = dt.timedelta(hours=2)  # a save on a slow file system is waited for
FAREWELL = dt.timedelta(seconds=10)


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

    def leave_together(self) -> None:
        """At the end of the process wait for the others before the connections are closed.

        A worker whose peer is gone while its own gloo threads still run aborts ("terminate called without an active
        exception", PyTorch 2.13), and a finished training would count as failed.
        """
        if self.world > 1:
            atexit.register(self._leave)

    def _leave(self) -> None:
        if not self._dist.is_initialized():
            return
        with contextlib.suppress(RuntimeError, ValueError):
            self._dist.monitored_barrier(group=self._group, timeout=FAREWELL)
            self._dist.destroy_process_group()

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def agree(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """Rank 0's whole numbers, on all ranks; the others' only say how many there are."""
        if self.world == 1:
            return values
        import torch

        tensor = torch.tensor(values, dtype=torch.int64)
        self._dist.broadcast(tensor, src=0, group=self._group)
        return tuple(tensor.tolist())

    def share(self, value: Any) -> Any:
        """Rank 0's object, on all ranks."""
        if self.world == 1:
            return value
        box = [value]
        self._dist.broadcast_object_list(box, src=0, group=self._group)
        return box[0]

    def gather(self, value: Any) -> list[Any] | None:
        """All ranks' objects by rank, on rank 0; None on the others."""
        if self.world == 1:
            return [value]
        found: list[Any] | None = [None] * self.world if self.leads else None
        self._dist.gather_object(value, found, dst=0, group=self._group)
        return found
