"""What became of the requests of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from slurm_hadar.serving.trace import TracedRequest

__all__ = ["PlayedBatch", "ServeResult"]


@dataclass(frozen=True, slots=True)
class PlayedBatch:
    """``requests`` are places in the trace."""

    worker: str
    start_s: float
    end_s: float
    requests: tuple[int, ...]


@dataclass
class ServeResult:
    """``ends_s``: when each request of the trace was answered; NaN for those given up. ``decide_us``: CPU microseconds
    of each decision."""

    scheduler: str
    trace: Sequence[TracedRequest]
    ends_s: Any
    batches: list[PlayedBatch] = field(default_factory=list)
    decide_us: list[float] = field(default_factory=list)

    @property
    def on_time(self) -> Any:
        """By request."""
        return self.ends_s <= np.array([r.deadline_s for r in self.trace]) + 1e-9

    @property
    def finish_rate(self) -> float:
        """The share of all requests that were answered within their deadlines."""
        return float(np.mean(self.on_time))

    def summary(self) -> dict[str, Any]:
        """What ``--json`` writes."""
        sizes = [len(b.requests) for b in self.batches]
        return {
            "scheduler": self.scheduler,
            "requests": len(self.trace),
            "finish_rate": self.finish_rate,
            "by_application": self._by_application(),
            "rejected": int(np.isnan(self.ends_s).sum()),
            "mean_batch": float(np.mean(sizes)) if sizes else 0.0,
            "decide_us_p99": float(np.percentile(self.decide_us, 99)) if self.decide_us else 0.0,
        }

    def _by_application(self) -> dict[str, Any]:
        names = np.array([r.application for r in self.trace])
        waits = self.ends_s - np.array([r.arrival_s for r in self.trace])
        on_time, found = self.on_time, {}
        for name in sorted(set(names)):
            here = names == name
            answered = waits[here & ~np.isnan(waits)]
            found[str(name)] = {
                "requests": int(here.sum()),
                "finish_rate": float(on_time[here].mean()),
                "rejected": int(np.isnan(waits[here]).sum()),
                "latency_p50_s": float(np.median(answered)) if len(answered) else None,
                "latency_p99_s": float(np.percentile(answered, 99)) if len(answered) else None,
            }
        return found
