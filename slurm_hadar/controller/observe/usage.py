"""Who has had how much lately: GPU-seconds per user, account and GPU type, older ones counting less.

A GPU-second counts half after each half-life (``fairness.half_life_h``), as in Slurm's own fair-share priority. All GPU
jobs count, also those that are not steered. Kept in the journal, so that a restart forgets nothing; a controller that
is killed between booking and saving its jobs may count one round twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from slurm_hadar.controller.journal import Journal

__all__ = ["UsageBook", "decayed", "held"]

_Key = tuple[str, str, str]


class UsageBook:
    """Running totals over a journal's ``usage`` table. Methods that touch the journal raise StoreError."""

    def __init__(self, journal: Journal, half_life_s: float) -> None:
        self._journal = journal
        self._half_life_s = half_life_s
        self._totals: dict[_Key, tuple[float, float]] = journal.usage()
        self._fresh: set[_Key] = set()

    def reconfigure(self, half_life_s: float) -> None:
        """Another half-life, for all that is remembered."""
        self._half_life_s = half_life_s

    def book(self, user: str, account: str, gpus: Mapping[str, float], seconds: float, at: float) -> None:
        """Add the GPUs that a job has held, by type, for the ``seconds`` before ``at`` (epoch seconds)."""
        each = held(seconds, self._half_life_s)
        for gpu_type, count in gpus.items():
            key = (user, account, gpu_type)
            self._totals[key] = (self._value(key, at) + count * each, at)
            self._fresh.add(key)

    def save(self) -> None:
        """Write what was booked since the last time."""
        if self._fresh:
            self._journal.save_usage({key: self._totals[key] for key in self._fresh})
            self._fresh.clear()

    def by_user(self, at: float) -> dict[str, dict[str, float]]:
        """{user: {GPU type: GPU-seconds}} as they count at ``at``."""
        return self._by(0, at)

    def by_account(self, at: float) -> dict[str, dict[str, float]]:
        """{account: {GPU type: GPU-seconds}} as they count at ``at``."""
        return self._by(1, at)

    def _by(self, part: int, at: float) -> dict[str, dict[str, float]]:
        found: dict[str, dict[str, float]] = {}
        for key in self._totals:
            types = found.setdefault(key[part], {})
            types[key[2]] = types.get(key[2], 0.0) + self._value(key, at)
        return found

    def _value(self, key: _Key, at: float) -> float:
        value, updated = self._totals.get(key, (0.0, at))
        return decayed(value, at - updated, self._half_life_s)


def held(seconds: float, half_life_s: float) -> float:
    """What one GPU held for so long until now counts, in GPU-seconds: the integral of the decay over that time."""
    per_s = math.log(2) / half_life_s
    return -math.expm1(-per_s * max(0.0, seconds)) / per_s


def decayed(gpu_s: float, age_s: float, half_life_s: float) -> float:
    """What GPU-seconds count for so long after they were counted up."""
    return gpu_s * float(0.5 ** (max(0.0, age_s) / half_life_s))
