"""Requests in the order of their waiting-cost scores, which changes at milestones only."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from slurm_hadar.serving.scheduling.request import Request
from slurm_hadar.serving.scheduling.score import ScoreTable

__all__ = ["ScoreHeap"]

_SPARE = 64  # departed entries that are always tolerated
_NEVER = float("inf")
_Entry = tuple[float, int, Request, ScoreTable, float]  # numbers are unique: what stands behind them is never compared


class ScoreHeap:
    """A heap by alpha, O(log N) an event.

    A milestone only lowers alpha, so what is stored bounds it from above, and a request's milestones are looked at when
    it comes to the top: then it is put where it belongs now. This replaces the second heap, of milestones, that the
    reconstruction names: what has passed a milestone deep in the queue costs nothing.

    Parameters
    ----------
    queued: all requests that wait, by number; kept by the owner. Others are dropped when they come up.
    table_of: a request's scores for a rate b, which is one for all.
    """

    __slots__ = ("_entries", "_front", "_queued", "_rate", "_table_of")

    def __init__(
        self, queued: Mapping[int, Request], table_of: Callable[[Request, float], ScoreTable], rate: float, now_s: float
    ) -> None:
        self._queued, self._table_of, self._rate = queued, table_of, rate
        self._front: list[_Entry] = []  # ascending; none of the heap is below: who was best before is best mostly again
        self._entries: list[_Entry] = [self._entry(request, now_s) for request in queued.values()]
        heapify(self._entries)

    def push(self, request: Request, now_s: float) -> None:
        """Who has just come to ``queued``."""
        entry = self._entry(request, now_s)
        if self._front and entry < self._front[-1]:
            insort(self._front, entry)
            if len(self._front) <= _SPARE:
                return
            for entry in self._front:  # nobody has asked for long: the front is to stay short
                heappush(self._entries, entry)
            self._front = []
        else:
            heappush(self._entries, entry)
        if len(self._entries) > 2 * len(self._queued) + _SPARE:
            self._entries = [e for e in self._entries if e[1] in self._queued]
            heapify(self._entries)

    def best(self, count: int, now_s: float) -> list[Request]:
        """At most so many of the highest scores, best first; they stay. Who can no longer be in time is forgotten."""
        front = self._still_first(count, now_s)
        entries, queued = self._entries, self._queued
        while entries and (len(front) < count or entries[0] < front[-1]):
            _, number, request, table, milestone_s = entries[0]
            if number not in queued:
                heappop(entries)
            elif request.deadline_s - now_s < milestone_s:
                entry = self._entry(request, now_s, table)
                if entry[0] == _NEVER:
                    heappop(entries)
                else:
                    heapreplace(entries, entry)
            elif len(front) < count:
                insort(front, heappop(entries))
            else:
                insort(front, heapreplace(entries, front.pop()))
        self._front = front
        return [entry[2] for entry in front]

    def _still_first(self, count: int, now_s: float) -> list[_Entry]:
        """Those of the front who have passed no milestone; the others go back to the heap."""
        entries, queued = self._entries, self._queued
        front: list[_Entry] = []
        for entry in self._front:
            _, number, request, table, milestone_s = entry
            if number not in queued:
                continue
            if request.deadline_s - now_s < milestone_s:  # others may be before it now
                entry = self._entry(request, now_s, table)
                if entry[0] != _NEVER:
                    heappush(entries, entry)
            elif len(front) < count:
                front.append(entry)
            else:
                heappush(entries, entry)
        return front

    def _entry(self, request: Request, now_s: float, table: ScoreTable | None = None) -> _Entry:
        """By -log alpha, which holds until the slack falls below the milestone that stands last."""
        table = table or self._table_of(request, self._rate)
        deadline_s = request.deadline_s
        place = bisect_right(table.slacks_s, deadline_s - now_s)
        key = self._rate * deadline_s - table.log_k_by_slack[place]
        return key, request.number, request, table, table.slacks_s[place - 1] if place else _NEVER
