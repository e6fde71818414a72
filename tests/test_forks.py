"""Sharing out the steps of a forked job."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar import forks
from slurm_hadar.errors import ChannelError

RATES = st.dictionaries(st.integers(0, 9), st.floats(0, 1e6), min_size=1, max_size=6)
SPANS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6)


def indices(spans: Any) -> set[int]:
    return {i for start, stop in spans for i in range(start, stop)}


@given(RATES, st.integers(0, 10**9))
def test_shares_sum_up_and_follow_the_rates(rates: dict[int, float], steps: int) -> None:
    """Nothing is lost, and each share is within one step of its exact value."""
    shares = forks.quotas(rates, steps)
    assert sum(shares.values()) == steps and shares.keys() == rates.keys() and min(shares.values()) >= 0
    known = {c: r or min((x for x in rates.values() if x), default=1.0) for c, r in rates.items()}
    total = sum(known.values())
    assert all(abs(shares[c] - steps * known[c] / total) <= 1 + 1e-6 * steps for c in rates)


def test_leftovers_go_to_the_fastest() -> None:
    assert forks.quotas({0: 1.0, 1: 3.0, 2: 1.0}, 11) == {0: 2, 1: 7, 2: 2}
    assert forks.quotas({0: 0.0, 1: 4.0}, 4) == {0: 2, 1: 2}, "a rate that is not known counts like the slowest"


@pytest.mark.parametrize(("rates", "steps"), [({}, 1), ({0: -1.0}, 1), ({0: 1.0}, -1), ({0: float("inf")}, 1)])
def test_impossible_shares(rates: dict[int, float], steps: int) -> None:
    with pytest.raises(ValueError, match=r"copies|negative"):
        forks.quotas(rates, steps)


@given(SPANS, SPANS)
def test_spans_are_sets_of_indices(one: Any, other: Any) -> None:
    assert indices(forks.union(one)) == indices(one) and forks.count(forks.union(one)) == len(indices(one))
    assert indices(forks.less(one, other)) == indices(one) - indices(other)


@given(SPANS, st.dictionaries(st.integers(0, 5), st.integers(0, 40), max_size=4))
def test_each_index_is_dealt_once(spans: Any, shares: dict[int, int]) -> None:
    dealt = forks.cut(spans, shares)
    parts = [indices(s) for s in dealt.values()]
    assert sum(map(len, parts)) == len(set().union(*parts)) == min(sum(shares.values()), len(indices(spans)))
    assert set().union(*parts) <= indices(spans)
    if forks.count(forks.union(spans)) >= sum(shares.values()):
        assert {c: forks.count(s) for c, s in dealt.items()} == shares


def test_periods_follow_the_cost() -> None:
    assert forks.period_s(0.15) == pytest.approx(10.0)
    assert forks.period_s(0.0) == forks.SHORTEST_PERIOD_S and forks.period_s(1e9) == forks.LONGEST_PERIOD_S


@given(
    st.integers(0, 2**40),
    st.integers(0, 99),
    st.dictionaries(st.integers(0, 99), st.integers(0, 10**9)),
    st.none() | st.floats(0.1, 600),
)
def test_plans_survive_the_way(serial: int, after: int, shares: dict[int, int], period_s: float | None) -> None:
    plan = forks.PeriodPlan(serial, after, shares, period_s)
    assert forks.PeriodPlan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[]",
        "null",
        '{"serial":1,"after":0,"quotas":[[1]]}',
        '{"serial":1,"after":0,"quotas":[[1,-2]]}',
        '{"serial":true,"after":0,"quotas":[]}',
        '{"serial":1,"after":0,"quotas":[[1,2],[1,3]]}',
        "[" * 10_000,
        '{"serial":1,"after":0,"quotas":[],"period_s":0}',
        '{"serial":1,"after":0,"quotas":[],"period_s":"x"}',
    ],
)
def test_bad_plans_are_refused(text: str) -> None:
    with pytest.raises(ChannelError, match="plan of a forked job"):
        forks.PeriodPlan.from_json(text)
