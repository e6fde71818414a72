"""What Orloj is compared with, on the same seam. None but EDF and the largest feasible batch tells applications apart.

Clipper-, Nexus- and Clockwork-like are simplified to one model and one queue, after their papers; Clockwork's rules and
constants are those of its published code (docs/serving.md).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from heapq import heappop, heappush, nsmallest

from slurm_hadar.serving.scheduling.distribution import Distribution, longest_of
from slurm_hadar.serving.scheduling.learning import Knowledge
from slurm_hadar.serving.scheduling.policy import Policy, Proposal, Setup
from slurm_hadar.serving.scheduling.request import Request

__all__ = ["Clipper", "Clockwork", "Edf", "LargestFeasible", "Nexus"]


class Edf(Policy):
    """The earliest deadline first, alone. Who cannot be in time even by the shortest run known is given up, as under
    Orloj."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.knowledge = Knowledge(setup.profile, setup.slo_s)
        self._order: list[tuple[float, int]] = []

    def enqueue(self, request: Request, now_s: float) -> None:
        self.knowledge.arrived(request.application)
        heappush(self._order, (request.deadline_s, request.number))

    def run_times(self, application: str) -> Distribution:
        return self.knowledge.of(application)

    def latest_start_s(self, request: Request) -> float:
        return self.last_chance_s(request)

    def observe(self, requests: Sequence[Request], seconds: float, now_s: float) -> None:
        if len({request.application for request in requests}) == 1:
            alone_s = seconds / self.setup.law.factors[len(requests)]
            self.knowledge.observe(requests[0].application, alone_s, len(requests), now_s)

    def refresh_due(self, now_s: float) -> bool:
        return self.knowledge.changed >= 50

    def refresh(self, now_s: float) -> None:
        self.knowledge.refresh()

    def propose(self, now_s: float, speed: float) -> Proposal | None:
        first = self._first()
        if first is None:
            return None
        return Proposal([first], self.knowledge.of(first.application).mean_s / speed, -first.deadline_s)

    def _first(self) -> Request | None:
        while self._order:
            request = self.queued.get(self._order[0][1])
            if request is not None:
                return request
            heappop(self._order)
        return None


class LargestFeasible(Edf):
    """By deadline, as many as are expected to end by the earliest one of them: what most dynamic batching does."""

    def propose(self, now_s: float, speed: float) -> Proposal | None:
        best = super().propose(now_s, speed)
        if best is None:
            return None
        factors = self.setup.law.factors
        taken = [self.queued[n] for _, n in nsmallest(len(factors) - 1, self._waiting())]
        for size in reversed(self.setup.law.sizes()):
            if size > len(taken):
                continue
            counts = Counter(request.application for request in taken[:size])
            longest = longest_of([(self.knowledge.of(a), n) for a, n in counts.items()])
            expected_s = longest.mean_s * factors[size] / speed
            if now_s + expected_s <= taken[0].deadline_s:
                return Proposal(taken[:size], expected_s, -taken[0].deadline_s)
        return best

    def _waiting(self) -> list[tuple[float, int]]:
        self._order = [entry for entry in self._order if entry[1] in self.queued]
        self._order.sort()  # a sorted list is a heap
        return self._order


class _Fifo(Policy):
    """In the order of arrival."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        seconds = [s for of in setup.profile.values() for s in of]
        #: what is known of single runs, of all applications alike
        self._singles: deque[float] = deque(seconds, maxlen=1000)
        self._order: deque[int] = deque()

    def enqueue(self, request: Request, now_s: float) -> None:
        self._order.append(request.number)

    def _oldest(self, count: int) -> list[Request]:
        while self._order and self._order[0] not in self.queued:
            self._order.popleft()
        found = []
        for number in self._order:
            if number in self.queued:
                found.append(self.queued[number])
                if len(found) == count:
                    break
        return found

    def _single_s(self) -> float:
        return sum(self._singles) / len(self._singles) if self._singles else self.setup.slo_s / 2


class Clipper(_Fifo):
    """The largest batch grows by one while batches keep to the SLO, and shrinks to 9/10 when one does not."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._most = 1.0

    def observe(self, requests: Sequence[Request], seconds: float, now_s: float) -> None:
        if seconds > self.setup.slo_s:
            self._most = max(1.0, 0.9 * self._most)
        elif len(requests) >= int(self._most):
            self._most = min(self._most + 1.0, float(self.setup.law.largest))

    def propose(self, now_s: float, speed: float) -> Proposal | None:
        taken = self._oldest(int(self._most))
        if not taken:
            return None
        expected_s = self._single_s() * self.setup.law.factors[len(taken)] / speed
        return Proposal(taken, expected_s, -taken[0].deadline_s)


