"""Who takes how many of a global batch's samples, and which: plain arithmetic, the same on all workers."""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Sequence

__all__ = ["Shares", "longest", "positions", "share_out"]


def share_out(total: int, rates: Sequence[float], most: int | None = None) -> tuple[int, ...]:
    """Whole shares of ``total`` samples, at least one each, whose longest ``share / rate`` is as short as can be.

    ``rates``: each worker's speed, in any one unit. ``most``: the largest share that a worker can take. Ties go to the
    lower rank. Our definition: samples go one by one to whoever would be done with one more the soonest, which is
    optimal, since a worker's time only grows with its samples; all but the last few are given at once.

    Raises ValueError if some worker would get nothing or more than ``most``, or if a rate is not a positive number.
    """
    if not all(math.isfinite(r) and r > 0 for r in rates):
        raise ValueError(f"rates must be positive numbers, not {list(rates)}")
    if total < len(rates):
        raise ValueError(f"{total} samples cannot be shared by {len(rates)} workers: each needs at least one")
    cap = total if most is None else most
    if cap * len(rates) < total:
        raise ValueError(f"{total} samples cannot be shared by {len(rates)} workers that take at most {cap} each")
    # never more than in the end: so much fits before the time at which all samples but one per worker would be done
    sure = (total - len(rates)) / sum(rates)
    shares = [min(cap, max(1, math.floor(sure * rate))) for rate in rates]
    queue = [((n + 1) / rate, rank) for rank, (n, rate) in enumerate(zip(shares, rates, strict=True)) if n < cap]
    heapq.heapify(queue)
    for _ in range(total - sum(shares)):
        _, rank = heapq.heappop(queue)
        shares[rank] += 1
        if shares[rank] < cap:
            heapq.heappush(queue, ((shares[rank] + 1) / rates[rank], rank))
    return tuple(shares)


def longest(shares: Sequence[int], rates: Sequence[float]) -> float:
    """Seconds until the last worker is done, at ``rates`` in samples per second."""
    return max(n / rate for n, rate in zip(shares, rates, strict=True))


@functools.lru_cache(maxsize=64)
def positions(shares: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Which samples of the global batch ``rank`` takes: they are dealt out in rounds, one to each that wants more.

    Equal shares are thereby those of a ``DistributedSampler``.
    """
    return tuple(
        sum(min(n, turn) for n in shares) + sum(n > turn for n in shares[:rank]) for turn in range(shares[rank])
    )


class Shares:
    """The shares of one training over time. Turns of the loop are counted from 0 in each run.

    ``total``: samples of a whole global batch, which ``world`` divides: it begins with equal shares.
    """

    def __init__(self, total: int, world: int, rank: int) -> None:
        self.total, self.world, self.rank = total, world, rank
        self._before = self._now = (total // world,) * world
        self._since = 0

    def at(self, turn: int, size: int | None = None) -> tuple[int, ...]:
        """The shares in ``turn``; of a batch of ``size`` samples at the end of an epoch in the same proportion."""
        shares = self._now if turn >= self._since else self._before
        return shares if size is None or size == self.total else share_out(size, shares)

    def change(self, turn: int, shares: tuple[int, ...]) -> None:
        """From ``turn`` on it is ``shares``. Not to be called before an earlier change has come to pass."""
        self._before, self._now, self._since = self._now, shares, turn
