"""Utilities and prices: the laws that the algorithm rests on."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from slurm_hadar.policies.hadar.lookahead.makespan import shadow_prices
from slurm_hadar.policies.hadar.lookahead.prices import _queue_share
from slurm_hadar.policies.hadar.paper.bids import Market, make_bidders, round_era
from slurm_hadar.policies.hadar.paper.prices import _minimise_dual, round_prices
from slurm_hadar.policies.hadar.paper.utilities import OBJECTIVES, Era, Work, make_utility
from slurm_hadar.policies.toolkit.arena import Arena

spans = st.floats(1.0, 1e7)
works = st.builds(
    Work,
    workers=st.integers(1, 16),
    remaining_s=spans,
    total_s=spans,
    priced_s=spans,
    age_s=st.floats(0, 1e7),
    weight=st.floats(0.01, 100),
    deadline_in_s=st.one_of(st.none(), st.floats(-1e6, 1e6)),
)
eras = st.builds(Era, contention=st.floats(1, 100), makespan_s=spans, mean_work_s=spans)


@pytest.mark.parametrize("objective", OBJECTIVES)
@given(work=works, era=eras, finish=st.lists(spans, min_size=2, max_size=5))
def test_utilities_never_rise_with_the_completion_time(objective: Any, work: Any, era: Any, finish: Any) -> None:
    """A later completion is never worth more, and none is worth less than nothing."""
    utility = make_utility(objective, 0.0)
    values = [utility.per_round(work, era, t) for t in sorted(finish)]
    assert all(math.isfinite(v) and v >= 0 for v in values)
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(values))


@given(work=works, era=eras, finish=spans, frontier=st.floats(0, 1))
def test_frontier_lies_between_its_ends(work: Any, era: Any, finish: Any, frontier: Any) -> None:
    """The blend is never outside what average JCT and TTD alone would give."""
    ends = [make_utility("jct", f).per_round(work, era, finish) for f in (0.0, 1.0)]
    blend = make_utility("jct", frontier).per_round(work, era, finish)
    assert min(ends) * (1 - 1e-9) <= blend <= max(ends) * (1 + 1e-9)


def _bidders(jobs: Any, snapshot: Any) -> Any:
    arena = Arena.of(snapshot(jobs))
    return make_bidders(Market(arena, make_utility("jct", 0), round_era(arena, 3600.0), 0.0, 0.0), 3600.0)


def test_exponential_price(job: Any, snapshot: Any) -> None:
    """From U_min when idle to U_max when sold out, by the same factor for every GPU sold; nobody buys at the end."""
    bidders = _bidders([job("1", 2), job("2", 1, steps=5e4)], snapshot)
    prices = round_prices(bidders, {"v100": 2, "p100": 2, "k80": 2})
    idle, half, sold = (prices.at({"v100": n, "p100": 2, "k80": 2})["v100"] for n in (2, 1, 0))
    assert half / idle == pytest.approx(sold / half)
    assert sold >= math.e * idle * (1 - 1e-12)
    assert prices.alpha >= 1
    best = max(b.utility(b.options[0].one_node_s) / b.job.form.workers for b in bidders)
    assert sold == pytest.approx(best)


def test_prices_without_jobs() -> None:
    """An empty queue has prices too, and they are finite."""
    assert all(math.isfinite(p) for p in round_prices([], {"v100": 2}).at({"v100": 0}).values())


@given(seed=st.integers(0, 10**6), jobs=st.integers(1, 40))
def test_clearing_prices_against_the_linear_programme(seed: Any, jobs: Any) -> None:
    """The dual value at the prices found bounds the linear programme from above, and closely."""
    rng = np.random.default_rng(seed)
    worth = rng.lognormal(0, 1, (jobs, 3))
    workers, gpus = rng.choice([1.0, 2.0, 4.0, 8.0], jobs), np.array([20.0, 20.0, 20.0])
    price = _minimise_dual(worth, workers, gpus)
    bound = gpus @ price + np.maximum(0.0, (worth - workers[:, None] * price).max(axis=1)).sum()
    rows = np.zeros((jobs + 3, jobs * 3))
    for j in range(jobs):
        rows[j, 3 * j : 3 * j + 3] = 1
        for r in range(3):
            rows[jobs + r, 3 * j + r] = workers[j]
    exact = -linprog(-worth.ravel(), A_ub=rows, b_ub=[1] * jobs + list(gpus), method="highs").fun
    assert exact * (1 - 1e-9) <= bound <= exact * 1.1


@given(seed=st.integers(0, 10**6), jobs=st.integers(1, 40))
def test_shadow_prices_bound_the_makespan(seed: Any, jobs: Any) -> None:
    """The bound never exceeds the fluid optimum and comes close to it; the average GPU costs one."""
    rng = np.random.default_rng(seed)
    work, gpus = rng.lognormal(0, 1, (jobs, 3)), np.array([8.0, 4.0, 12.0])
    prices, bound = shadow_prices(work, gpus)
    cost = np.zeros(jobs * 3 + 1)
    cost[-1] = 1
    equal, upper = np.zeros((jobs, len(cost))), np.zeros((3, len(cost)))
    for j in range(jobs):
        equal[j, 3 * j : 3 * j + 3] = 1
        for r in range(3):
            upper[r, 3 * j + r] = work[j, r]
    upper[:, -1] = -gpus
    exact = linprog(cost, A_ub=upper, b_ub=[0] * 3, A_eq=equal, b_eq=[1] * jobs, method="highs").fun
    assert exact * 0.9 <= bound <= exact * (1 + 1e-9)
    assert (gpus * prices).sum() == pytest.approx(gpus.sum())


@given(st.floats(0.01, 1.0), st.floats(1.0, 50.0))
def test_while_there_is_room_nobody_of_a_batch_waits(taken: Any, gangs: Any) -> None:
    """Where jobs keep coming some do, and the fewer the more gangs fit; for one at a time it is the fluid."""
    shares = [_queue_share(np.array([taken]), np.array([m]), 1.0).item() for m in (1.0, gangs, gangs + 1.0)]
    assert _queue_share(np.array([taken]), np.array([gangs]), 0.0) == 0.0
    assert shares[0] == pytest.approx(1.0)
    assert shares[0] + 1e-12 >= shares[1] >= shares[2] > 0.0


@pytest.mark.parametrize("gpus", [1, 4, 30])
def test_what_another_of_many_equal_jobs_costs_is_by_how_much_all_wait_longer(gpus: Any) -> None:
    """In the fluid the n-th costs n / C run times. Of four waves that share of it is as long as they really wait, but
    for half a run time where each wave ends."""
    number = np.arange(1, 4 * gpus + 1)
    told = (_queue_share(number / gpus, np.full(len(number), float(gpus)), 0.0) * number / gpus).sum()
    waits = sum((n // gpus) for n in range(len(number)))
    assert told == pytest.approx(waits + 1.5)
