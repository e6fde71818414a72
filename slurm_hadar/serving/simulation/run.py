"""Play a trace under a scheduler: the very code that decides in the server."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.policy import Setup
from slurm_hadar.serving.scheduling.registry import Name, scheduler
from slurm_hadar.serving.scheduling.request import Batch, Request, Worker
from slurm_hadar.serving.scheduling.scheduler import Scheduler
from slurm_hadar.serving.simulation.result import PlayedBatch, ServeResult
from slurm_hadar.serving.trace import TracedRequest

__all__ = ["ServeOptions", "play", "setup_of", "simulate"]


@dataclass(frozen=True)
class ServeOptions:
    """``speeds``: a worker of each. ``profiled``: of each application's first requests, so many run times are known
    beforehand, as from an offline profile."""

    law: BatchLaw
    speeds: tuple[float, ...] = (1.0,)
    profiled: int = 50


def simulate(
    trace: Sequence[TracedRequest],
    name: Name,
    options: ServeOptions,
    watch: Callable[[Scheduler, float], None] | None = None,
) -> ServeResult:
    """Requests by arrival, each with its deadline. A batch of k takes f(k) times its longest request's time, over the
    worker's speed. ``watch`` is called before each decision."""
    return play(trace, scheduler(name, {"": setup_of(trace, options)}), options.speeds, str(name), watch)


def setup_of(trace: Sequence[TracedRequest], options: ServeOptions) -> Setup:
    """What a scheduler is told beforehand of the one model of such a trace."""
    slo_s = statistics.median(r.deadline_s - r.arrival_s for r in trace)
    return Setup(options.law, slo_s, _profile(trace, options.profiled))


def play(
    trace: Sequence[TracedRequest],
    scheduled: Scheduler,
    speeds: Sequence[float],
    name: str = "",
    watch: Callable[[Scheduler, float], None] | None = None,
) -> ServeResult:
    """The same for several models, and for any policies; ``name`` is the result's."""
    return _Play(trace, scheduled, speeds, name, watch).play()


def _profile(trace: Sequence[TracedRequest], count: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for request in trace:
        known = found.setdefault(request.application, [])
        if len(known) < count:
            known.append(request.exec_s)
    return {name: known for name, known in found.items() if known}


class _Play:
    def __init__(
        self, trace: Sequence[TracedRequest], scheduled: Scheduler, speeds: Sequence[float], name: str,
        watch: Callable[[Scheduler, float], None] | None,
    ) -> None:  # fmt: skip
        self._scheduler, self._watch = scheduled, watch
        self._laws = {model: policy.setup.law for model, policy in scheduled.policies.items()}
        self._trace = trace
        ordered = sorted(speeds, reverse=True)
        self._idle = {Worker(str(n), speed): None for n, speed in enumerate(ordered)}
        scheduled.equip(self._idle)
        self._running: list[tuple[float, int, Batch, float]] = []
        self._result = ServeResult(name, trace, np.full(len(trace), np.nan))

    def play(self) -> ServeResult:
        come = 0
        trace, running, scheduled = self._trace, self._running, self._scheduler
        while come < len(trace) or running:
            now_s = min(
                trace[come].arrival_s if come < len(trace) else float("inf"),
                running[0][0] if running else float("inf"),
            )
            while running and running[0][0] <= now_s:
                self._end(now_s)
            while come < len(trace) and trace[come].arrival_s <= now_s:
                r = trace[come]
                scheduled.arrive(Request(come, r.application, r.arrival_s, r.deadline_s, r.model), now_s)
                come += 1
            scheduled.expire(now_s)
            scheduled.refresh(now_s)
            while self._idle and scheduled.queued and self._start(now_s):
                pass
        return self._result

    def _start(self, now_s: float) -> bool:
        if self._watch is not None:
            self._watch(self._scheduler, now_s)
        began = time.thread_time_ns()
        batch = self._scheduler.choose(now_s, self._idle)
        self._result.decide_us.append((time.thread_time_ns() - began) / 1e3)
        if batch is None:
            return False
        del self._idle[batch.worker]
        longest_s = max(self._trace[r.number].exec_s for r in batch.requests)
        took_s = longest_s * self._laws[batch.model].factors[len(batch.requests)] / batch.worker.speed
        heappush(self._running, (now_s + took_s, len(self._result.batches), batch, took_s))
        numbers = tuple(r.number for r in batch.requests)
        self._result.batches.append(PlayedBatch(batch.worker.name, now_s, now_s + took_s, numbers))
        return True

    def _end(self, now_s: float) -> None:
        end_s, _, batch, took_s = heappop(self._running)
        self._idle[batch.worker] = None
        self._result.ends_s[[r.number for r in batch.requests]] = end_s
        self._scheduler.ended(batch, took_s, now_s)
