"""What is scheduled: requests with deadlines, workers, batches. Times are seconds on one clock that never goes back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

__all__ = ["MISS", "Batch", "Refused", "Refusal", "Request", "Step", "Worker"]


class Step(NamedTuple):
    """From ``after_s`` behind the deadline on, an answer costs ``cost`` more."""

    after_s: float
    cost: float


#: One step at the deadline: a late answer is worth nothing.
MISS = (Step(0.0, 1.0),)


@dataclass(frozen=True, slots=True)
class Request:
    """One inference. ``number`` tells it from all others; ``application`` is the tag under which requests share a
    distribution of run times; ``steps`` is what it costs to be late, by offset."""

    number: int
    application: str
    arrival_s: float
    deadline_s: float
    model: str = ""
    steps: tuple[Step, ...] = MISS

    @property
    def last_s(self) -> float:
        """After this an answer is worth nothing."""
        return self.deadline_s + self.steps[-1].after_s


@dataclass(frozen=True, slots=True)
class Worker:
    """What runs one batch at a time, in 1/``speed`` times what it takes on the worker whose run times are known.
    ``models`` are those that it holds; empty: all."""

    name: str
    speed: float = 1.0
    models: frozenset[str] = frozenset()

    def holds(self, model: str) -> bool:
        """Whether it can run the model."""
        return not self.models or model in self.models


@dataclass(frozen=True, slots=True)
class Batch:
    """Requests of one model that run together, and what the scheduler expects of it: seconds on this worker."""

    model: str
    requests: Sequence[Request]
    worker: Worker
    expected_s: float


class Refusal(StrEnum):
    """Why a request was given up."""

    HOPELESS = "the deadline cannot be met any more"
    TOO_LATE = "the deadline has passed"


class Refused(NamedTuple):
    """A request that will not be run."""

    request: Request
    why: Refusal

    @classmethod
    def at(cls, request: Request, now_s: float) -> Refused:
        """One that cannot be met any more at this moment."""
        return cls(request, Refusal.TOO_LATE if request.last_s < now_s else Refusal.HOPELESS)
