"""Which GPUs hold which trials."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from slurm_hadar.tuning.pool import GpuType
from slurm_hadar.tuning.widths import Grant

__all__ = ["Gpus"]


class Gpus:
    """The GPUs of a pool, one by one. A GPU has a part of one trial, several parts (at most ``packed``), or nothing."""

    def __init__(self, pool: Sequence[GpuType], packed: int) -> None:
        self._packed = packed
        self._parts: dict[str, list[dict[str, Fraction]]] = {t.name: [{} for _ in range(t.count)] for t in pool}

    def take(self, trial: str, grant: Grant) -> bool:
        """Give a trial what it is granted; whether there is room for it. Parts go where most parts are already."""
        gpus = self._parts[grant.gpu_type]
        if grant.width >= 1:
            free = [held for held in gpus if not held][: int(grant.width)]
            if len(free) < grant.width:
                return False
            for held in free:
                held[trial] = Fraction(1)
            return True
        open_to = [held for held in gpus if len(held) < self._packed and sum(held.values()) + grant.width <= 1]
        if not open_to:
            return False
        max(open_to, key=len)[trial] = grant.width
        return True

    def leave(self, trial: str) -> None:
        for gpus in self._parts.values():
            for held in gpus:
                held.pop(trial, None)

    @property
    def busy(self) -> int:
        """GPUs that somebody has."""
        return sum(1 for gpus in self._parts.values() for held in gpus if held)
