"""Whose iteration is next in a lane, and who is let in: the policies, as pure functions.

Within a lane iterations are serialised; at each boundary the member with the least :func:`rank` has the next turn, and
is charged for it (:func:`stride`). Rules after Salus (MLSys 2020, sections 4 and 5.1, and its released
executionengine.cpp); where it leaves something open, or ours differs, the policy says so.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["STEADY", "EqualShareClock", "Policy", "Standing", "rank", "stride"]

#: Strides are whole numbers: a weight of 7 costs a third of a thousandth part of a nanosecond by rounding.
_FINE = 1000


class Policy(StrEnum):
    """How the jobs on a GPU take turns.

    ``FIFO``: one job after the other has the GPU as a whole, in order of arrival: a GPU that is not shared.
    ``SRTF``: the job with the least (declared total - used) time; preemptive at boundaries.
    ``FSP``: ours, not Salus': jobs in the order in which they would end if all had equal shares of the GPU from their
    arrival on (Fair Sojourn Protocol; Friedman and Henderson, SIGMETRICS 2003). On one machine without limits of
    memory no job ends later than under equal shares.
    ``FAIR``: the least used time, so that all in the lane get equal shares. Salus' abstract of 2018 sets all to 0 when
    a job joins; here who joins begins with the least of those present, which gives the same shares and starves nobody
    where jobs join faster than iterations end.
    ``RR``: the fewest iterations, counted as for ``FAIR``.
    ``PACK``: a lane for each job, as many beside each other as the memory allows; no fairness.
    ``PRIORITY``: classes of jobs have shares of the GPU's time, in proportion to their weights; equal shares within a
    class. What a class without jobs leaves goes to the others in proportion. Salus has strict priorities instead.
    """

    FIFO = "fifo"
    SRTF = "srtf"
    FSP = "fsp"
    FAIR = "fair"
    RR = "rr"
    PACK = "pack"
    PRIORITY = "priority"


#: Who is next depends on nothing that a turn changes: whoever has the turn keeps it until somebody comes or goes.
STEADY = frozenset({Policy.FIFO, Policy.SRTF, Policy.FSP, Policy.PACK})


@dataclass(slots=True)
class Standing:
    """What is known of a session where turns are decided.

    ``order`` is that of arrival; ``left_ns`` the declared total less the used time; ``tag`` where it ends under equal
    shares (:class:`EqualShareClock`); ``passed`` what it was charged (:func:`stride`); ``weight`` that of its class.
    """

    order: int
    left_ns: int = 0
    tag: int = 0
    passed: int = 0
    group: str = ""
    weight: int = 1


def rank(policy: Policy, standing: Standing) -> tuple[int, int]:
    """The least has the next turn in its lane; of equals the oldest."""
    match policy:
        case Policy.FIFO | Policy.PACK:
            return 0, standing.order
        case Policy.SRTF:
            return standing.left_ns, standing.order
        case Policy.FSP:
            return standing.tag, standing.order
        case Policy.FAIR | Policy.RR | Policy.PRIORITY:
            return standing.passed, standing.order


def stride(policy: Policy, iteration_ns: int, standing: Standing, in_group: int) -> int:
    """What one iteration adds to ``passed``. ``in_group`` is the number of sessions of its class in the lane."""
    match policy:
        case Policy.FAIR:
            return iteration_ns
        case Policy.RR:
            return 1
        case Policy.PRIORITY:
            return max(1, iteration_ns * in_group * _FINE // standing.weight)
        case Policy.FIFO | Policy.PACK | Policy.SRTF | Policy.FSP:
            return 0


class EqualShareClock:
    """Where jobs would end if all had equal shares from their arrival on: the virtual time of generalised processor
    sharing (Parekh and Gallager, 1993). Times are whole nanoseconds; rounding is below one for each arrival."""

    def __init__(self) -> None:
        self._virtual = 0
        self._now = 0
        self._tags: list[int] = []  # a heap, of jobs that would still be there

    def arrive(self, now_ns: int, total_ns: int) -> int:
        """The tag of a job of ``total_ns`` that arrives; tags are ordered as the ends would be."""
        passed, self._now = now_ns - self._now, now_ns
        while self._tags and (until := (self._tags[0] - self._virtual) * len(self._tags)) <= passed:
            passed -= until
            self._virtual = heapq.heappop(self._tags)
        if self._tags:
            self._virtual += passed // len(self._tags)
        tag = self._virtual + total_ns
        heapq.heappush(self._tags, tag)
        return tag
