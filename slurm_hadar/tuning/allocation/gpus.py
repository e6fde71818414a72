"""Which GPUs hold which trials."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from fractions import Fraction

from slurm_hadar.tuning.allocation.pool import GpuType
from slurm_hadar.tuning.allocation.widths import Grant

__all__ = ["Gpus", "Place"]

#: A GPU of the pool: its type and its number among those, from 0.
Place = tuple[str, int]


class Gpus:
    """The GPUs of a pool, one by one. A GPU has a part of one trial, several parts (at most ``packed``), or nothing."""

    def __init__(self, pool: Sequence[GpuType], packed: int) -> None:
        self.packed = packed
        self._parts: dict[str, list[dict[str, Fraction]]] = {t.name: [{} for _ in range(t.count)] for t in pool}

    def take(self, trial: str, grant: Grant, near: Iterable[Place] = ()) -> bool:
        """Give a trial what it is granted; whether there is room for it. Best one of the GPUs ``near``, so that it need
        not move; else parts go where most parts are already."""
        gpus = self._parts[grant.gpu_type]
        mine = {index for name, index in near if name == grant.gpu_type}
        order = sorted(range(len(gpus)), key=lambda n: n not in mine)
        if grant.width >= 1:
            free = [gpus[n] for n in order if not gpus[n]][: int(grant.width)]
            if len(free) < grant.width:
                return False
            for held in free:
                held[trial] = Fraction(1)
            return True
        open_to = [n for n in order if len(gpus[n]) < self.packed and sum(gpus[n].values()) + grant.width <= 1]
        if not open_to:
            return False
        gpus[max(open_to, key=lambda n: (n in mine, len(gpus[n])))][trial] = grant.width
        return True

    @property
    def has_room(self) -> bool:
        """Whether there is a GPU of which a part can be had."""
        return any(
            len(held) < self.packed and (not held or sum(held.values()) < 1)
            for gpus in self._parts.values()
            for held in gpus
        )

    def change(self, pool: Sequence[GpuType], kept: Collection[str]) -> None:
        """Other GPUs from now on; who is on one of the types ``kept`` stays there."""
        new: dict[str, list[dict[str, Fraction]]] = {
            t.name: [{} for _ in range(t.count)] for t in pool if t.name not in kept
        }
        self._parts = {t.name: self._parts[t.name] if t.name in kept else new[t.name] for t in pool}

    def leave(self, trial: str) -> None:
        """A trial gives back what it has."""
        for gpus in self._parts.values():
            for held in gpus:
                held.pop(trial, None)

    def places(self, trial: str) -> tuple[Place, ...]:
        """The GPUs that a trial has, or has a part of."""
        return tuple((name, n) for name, gpus in self._parts.items() for n, held in enumerate(gpus) if trial in held)

    @property
    def busy(self) -> int:
        """GPUs that somebody has."""
        return sum(1 for gpus in self._parts.values() for held in gpus if held)
