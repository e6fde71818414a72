"""The seam behind which Orloj and its peers stand: who of one model's queue runs next, together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from slurm_hadar.serving.scheduling.distribution import Distribution
from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.request import Refusal, Refused, Request

__all__ = ["Policy", "Proposal", "Setup"]

_SPARE = 64  # entries of who has left that are always tolerated


@dataclass(frozen=True)
class Setup:
    """What is known beforehand of one model.

    Parameters
    ----------
    law: how batches grow; with it the largest batch.
    profile: seconds of single runs by application, on a worker of speed 1.
    slo_s: the usual span from arrival to deadline, which some peers aim at.
    """

    law: BatchLaw
    slo_s: float
    profile: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A batch that a policy would start; of several models' the one of the highest ``value`` is started."""

    requests: Sequence[Request]
    expected_s: float
    value: float


class Policy(ABC):
    """One model's queue. All times come from the caller, whose clock never goes back.

    Who subclasses it keeps orders of its own over ``queued``, and drops what is no longer in there when it comes up.
    """

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.queued: dict[int, Request] = {}
        self.speeds: tuple[float, ...] = (1.0,)  # of the workers that there are, fastest first
        self._ends: list[tuple[float, int]] = []  # when each is to be looked at again, whether it still can be met
        self._dropped: list[Refused] = []

    @abstractmethod
    def propose(self, now_s: float, speed: float) -> Proposal | None:
        """What an idle worker of this speed should run now; None for nothing. Nobody leaves the queue by it."""

    @abstractmethod
    def enqueue(self, request: Request, now_s: float) -> None:
        """A request has come; it is in ``queued``."""

    def observe(self, requests: Sequence[Request], seconds: float, now_s: float) -> None:
        """A batch has taken so long on a worker of speed 1 (what it took, times the worker's speed)."""

    def run_times(self, application: str) -> Distribution:
        """What is known of an application's; of one that was never seen: of all."""
        seconds = self.setup.profile.get(application) or [s for of in self.setup.profile.values() for s in of]
        return Distribution(seconds or [self.setup.slo_s])

    def equip(self, speeds: Collection[float]) -> None:
        """There are workers of these speeds now; of one at least."""
        self.speeds = tuple(sorted(set(speeds), reverse=True))
        self._ends = sorted((self.latest_start_s(r), number) for number, r in self.queued.items())

    def latest_start_s(self, request: Request) -> float:
        """After this the request is given up."""
        return request.last_s

    def last_chance_s(self, request: Request) -> float:
        """When the shortest run known of its application would just end in time, on the fastest worker."""
        return request.last_s - self.run_times(request.application).times_s[0] / self.speeds[0]

    def refresh_due(self, now_s: float) -> bool:
        """Whether :meth:`refresh` has something to do."""
        return False

    def refresh(self, now_s: float) -> None:
        """Work in what was observed. May take milliseconds: to be called when nobody waits for a decision."""

    def arrive(self, request: Request, now_s: float) -> None:
        """``number`` must be one that was never used before: whoever comes a second time takes a new one."""
        self.queued[request.number] = request
        if len(self._ends) > 2 * len(self.queued) + _SPARE:  # most have left long before their deadlines
            self._ends = sorted(end for end in self._ends if end[1] in self.queued)
        heappush(self._ends, (self.latest_start_s(request), request.number))
        self.enqueue(request, now_s)

    def withdraw(self, number: int) -> bool:
        """Whoever asked has gone, or the request is started. Whether it was still queued."""
        request = self.queued.pop(number, None)
        if request is not None:
            self.departed(request)
        return request is not None

    def start(self, request: Request) -> None:
        """The request runs, also if it was dropped meanwhile, as a batch for another worker was looked for."""
        if not self.withdraw(request.number):
            self._dropped = [refused for refused in self._dropped if refused.request is not request]

    def departed(self, request: Request) -> None:
        """Somebody has left ``queued``, for whatever reason."""

    def expire(self, now_s: float) -> list[Refused]:
        """Take those out that cannot be met any more, and those that the policy has dropped; each is told of once."""
        found, self._dropped = self._dropped, []
        while self._ends and self._ends[0][0] < now_s:
            request = self.queued.get(heappop(self._ends)[1])
            if request is None:
                continue
            latest_s = self.latest_start_s(request)
            if latest_s >= now_s:
                heappush(self._ends, (latest_s, request.number))
                continue
            self.withdraw(request.number)
            found.append(Refused.at(request, now_s))
        return found

    def next_expiry_s(self) -> float:
        """When :meth:`expire` should be called next, minus infinity for now; infinity for never."""
        if self._dropped:
            return float("-inf")
        return self._ends[0][0] if self.queued else float("inf")

    def drop(self, request: Request) -> None:
        """For policies that give up requests while they look for a batch."""
        if self.withdraw(request.number):
            self._dropped.append(Refused(request, Refusal.HOPELESS))
