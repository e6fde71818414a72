"""A virtual machine that serves one job at a time, shortest remaining work first: the order that A-SRPT follows.

A cluster of G GPUs is looked at as one machine of speed 1 that could give all of itself to any job. On one machine,
serving whoever has least work left, and stopping it for newcomers with less, is optimal for the sum of completion times
(Schrage 1968); so the times at which jobs end there bound what any schedule of the cluster reaches, and their order
guides the real one ("Prediction-Assisted Online Distributed Deep Learning Workload Scheduling in GPU Clusters",
INFOCOM 2025; details that its abstract leaves open are our definition).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Arrival", "VirtualMachine"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job as the machine sees it: ``size_s`` is its predicted work, in seconds of the whole machine."""

    time: float
    job_id: str
    size_s: float


@dataclass
class VirtualMachine:
    """Jobs that are not done yet with the work they have left, and when the others were done.

    ``left_s[job]``: seconds of work left, in no order; ``order[job]``: arrival, which decides between equals;
    ``done_at[job]``: when the machine ended it (UTC epoch seconds).
    """

    time: float
    left_s: dict[str, float] = field(default_factory=dict)
    order: dict[str, float] = field(default_factory=dict)
    done_at: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, memory: Mapping[str, Any], start: float) -> VirtualMachine:
        """The machine as :meth:`memory` wrote it down; a new one at ``start`` if there is nothing."""
        if not memory:
            return cls(start)
        left = {job: (float(left_s), float(order)) for job, (left_s, order) in memory["left"].items()}
        return cls(
            float(memory["time"]),
            {job: left_s for job, (left_s, _) in left.items()},
            {job: order for job, (_, order) in left.items()},
            {job: float(at) for job, at in memory["done"].items()},
        )

    def memory(self) -> dict[str, Any]:
        """The machine in values that JSON can write."""
        left = {job: [left_s, self.order[job]] for job, left_s in sorted(self.left_s.items())}
        return {"time": self.time, "left": left, "done": dict(sorted(self.done_at.items()))}

    def knows(self, job_id: str) -> bool:
        """Whether the job is under way here, or done."""
        return job_id in self.left_s or job_id in self.done_at

    def forget(self, gone: Iterable[str]) -> None:
        """Drop jobs that have left the queue: nobody will ask for them any more."""
        for job_id in gone:
            self.left_s.pop(job_id, None)
            self.order.pop(job_id, None)
            self.done_at.pop(job_id, None)

    def advance(self, arrivals: Iterable[Arrival], now: float) -> None:
        """Serve until ``now``. ``arrivals`` are new jobs; one whose time has passed already comes at once.

        O((jobs + arrivals) log jobs).
        """
        waiting = [(left_s, self.order[job], job) for job, left_s in self.left_s.items()]
        heapq.heapify(waiting)
        for arrival in sorted(arrivals, key=lambda a: (a.time, a.job_id)):
            at = min(max(arrival.time, self.time), now)
            self._serve(waiting, at)
            self.order[arrival.job_id] = arrival.time
            heapq.heappush(waiting, (max(arrival.size_s, 0.0), arrival.time, arrival.job_id))
        self._serve(waiting, now)
        self.left_s = {job: left_s for left_s, _, job in waiting}
        self.order = {job: order for _, order, job in waiting}

    def _serve(self, waiting: list[tuple[float, float, str]], until: float) -> None:
        """Work from the heap until then; what is begun and not done goes back with what it has left."""
        while waiting:
            left_s, order, job_id = heapq.heappop(waiting)
            if self.time + left_s > until:
                heapq.heappush(waiting, (left_s - max(0.0, until - self.time), order, job_id))
                break
            self.time += left_s
            self.done_at[job_id] = self.time
        self.time = max(self.time, until)

    def ends(self) -> dict[str, float]:
        """When each job is done if nobody else comes: those that are, and the others one after the other."""
        ends, at = dict(self.done_at), self.time
        for left_s, _, job_id in sorted((left_s, self.order[job], job) for job, left_s in self.left_s.items()):
            at += left_s
            ends[job_id] = at
        return ends
