"""Orloj, as we reconstruct it: requests by waiting cost, batches by expected on-time ends per second."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from heapq import heappush
from math import exp, log
from typing import NamedTuple

from slurm_hadar.serving.scheduling.distribution import Distribution
from slurm_hadar.serving.scheduling.heap import ScoreHeap
from slurm_hadar.serving.scheduling.latencies import Latencies, densest_batch
from slurm_hadar.serving.scheduling.learning import Knowledge
from slurm_hadar.serving.scheduling.policy import Policy, Proposal, Setup
from slurm_hadar.serving.scheduling.request import Refusal, Refused, Request, Step
from slurm_hadar.serving.scheduling.score import ScoreTable

__all__ = ["Orloj"]

WAITS = 10.0  # 1/b in mean run times: how far the score looks ahead
_SCORE_ATOMS = 16  # of the distributions that scores are computed from: each is a milestone
_PROBE_S = 10.0  # after so long without an observation, or a try, a request is tried although it looks hopeless,
_PROBE_SHARE = 0.01  # and while others are served no more often than takes so much of a worker's time;
_RARELY = 64  # times as rarely where tries show again and again that it is
_NEWS = 0.8  # of the shortest known; or the longest known of it: a run that lies beyond is worked in at once
_CERTAIN = 6  # observations of which a change is found out, where a batch of several applications hints at one
_DUE = 20  # observations after which distributions are worked out anew,
_REST_S = 0.25  # and how often at most, if there is no news: it takes milliseconds, others' runs may take less
_MANY = 32  # applications for which one more of what is news is waited for: to work it in looks at all of them
_LESS = 1 - 1e-9  # of a value: above that it is as much
_SURE = 1e-3  # a batch of which less is expected to be late is in time
_LEAST = 1e-6  # who would be late that unlikely by waiting is as urgent as one to whom it never happens
_LEISURE = log(_LEAST)
_AHEAD = 48  # requests times applications: where more wait the densest is first, and is found in time


class _Batch(NamedTuple):
    """A batch that may be started."""

    requests: Sequence[Request]
    counts: Mapping[str, int]
    expected_s: float


class _Tried(NamedTuple):
    """The last request of an application that was tried although it looked hopeless; from when on, and after how many
    times as long as usual, another one is."""

    number: int
    again_s: float
    times: int


class Orloj(Policy):
    """Our reconstruction, in which one order serves all batch sizes: by the score of a request
    that runs alone, of those that a batch of the size could serve in time (no worse than an order for each size by
    simulation, and a fifth of the work). docs/serving.md says what is whose."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.knowledge = Knowledge(setup.profile, setup.slo_s)
        self._sizes = setup.law.sizes()
        self._most_cost = 1.0
        self._present: Counter[str] = Counter()
        self._news = 0  # observations that should not wait until so many have come
        self._probes: dict[str, Request] = {}  # by application
        self._tried: dict[str, _Tried] = {}
        self._doubted: Counter[str] = Counter()  # how often applications are to be observed
        self._begin_s = float("inf")
        self._refreshed_s = 0.0
        self._latencies = Latencies(self.knowledge, setup.law, ())
        self._heaps: dict[float, ScoreHeap] = {}  # by the speed of a worker
        self.refresh(0.0)

    def enqueue(self, request: Request, now_s: float) -> None:
        application = request.application
        self._begin_s = min(self._begin_s, now_s)
        self.knowledge.arrived(application)
        self._most_cost = max(self._most_cost, sum(step.cost for step in request.steps))
        self._present[application] += 1
        if application not in self._means:
            known = self.knowledge.of(application)
            self._means[application], self._shortest[application] = known.mean_s, known.times_s[0]
            self._strange.add(application)
        for heap in self._heaps.values():
            heap.push(request, now_s)

    def departed(self, request: Request) -> None:
        if self._probes.get(request.application) is request:
            del self._probes[request.application]
        self._present[request.application] -= 1
        if not self._present[request.application]:
            del self._present[request.application]

    def observe(self, requests: Sequence[Request], seconds: float, now_s: float) -> None:
        """A batch of one application tells of its longest; one of several tells too little of any, but whether what is
        known of them can still hold: in doubt each is to run by itself again."""
        alone_s = seconds / self.setup.law.factors[len(requests)]
        applications = {request.application for request in requests}
        known = [self.knowledge.of(application).times_s for application in applications]
        beyond = alone_s < _NEWS * max(of[0] for of in known) or max(of[-1] for of in known) < _NEWS * alone_s
        if len(applications) > 1:
            for application in applications:
                if beyond or self._long_unseen(application, now_s):
                    self._doubted[application] = max(_CERTAIN if beyond else 1, self._doubted[application])
            return
        application = applications.pop()
        self._doubted[application] = max(0, self._doubted[application] - 1)
        self._learn_of_try(application, requests, alone_s, now_s)
        self._news += beyond or not self.knowledge.familiar(application)
        self.knowledge.observe(application, alone_s, len(requests), now_s)

    def _long_unseen(self, application: str, now_s: float) -> bool:
        """Whether it was not observed for so long that to do so, of all alike, takes a hundredth of a worker's time."""
        each_s = len(self.knowledge.applications) * self.knowledge.of(application).mean_s / _PROBE_SHARE
        return now_s - max(self.knowledge.known_since(application), self._begin_s) > max(_PROBE_S, each_s)

    def refresh_due(self, now_s: float) -> bool:
        if self._news > len(self.knowledge.applications) // _MANY:
            return True
        return self.knowledge.changed >= _DUE and now_s >= self._refreshed_s + _REST_S

    def refresh(self, now_s: float) -> None:
        knowledge = self.knowledge
        knowledge.refresh()
        self._news, self._refreshed_s = 0, now_s
        applications = (*knowledge.applications, *self._present)
        self._means = {a: knowledge.of(a).mean_s for a in applications}
        self._shortest = {a: knowledge.of(a).times_s[0] for a in applications}
        self._strange = {a for a in applications if not knowledge.familiar(a)}
        former, self._latencies = self._latencies, Latencies(knowledge, self.setup.law, applications)
        self._latencies.foresee(former)
        self._heaps = {}
        self.equip(self.speeds)
        for speed in self.speeds:  # what the next decision needs is worked out now, and who comes goes into each heap
            self._heap(speed, now_s)
            self.propose(now_s, speed)

    def equip(self, speeds: Collection[float]) -> None:
        super().equip(speeds)
        self._heaps = {speed: heap for speed, heap in self._heaps.items() if speed in self.speeds}

    def _heap(self, speed: float, now_s: float) -> ScoreHeap:
        """All that wait, as a worker of this speed sees them: what is urgent for a slow one is past hope a little
        later, and may not be in the way of what it can still serve."""
        found = self._heaps.get(speed)
        if found is None:
            rate = speed / (WAITS * self.knowledge.overall.mean_s)
            found = self._heaps[speed] = ScoreHeap(self.queued, self._scores(speed), rate, now_s)
        return found

    def _scores(self, speed: float) -> Callable[[Request, float], ScoreTable]:
        tables: dict[tuple[str, tuple[Step, ...]], ScoreTable] = {}

        def table_of(request: Request, rate: float) -> ScoreTable:
            kind = request.application, request.steps
            table = tables.get(kind)
            if table is None:
                latency = self.knowledge.of(request.application).thinned(_SCORE_ATOMS).scaled(1.0 / speed)
                table = tables[kind] = ScoreTable(latency, rate, request.steps)
            return table

        return table_of

    def run_times(self, application: str) -> Distribution:
        return self.knowledge.of(application)

    def latest_start_s(self, request: Request) -> float:
        """A probe may run as long as its answer is worth anything."""
        if self._probes.get(request.application) is request:
            return request.last_s
        return self.last_chance_s(request)

    def expire(self, now_s: float) -> list[Refused]:
        """But for one of an application that was long not observed, or of which none that looked hopeless was long
        tried: its run times may have fallen, or be shorter than those few that are known, which nobody would learn if
        all such requests were given up."""
        found = []
        for refused in super().expire(now_s):
            request = refused.request
            application = request.application
            hopeless = refused.why is Refusal.HOPELESS and application not in self._probes
            if not hopeless or not self._may_probe(application, now_s):
                found.append(refused)
                continue
            times = self._tried[application].times if application in self._tried else 1
            self._tried[application] = _Tried(request.number, now_s + times * self._between_tries_s(application), times)
            self.queued[request.number] = self._probes[application] = request
            self._present[application] += 1
            heappush(self._ends, (request.last_s, request.number))
        return found

    def _between_tries_s(self, application: str) -> float:
        return max(_PROBE_S, self.knowledge.of(application).mean_s / _PROBE_SHARE)

    def _learn_of_try(self, application: str, requests: Sequence[Request], alone_s: float, now_s: float) -> None:
        """A try that showed nothing new makes the next one rarer."""
        tried = self._tried.get(application)
        if tried is not None and tried.number == requests[0].number:
            shown = alone_s < self.knowledge.of(application).times_s[0]
            times = 1 if shown else min(2 * tried.times, _RARELY)
            self._tried[application] = _Tried(-1, now_s + times * self._between_tries_s(application), times)

    def _may_probe(self, application: str, now_s: float) -> bool:
        """Whether it was not observed for long enough, or none was tried: those who come while a probe runs may be late
        by it."""
        tried = self._tried.get(application)
        if application in self._strange and len(self.queued) == len(self._probes):
            return True  # few runs tell little, and nobody waits who would be served instead
        if now_s >= (tried.again_s if tried else self._begin_s + self._between_tries_s(application)):
            return True
        unseen_s = now_s - max(self.knowledge.known_since(application), self._begin_s)
        if unseen_s < _PROBE_S:
            return False
        if unseen_s >= self.knowledge.of(application).mean_s / _PROBE_SHARE:
            return True
        others = (self.knowledge.known_since(a) for a in self.knowledge.applications if a != application)
        return max(others, default=float("-inf")) < now_s - _PROBE_S

    def propose(self, now_s: float, speed: float) -> Proposal | None:
        """The batch that is expected to save the most per expected second; where few wait, the one that goes before it
        if more of all end in time by that."""
        if not self.queued:
            return None
        listed = [
            (r, (r.last_s - now_s) * speed / self._shortest[r.application])
            for r in self._heap(speed, now_s).best(self._sizes[-1], now_s)
        ]
        best, value = self._densest(listed, now_s, speed)
        if best is None:
            return self._probe(speed)
        if 1 < len(self.queued) * len(self._present) <= _AHEAD:
            first = self._first(best, now_s, speed)
            if first is not best:
                best, value = first, self._value(first, now_s, speed)
        best = self._observable(best, speed)
        return Proposal(best.requests, best.expected_s, value)

    def _observable(self, batch: _Batch, speed: float) -> _Batch:
        """The batch, or of one of several applications the part of one in doubt, or whose run times are not known yet,
        as a batch of several would not tell them: of the one that has the most in it."""
        several = len(batch.counts) > 1
        doubted = [a for a in batch.counts if several and (self._doubted[a] or a in self._strange)]
        if not doubted:
            return batch
        application = max(doubted, key=batch.counts.__getitem__)
        counts = {application: batch.counts[application]}
        taken = [r for r in batch.requests if r.application == application]
        return _Batch(taken, counts, self._latencies.expected_s(counts, len(taken)) / speed)

    def _first(self, best: _Batch, now_s: float, speed: float) -> _Batch:
        """Of the densest batch and those of one application, in many sizes: after which the most are in time, if the
        densest ones follow. Not the densest only where that is more by the standard deviation of that number: where run
        times vary much, what is saved is not certain, and what a thinner batch takes of the worker is."""
        waiting: dict[str, list[Request]] = {}
        for r in sorted(self.queued.values(), key=lambda r: r.last_s):
            waiting.setdefault(r.application, []).append(r)
        dues = {a: [(r.last_s - now_s) * speed for r in of] for a, of in waiting.items()}
        numbers = {r.number for r in best.requests}
        rest = {
            a: [due for due, r in zip(dues[a], of, strict=True) if r.number not in numbers] for a, of in waiting.items()
        }
        found, (most, doubt) = best, self._in_time(rest, best, now_s, speed, 0.0)
        most += doubt**0.5 + _SURE
        alone = [(due, self._latencies.alone(a)[1][1]) for a, due in dues.items()]
        for a, of in waiting.items():
            due, (takes, within, _) = dues[a], self._latencies.alone(a)
            for size in [k for k in reversed(takes) if k <= len(due)]:
                if most >= len(self.queued):
                    return found
                first = bisect_left(due, within[size])
                last = first + size
                behind = bisect_left(due, takes[size] + within[1], first)
                possible = (
                    size - max(0, last - behind) + sum(len(d) - bisect_left(d, takes[size] + s) for d, s in alone)
                )
                if last <= len(due) and possible > most:
                    batch = _Batch(of[first:last], {a: size}, takes[size] / speed)
                    worth, _ = self._in_time({**dues, a: due[:first] + due[last:]}, batch, now_s, speed, most)
                    if worth > most:
                        found, most = batch, worth
        return found

    def _in_time(
        self, dues: Mapping[str, list[float]], first: _Batch, now_s: float, speed: float, sought: float
    ) -> tuple[float, float]:
        """How many of the first batch and of those that are due then, by application, if of the batches of one
        application whose requests are likely in time the densest goes next, again and again; and the variance. All in
        seconds from now, at speed 1. Where it cannot be more than ``sought`` it is less than that."""
        total, at_s = self._latencies.worth(first.requests, first.counts, now_s, speed), first.expected_s * speed
        doubt = total * max(0.0, 1.0 - total / len(first.requests))
        left = [(due.copy(), self.knowledge.of(a), *self._latencies.alone(a)) for a, due in dues.items()]
        while True:
            possible = total
            for due, _, _, within, _ in left:
                del due[: bisect_left(due, at_s + within[1])]
                possible += len(due)
            if possible <= max(sought, total):
                return total, doubt
            (due, known, takes, _, _), begin, size = densest_batch(left, at_s)
            times, cumulative, factor = known.times_s, known.cumulative, self.setup.law.factors[size]
            for due_s in due[begin : begin + size]:
                slack_s = (due_s - at_s) / factor
                if slack_s >= times[-1]:
                    total += 1.0
                else:
                    p = cumulative[bisect_right(times, slack_s)] ** size
                    total += p
                    doubt += p * (1.0 - p)
            del due[begin : begin + size]
            at_s += takes[size]

    def _densest(
        self, listed: Sequence[tuple[Request, float]], now_s: float, speed: float
    ) -> tuple[_Batch | None, float]:
        """Of the batches that can be formed of these, in the order of their scores, and what it is expected to save,
        per second; of equal ones the smaller. A run longer than any that is known makes a whole batch late: what is
        expected to be saved is weighed by :meth:`Latencies.sure`."""
        best, worth, least = None, 0.0, 0.0  # what is worth less than that is not taken
        urgencies = self._urgencies([r for r, _ in listed], now_s, speed)
        most = self._most_cost * max(urgencies.values(), default=0.0)
        factors, shortest_s = self.setup.law.factors, min(map(self._means.__getitem__, self._present))
        fastest = most * speed  # saved by a batch of which each request takes a second, per second
        for size in reversed(self._usable(len(listed))):
            if fastest * size < least * factors[size] * shortest_s:
                continue
            parts = self._parts(listed, factors[size], size)
            for longest_s, taken, counts in self._together(parts):
                if fastest * len(taken) < least * factors[len(taken)] * longest_s:
                    continue
                expected_s = self._latencies.expected_s(counts, len(taken)) / speed
                if len(taken) * most < least * expected_s:
                    continue
                saved = self._latencies.worth(taken, counts, now_s, speed, urgencies)
                value = saved * self._latencies.sure(counts) / expected_s
                if value > least and (best is None or value > worth or len(taken) < len(best.requests)):
                    best, worth, least = _Batch(taken, counts, expected_s), value, value * _LESS
        return best, worth

    def _together(self, parts: Mapping[str, list[Request]]) -> Iterator[tuple[float, list[Request], dict[str, int]]]:
        """The longest mean, the requests, and how many of each application: of the shortest application, of the two
        shortest, and so on, as short ones need not wait for long ones; and of one whose run times are not known yet
        alone."""
        taken: list[Request] = []
        counts: dict[str, int] = {}
        for application in sorted(parts, key=self._means.__getitem__) if len(parts) > 1 else parts:
            part = parts[application]
            if application in self._strange and taken:
                yield self._means[application], part, {application: len(part)}
            taken, counts = taken + part, {**counts, application: len(part)}
            yield self._means[application], taken, counts

    @staticmethod
    def _parts(listed: Sequence[tuple[Request, float]], least: float, size: int) -> dict[str, list[Request]]:
        """The first so many that a batch of this size could serve in time, by application."""
        parts: dict[str, list[Request]] = {}
        for request, factor in listed:
            if factor < least:
                continue
            if not size:
                break
            size -= 1
            part = parts.get(request.application)
            if part is None:
                parts[request.application] = [request]
            else:
                part.append(request)
        return parts

    def _probe(self, speed: float) -> Proposal | None:
        """When nothing that may succeed waits."""
        for request in self._probes.values():
            return Proposal([request], self._means[request.application] / speed, 0.0)
        return None

    def _usable(self, count: int) -> list[int]:
        """Sizes up to the one that takes so many."""
        return [k for k, before in zip(self._sizes, (0, *self._sizes), strict=False) if before < count]

    def _value(self, batch: _Batch, now_s: float, speed: float) -> float:
        """What it is expected to save, per second."""
        urgencies = self._urgencies(batch.requests, now_s, speed)
        return self._latencies.worth(batch.requests, batch.counts, now_s, speed, urgencies) / batch.expected_s

    def _urgencies(self, requests: Iterable[Request], now_s: float, speed: float) -> dict[int, float]:
        """By number: how likely each is late if it does not run now. It would wait for an exponential time, as in its
        score, here of the score's mean and all the work that waits: where much does, nobody's turn comes soon."""
        means = self._means
        waits_s = WAITS * self.knowledge.overall.mean_s + sum(n * means[a] for a, n in self._present.items())
        by_second = speed / waits_s
        found = {}
        for r in requests:
            x = means[r.application] / waits_s - (r.deadline_s - now_s) * by_second
            found[r.number] = 1.0 if x >= 0.0 else exp(x) if x > _LEISURE else _LEAST
        return found
