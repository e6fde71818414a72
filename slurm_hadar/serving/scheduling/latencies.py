"""What batches take, and what is expected of them, from the distributions of what their requests take alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slurm_hadar.serving.scheduling.distribution import Distribution
from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.learning import Knowledge
from slurm_hadar.serving.scheduling.request import Request

__all__ = ["Latencies", "densest_batch"]

_GRID = 128
_KEPT = 256  # batches whose times are worked out anew with them,
_MOST = 16 * _KEPT  # and how many are known: of many applications there are ever new ones
_LIKELY = 0.84  # a request is counted on where it is in time that likely: by one standard deviation
#: Of one application: when those that wait are due, its run times, and what :meth:`Latencies.alone` says.
Left = tuple[list[float], Distribution, dict[int, float], dict[int, float], list[int]]


class Latencies:
    """What batches take, by the applications of their requests, from a model's knowledge as of one refresh."""

    def __init__(self, knowledge: Knowledge, law: BatchLaw, applications: Sequence[str]) -> None:
        self._knowledge, self._factors = knowledge, law.factors
        known = [knowledge.of(a).times_s for a in (*applications, "")]
        times = np.unique(np.concatenate(known))
        some = times[np.linspace(0, len(times) - 1, _GRID).astype(int)]
        # with the longest of each: else what an application's batches take would reach to the next one's times
        self._grid = np.unique([*some, *(of[-1] for of in known)])
        self._steps = np.diff(self._grid)
        self._log_cdf: dict[str, Any] = {}
        for application in applications:  # so that no decision waits for it
            self._log_of(application)
        self._longest: dict[tuple[tuple[str, int], ...], float] = {}
        self._sizes = sorted({s for k in law.sizes() for s in (k, k + k // 2) if s <= law.largest})
        self._alone: dict[str, tuple[dict[int, float], dict[int, float], list[int]]] = {}

    def foresee(self, former: Latencies) -> None:
        """Work out at once what was asked for of late, so that no decision waits for it."""
        keys = list(former._longest)[-_KEPT:]
        # in an order that is the same in every process: sums depend on it, in their last digits
        names = {application: n for n, application in enumerate(dict.fromkeys(a for key in keys for a, _ in key))}
        if names:
            counts = np.zeros((len(keys), len(names)))
            for row, key in enumerate(keys):
                for application, n in key:
                    counts[row, names[application]] = n
            longest = self._longest_s(counts @ np.stack([self._log_of(application) for application in names]))
            self._longest = dict(zip(keys, longest.tolist(), strict=True))
        for application in former._alone:
            self.alone(application)

    def expected_s(self, counts: Mapping[str, int], size: int) -> float:
        """Of a batch of this size, with so many requests of each application."""
        key = tuple(counts.items())
        found = self._longest.get(key)
        if found is None:
            if len(self._longest) >= _MOST:
                self._longest = dict(list(self._longest.items())[-_KEPT:])
            log_cdf = sum(n * self._log_of(application) for application, n in key)
            found = self._longest[key] = float(self._longest_s(log_cdf))
        return found * self._factors[size]

    def _longest_s(self, log_cdf: Any) -> Any:
        """The mean, of logarithms of a distribution function on the grid, or of each row of such."""
        return self._grid[0] + (1.0 - np.exp(log_cdf[..., :-1])) @ self._steps

    def _log_of(self, application: str) -> Any:
        """Logarithms of its distribution function on the grid."""
        found = self._log_cdf.get(application)
        if found is None:
            reached = self._knowledge.of(application).cdf_at(self._grid)
            found = self._log_cdf[application] = np.log(np.maximum(reached, 1e-300))
        return found

    def alone(self, application: str) -> tuple[dict[int, float], dict[int, float], list[int]]:
        """Of one application, by size: what batches take, and likely do not exceed; and sizes, densest first."""
        found = self._alone.get(application)
        if found is None:
            known = self._knowledge.of(application)
            takes = {k: self.expected_s({application: k}, k) for k in self._sizes}
            within = {k: known.quantile(_LIKELY ** (1 / k)) * self._factors[k] for k in self._sizes}
            found = self._alone[application] = takes, within, sorted(takes, key=lambda k: takes[k] / k)
        return found

    def sure(self, counts: Mapping[str, int]) -> float:
        """How likely it is that none of so many requests of each application takes longer than all that were seen of
        it: the longest of n that are known and k to come is one of the n with probability n / (n + k). Our
        definition."""
        found = 1.0
        for application, count in counts.items():
            if known := self._knowledge.seen(application):
                found *= known / (known + count)
        return found

    def worth(
        self, requests: Sequence[Request], counts: Mapping[str, int], now_s: float, speed: float,
        urgencies: Mapping[int, float] | None = None,
    ) -> float:  # fmt: skip
        """What is expected to be saved by running them together now: for requests of the ordinary cost, how many end in
        time. The batch's time is as the product of its members' distributions says. ``urgencies``, by number: how
        likely each would be late otherwise; default: surely."""
        scale = speed / self._factors[len(requests)]
        parts, longest_s, total = [], 0.0, 0.0
        for application, count in counts.items():
            known = self._knowledge.of(application)
            parts.append((known.times_s, known.cumulative, count))
            longest_s = max(longest_s, known.times_s[-1])
        for request in requests:
            due_s = request.deadline_s - now_s
            urgency = 1.0 if urgencies is None else urgencies[request.number]
            for after_s, cost in request.steps:
                cost *= urgency
                slack_s = (due_s + after_s) * scale
                if slack_s >= longest_s:
                    total += cost
                    continue
                for times, cumulative, count in parts:
                    cost *= cumulative[bisect_right(times, slack_s)] ** count
                total += cost
        return total


def densest_batch(left: Sequence[Left], at_s: float) -> tuple[Left, int, int]:
    """The densest batch of requests of one application that are likely in time then: of whom, the first of them, and
    how many. Of one at least that is likely."""
    most, found = 0.0, (left[0], 0, 0)
    for of in left:
        due, _, takes, within, order = of
        many = len(due)
        for size in order:
            if size > many:
                continue
            begin = bisect_left(due, at_s + within[size])
            if size <= many - begin:
                if size > most * takes[size]:
                    most, found = size / takes[size], (of, begin, size)
                break
    return found
