"""What knowing GPU types has saved, for all who show it: the same reckoning over the same time, in the same words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_hadar.controller.journal import Reader
from slurm_hadar.controller.journal.gains import saved, shadow

__all__ = ["SAVINGS_DAYS", "gpu_time", "headline", "savings", "share"]

#: So far back savings are summed up where nothing else is asked for.
SAVINGS_DAYS = 7.0


def savings(journal: Reader, now: float) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Of the last :data:`SAVINGS_DAYS`: what was carried out (:func:`slurm_hadar.controller.journal.gains.saved`), and
    what was only looked at (:func:`slurm_hadar.controller.journal.gains.shadow`); None where nothing is known. Raises
    StoreError."""
    gains = journal.gains(now - SAVINGS_DAYS * 86_400.0)
    return saved(gains), shadow(gains)


def share(found: Mapping[str, Any]) -> str:
    """How much more work a GPU-hour does by what :func:`slurm_hadar.controller.journal.gains.saved` found: ``+12.3
    %``."""
    return f"{100 * found['share']:+.1f} %" if abs(found["share"]) >= 0.0005 else "0 %"


def headline(found: Mapping[str, Any]) -> str:
    """The same in words: ``+12.3 % work per GPU-hour (4.2 GPU-hours saved)``."""
    gained_s = found["saved_gpu_s"]
    if share(found) == "0 %":
        return "Neither saved nor lost"
    return f"{share(found)} work per GPU-hour ({gpu_time(abs(gained_s))} {'saved' if gained_s > 0 else 'lost'})"


def gpu_time(gpu_s: float) -> str:
    """GPU-seconds in a unit that suits them: ``34 GPU-seconds``, ``12 GPU-minutes``, ``4.2 GPU-hours``."""
    if gpu_s < 120:
        return f"{gpu_s:.0f} GPU-seconds"
    if gpu_s < 7200:
        return f"{gpu_s / 60:.0f} GPU-minutes"
    return f"{gpu_s / 3600:,.1f} GPU-hours" if gpu_s < 360_000 else f"{gpu_s / 3600:,.0f} GPU-hours"
