"""Sharing a global batch: nothing lost, nobody without, nobody later than need be."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.runtime.batches.shares import Shares, longest, positions, share_out

RATES = st.lists(st.floats(0.01, 1000.0), min_size=1, max_size=9)


def shortest(total: int, rates: list[float], most: int) -> float:
    """The least time in which all is done, found among the times at which some worker is done with some number."""
    times = sorted({n / rate for rate in rates for n in range(1, total + 1)})
    # one sample is each one's due, however late that is
    done = (t for t in times if sum(min(most, max(1, math.floor(t * r * (1 + 1e-9)))) for r in rates) >= total)
    return max(next(done), max(1 / r for r in rates))


@given(RATES, st.integers(0, 150), st.none() | st.integers(1, 60))
def test_shares_are_complete_and_as_quick_as_can_be(rates: list[float], more: int, most: int | None) -> None:
    """The sum is the batch, everybody has one sample and at most ``most``, and no other shares are done sooner."""
    total = len(rates) + more
    if most is not None and most * len(rates) < total:
        with pytest.raises(ValueError, match="take at most"):
            share_out(total, rates, most)
        return
    shares = share_out(total, rates, most)
    assert sum(shares) == total
    assert all(1 <= n <= (most or total) for n in shares)
    assert longest(shares, rates) == pytest.approx(shortest(total, rates, most or total), rel=1e-6)


@pytest.mark.parametrize(
    ("total", "rates", "shares"),
    [
        (64, [3.0, 1.0], (48, 16)),
        (64, [1.0, 1.0], (32, 32)),
        (10, [1.0, 1.0, 1.0], (4, 3, 3)),
        (4, [1000.0, 1.0, 1.0], (2, 1, 1)),
        (1, [5.0], (1,)),
        (1_000_003, [3.0, 1.0], (750_003, 250_000)),
    ],
)
def test_known_shares(total: int, rates: list[float], shares: tuple[int, ...]) -> None:
    assert share_out(total, rates) == shares


@pytest.mark.parametrize("rates", [[0.0, 1.0], [-1.0], [math.inf, 1.0], [math.nan]])
def test_rates_that_are_none_are_refused(rates: list[float]) -> None:
    with pytest.raises(ValueError, match="positive"):
        share_out(8, rates)


def test_fewer_samples_than_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        share_out(2, [1.0, 1.0, 1.0])


@given(st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_each_sample_has_one_worker(shares: list[int]) -> None:
    """The workers' positions are a partition of the global batch, and equal shares are every W-th sample."""
    dealt = [positions(tuple(shares), rank) for rank in range(len(shares))]
    assert [len(p) for p in dealt] == shares
    assert sorted(p for each in dealt for p in each) == list(range(sum(shares)))
    world, equal = len(shares), (shares[0],) * len(shares)
    assert all(positions(equal, r) == tuple(range(r, shares[0] * world, world)) for r in range(world))


def test_a_change_begins_with_its_turn() -> None:
    """Before the turn the old shares hold, also for a loader that draws ahead; a short batch keeps the proportion."""
    shares = Shares(16, 2, 0)
    shares.change(5, (12, 4))
    assert [shares.at(t) for t in (0, 4, 5, 99)] == [(8, 8), (8, 8), (12, 4), (12, 4)]
    assert shares.at(5, 4) == (3, 1)
    assert shares.at(5, 2) == (1, 1)
    shares.change(9, (10, 6))
    assert [shares.at(t) for t in (8, 9)] == [(12, 4), (10, 6)]
