"""How full the cluster was, and how long its queue, over the last rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurm_hadar.controller.journal import Reader

__all__ = ["Trend", "trend_of"]


@dataclass(frozen=True, slots=True)
class Trend:
    """One value for each of the last rounds, the oldest first: ``times`` in epoch seconds, the share of all GPUs that
    jobs held (0 to 1; of jobs whose GPUs could be told), and the jobs that waited."""

    times: Sequence[float] = ()
    used: Sequence[float] = ()
    waiting: Sequence[int] = ()


def trend_of(journal: Reader) -> Trend:
    """Of the last 60 rounds. Raises StoreError."""
    last = journal.rounds(60)[::-1]
    if not last:
        return Trend()
    times = [r["time"] for r in last]
    gpus = sum(sum(content["gpus"].values()) for content in journal.node_records().values())
    runs = journal.runs_since(times[0])
    held = [sum(r.held.workers for r in runs if r.began <= t and (r.ended is None or t < r.ended)) for t in times]
    used = [min(1.0, count / gpus) if gpus else 0.0 for count in held]
    return Trend(times, used, [max(0, r["jobs"] - r["running"]) for r in last])
