"""GPU-seconds that users and accounts have had lately: older ones count less."""

from __future__ import annotations

import math
from collections.abc import Mapping

from slurm_hadar.controller.observe.usage import decayed, held

__all__ = ["UsageSums"]


class UsageSums:
    """Per name and GPU type, by the formulas of :mod:`slurm_hadar.controller.observe.usage`."""

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._sums: dict[str, dict[str, float]] = {}
        self._as_of = -math.inf

    def add(self, name: str, by_type: Mapping[str, float], start: float, end: float) -> None:
        """Book GPUs held from ``start`` to ``end``; ends may come in any order."""
        if not name or end <= start:
            return
        self._advance(end)
        weighted_s = decayed(held(end - start, self._half_life_s), self._as_of - end, self._half_life_s)
        sums = self._sums.setdefault(name, {})
        for gpu_type, count in by_type.items():
            sums[gpu_type] = sums.get(gpu_type, 0.0) + count * weighted_s

    def _advance(self, now: float) -> None:
        if now <= self._as_of:
            return
        factor = decayed(1.0, now - self._as_of, self._half_life_s) if self._sums else 1.0
        for sums in self._sums.values():
            for gpu_type in sums:
                sums[gpu_type] *= factor
        self._as_of = now

    def at(self, now: float) -> dict[str, dict[str, float]]:
        """{name: {gpu type: GPU-seconds}} as they count now."""
        self._advance(now)
        return {name: dict(sums) for name, sums in self._sums.items()}
