"""What Prometheus and ``hadar serve status`` may know of a server."""

from __future__ import annotations

import math
from collections import deque
from enum import StrEnum
from typing import Any

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

__all__ = ["Outcome", "ServingMetrics"]

_BUCKETS_S = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
_LATEST = 1000


class Outcome(StrEnum):
    """What became of a request."""

    ON_TIME = "on_time"
    LATE = "late"
    REFUSED = "refused"
    ABANDONED = "abandoned"


class ServingMetrics:
    """Counters by model and application, of which the server keeps few apart."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        labels = ("model", "application")
        self._requests = Counter(
            "hadar_serving_requests", "By what became of them", (*labels, "outcome"), registry=self._registry
        )
        self._latency = Histogram(
            "hadar_serving_latency_seconds", "Of answers", labels, buckets=_BUCKETS_S, registry=self._registry
        )
        self._batch = Histogram(
            "hadar_serving_batch_size",
            "Requests that ran together",
            ("model",),
            registry=self._registry,
            buckets=(1, 2, 4, 8, 16, 32, 64),
        )
        self.workers = Gauge("hadar_serving_workers", "That are ready", registry=self._registry)
        self.workers_lost = Counter("hadar_serving_workers_lost", "That ended unasked", registry=self._registry)
        self.expected = Gauge(
            "hadar_serving_expected_finish_rate", "With the workers that are wanted", registry=self._registry
        )
        self.expected.set(math.nan)  # of a fixed number of workers nobody reckons it
        self._queued = Gauge("hadar_serving_queued", "Requests that wait", registry=self._registry)
        self._cells: dict[tuple[str, str, Outcome], Any] = {}
        self._counts: dict[tuple[str, str], dict[Outcome, int]] = {}
        self._latest: dict[tuple[str, str], deque[float]] = {}

    def ended(self, model: str, application: str, outcome: Outcome) -> None:
        """A request is over."""
        key = model, application, outcome
        counter = self._cells.get(key)
        if counter is None:  # to look labels up takes longer than to count
            counter = self._cells[key] = self._requests.labels(model, application, str(outcome))
        counter.inc()
        counts = self._counts.setdefault((model, application), dict.fromkeys(Outcome, 0))
        counts[outcome] += 1

    def answered(self, model: str, application: str, seconds: float, in_time: bool) -> None:
        """A request was answered, ``seconds`` after it came."""
        self.ended(model, application, Outcome.ON_TIME if in_time else Outcome.LATE)
        self._latency.labels(model, application).observe(seconds)
        self._latest.setdefault((model, application), deque(maxlen=_LATEST)).append(seconds)

    def batch(self, model: str, size: int) -> None:
        """A batch had so many requests."""
        self._batch.labels(model).observe(size)

    def applications(self) -> list[dict[str, Any]]:
        """For the status: counts since the start, latencies of the last answers."""
        found = []
        for (model, application), counts in sorted(self._counts.items()):
            total = sum(counts.values())
            latest = self._latest.get((model, application))
            found.append({
                "model": model, "application": application, "requests": total,
                "finish_rate": counts[Outcome.ON_TIME] / total, **{str(o): n for o, n in counts.items()},
                "latency_p50_ms": float(np.percentile(latest, 50)) * 1e3 if latest else None,
                "latency_p99_ms": float(np.percentile(latest, 99)) * 1e3 if latest else None,
            })  # fmt: skip
        return found

    def text(self, queued: int) -> bytes:
        """For Prometheus."""
        self._queued.set(queued)
        return generate_latest(self._registry)
