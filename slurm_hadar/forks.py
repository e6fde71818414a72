"""How the steps of a forked job (HadarE) are shared out among its copies: arithmetic that job and controller agree on.

A *step index* is the place of a step in the order of the whole job, 0 to ``total - 1``: it names the data of the step.
Each index is in at most one copy's share at a time, and is done once its weights are in a consolidation. What a copy
does not deliver goes back to the rest. Our definition, after "HadarE" (arXiv 2503.10918), whose abstract names the
forking and the consolidation but no rule for the shares.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurm_hadar.errors import ChannelError

__all__ = [
    "LONGEST_PERIOD_S",
    "OVERHEAD",
    "SHORTEST_PERIOD_S",
    "PeriodPlan",
    "SLACK",
    "Span",
    "count",
    "cut",
    "less",
    "period_s",
    "period_steps",
    "quotas",
    "union",
]

Span = tuple[int, int]  # step indices from the first up to, and without, the second

SLACK = 1.25  # periods in seconds: shares are larger than the time allows, so that who is faster than known goes on
OVERHEAD = 0.015  # share of its time that a copy may lose to consolidations; half of what we promise users
SHORTEST_PERIOD_S, LONGEST_PERIOD_S = 5.0, 600.0


def quotas(rates: Mapping[int, float], steps: int) -> dict[int, int]:
    """Share ``steps`` among copies in proportion to their ``rates`` (steps/s); the leftovers go to the fastest.

    The shares sum to ``steps``. Copies whose rate is not known (0) share like the slowest known one; where none is
    known all are alike. Raises ValueError for negative numbers and for no copies at all.
    """
    if not rates:
        raise ValueError("no copies to share steps among")
    if steps < 0 or any(not (r >= 0 and math.isfinite(r)) for r in rates.values()):
        raise ValueError("steps and rates must be finite and not negative")
    least = min((r for r in rates.values() if r > 0), default=1.0)
    known = {copy: rate or least for copy, rate in rates.items()}
    top = max(known.values())  # sums of very small and very large rates must neither vanish nor overflow
    weight = {copy: rate / top for copy, rate in known.items()}
    total = math.fsum(weight.values())
    shares = {copy: min(steps, int(steps * (w / total))) for copy, w in weight.items()}
    fastest = sorted(shares, key=lambda copy: (-weight[copy], copy))
    left = steps - sum(shares.values())
    while left:
        for copy in fastest[: abs(left)]:
            change = 1 if left > 0 else -min(1, shares[copy])
            shares[copy] += change
            left -= change
    return shares


def count(spans: Iterable[Span]) -> int:
    """How many step indices lie in ``spans``."""
    return sum(stop - start for start, stop in spans)


def union(spans: Iterable[Span]) -> tuple[Span, ...]:
    """The same indices as ascending spans that neither touch nor overlap."""
    merged: list[Span] = []
    for start, stop in sorted(s for s in spans if s[0] < s[1]):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], stop))
        else:
            merged.append((start, stop))
    return tuple(merged)


def less(spans: Iterable[Span], taken: Iterable[Span]) -> tuple[Span, ...]:
    """The indices of ``spans`` that are not in ``taken``."""
    left: list[Span] = []
    away = union(taken)
    for start, stop in union(spans):
        for begin, end in away:
            if end <= start or begin >= stop:
                continue
            if begin > start:
                left.append((start, begin))
            start = max(start, end)
        if start < stop:
            left.append((start, stop))
    return tuple(left)


def cut(spans: Iterable[Span], shares: Mapping[int, int]) -> dict[int, tuple[Span, ...]]:
    """Deal the first indices of ``spans`` out: to each copy, in order of its number, as many as its share says."""
    rest = list(union(spans))
    dealt: dict[int, tuple[Span, ...]] = {}
    for copy in sorted(shares):
        wanted, mine = shares[copy], []
        while wanted and rest:
            start, stop = rest[0]
            end = min(stop, start + wanted)
            mine.append((start, end))
            wanted -= end - start
            rest[0:1] = [] if end == stop else [(end, stop)]
        dealt[copy] = tuple(mine)
    return dealt


def period_s(stall_s: float | None) -> float:
    """How long the copies train between two consolidations that cost each of them ``stall_s``: so long that the loss is
    :data:`OVERHEAD`, within bounds. None = not known yet."""
    if stall_s is None:
        return 2 * SHORTEST_PERIOD_S
    return min(LONGEST_PERIOD_S, max(SHORTEST_PERIOD_S, stall_s / OVERHEAD))


def period_steps(rates: Iterable[float], seconds: float) -> int:
    """Steps to share out for a period of ``seconds``; 0 if no rate is known."""
    known = [r for r in rates if r > 0]
    return int(SLACK * seconds * sum(r or min(known) for r in rates)) if known else 0


@dataclass(frozen=True, slots=True)
class PeriodPlan:
    """What the job tracker tells the copies of a forked job for the periods that begin from now on.

    Parameters
    ----------
    serial: grows with each plan of the job; the highest counts.
    after: the newest consolidation that the tracker knew of.
    quotas: steps of one period for each copy that lives; a copy that is not named is not waited for.
    period_s: how long such a period lasts; None where its steps are what counts.
    """

    serial: int
    after: int
    quotas: Mapping[int, int]
    period_s: float | None = None

    def to_json(self) -> str:
        """One line."""
        content = {"serial": self.serial, "after": self.after, "quotas": sorted(self.quotas.items())}
        if self.period_s is not None:
            content["period_s"] = self.period_s
        return json.dumps(content, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> PeriodPlan:
        """Read what :meth:`to_json` wrote; raises ChannelError for anything else."""
        try:
            content = json.loads(text)
            numbers = [content["serial"], content["after"], *(n for pair in content["quotas"] for n in pair)]
            shares = dict(content["quotas"])
            period_s = content.get("period_s")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ChannelError(f"plan of a forked job is not understood: {str(error).splitlines()[0][:100]}") from None
        if any(type(n) is not int or not 0 <= n < 2**63 for n in numbers) or len(shares) != len(content["quotas"]):
            raise ChannelError("plan of a forked job is not understood: its numbers must be whole and not negative")
        good = type(period_s) in (int, float) and 0 < period_s <= LONGEST_PERIOD_S * 100
        if period_s is not None and not good:
            raise ChannelError("plan of a forked job is not understood: period_s must be a time above 0")
        return cls(content["serial"], content["after"], shares, period_s)