class Nexus(_Fifo):
    """Batches of the size of which two fit into the SLO by the mean run time; the oldest that would be late with all
    those behind them, on the fastest worker that there is, are given up (early drop)."""

    def observe(self, requests: Sequence[Request], seconds: float, now_s: float) -> None:
        self._singles.append(seconds / self.setup.law.factors[len(requests)])

    def propose(self, now_s: float, speed: float) -> Proposal | None:
        single_s, factors = self._single_s() / speed, self.setup.law.factors
        # before a run is known, and where requests are due when they come, there is nothing to go by
        allowed = bisect_left(factors, self.setup.slo_s / (2 * single_s), lo=2) - 1 if single_s else 1
        waiting = [self.queued[n] for n in self._order if n in self.queued]
        for place, request in enumerate(waiting):
            size = min(allowed, len(waiting) - place)
            expected_s = single_s * factors[size]
            if now_s + expected_s <= request.deadline_s:
                return Proposal(waiting[place : place + size], expected_s, -request.deadline_s)
            if now_s + expected_s * speed / self.speeds[0] > request.deadline_s:
                self.drop(request)
        return None

    def enqueue(self, request: Request, now_s: float) -> None:
        super().enqueue(request, now_s)
        if len(self._order) > 2 * len(self.queued) + 64:
            self._order = deque(n for n in self._order if n in self.queued)


class Clockwork(_Fifo):
    """What a batch of each size takes is the longest of its last 10 runs; the largest size is taken for which there are
    enough requests that would be in time, with 5 ms to spare. Who would not on the fastest worker is left out."""

    _SPARE_S = 0.005
    _RUNS = 10

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        law = setup.law
        longest_s = max(list(self._singles)[-self._RUNS :], default=0.0)
        self._runs = {k: deque([longest_s * law.factors[k]], maxlen=self._RUNS) for k in law.sizes()}
        self._queues: dict[int, deque[Request]] = {k: deque() for k in law.sizes()}

    def enqueue(self, request: Request, now_s: float) -> None:
        for queue in self._queues.values():
            queue.append(request)

    def observe(self, requests: Sequence[Request], seconds: float, now_s: float) -> None:
        self._runs[len(requests)].append(seconds)

    def propose(self, now_s: float, speed: float) -> Proposal | None:
        for size in sorted(self._queues, reverse=True):
            expected_s = max(self._runs[size]) / speed
            soonest_s = max(self._runs[size]) / self.speeds[0]
            ready = self._in_time(size, now_s + expected_s + self._SPARE_S, now_s + soonest_s + self._SPARE_S)
            if len(ready) == size:
                return Proposal(ready, expected_s, soonest_s - ready[0].deadline_s)
        return None

    def _in_time(self, size: int, end_s: float, soonest_s: float) -> list[Request]:
        """The oldest of one size's queue that a batch which ends at ``end_s`` serves in time; heads that the fastest
        worker would end too late leave this queue."""
        queue = self._queues[size]
        while queue and (queue[0].number not in self.queued or queue[0].deadline_s < soonest_s):
            late = queue.popleft()
            if size == 1:
                self.drop(late)
        found = []
        for request in queue:
            if request.number in self.queued and request.deadline_s >= end_s:
                found.append(request)
                if len(found) == size:
                    break
        return found
