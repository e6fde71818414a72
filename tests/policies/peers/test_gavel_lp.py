"""Gavel's allocation problems: cases worked out by hand, and what must hold for all loads."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from slurm_hadar.policies.gavel.lp import Load, fair_finish, isolated_rates, max_min, max_total, proportional_rates
from slurm_hadar.policies.hadar.lookahead.makespan import shadow_prices
from tests.profiles import examples

CLOSE = 3e-3  # a thousandth of the optimum is given up for the centre


def make_load(rates: Any, gang: Any = None, gpus: Any = None) -> Any:
    rates = np.array(rates, dtype=float)
    gang = np.ones(len(rates)) if gang is None else np.array(gang, dtype=float)
    return Load(rates, gang, np.ones(rates.shape[1]) if gpus is None else np.array(gpus, dtype=float))


@st.composite
def loads(draw: Any) -> Any:
    """Up to six jobs on up to three types; every job runs somewhere, and its gang fits there."""
    types = draw(st.integers(1, 3))
    gpus = [draw(st.sampled_from((1, 2, 4, 8))) for _ in range(types)]
    rates, gang = [], []
    for _ in range(draw(st.integers(1, 6))):
        workers = draw(st.sampled_from((1, 1, 2, 4)))
        row = [draw(st.one_of(st.just(0.0), st.floats(0.01, 100.0))) if n >= workers else 0.0 for n in gpus]
        if not any(row):
            kind = draw(st.integers(0, types - 1))
            workers, row[kind] = min(workers, gpus[kind]), 1.0
        rates.append(row)
        gang.append(workers)
    return make_load(rates, gang, gpus)


def assert_feasible(load: Any, shares: Any) -> None:
    assert (shares >= 0).all()
    assert (shares.sum(axis=1) <= 1 + 1e-9).all()
    assert (load.gang @ shares <= load.gpus * (1 + 1e-9)).all()
    assert (shares[load.rates == 0] == 0).all()


def makespan_s(load: Any, steps: Any) -> Any:
    """The shortest time in which all steps can be done, with seconds per job and type as variables."""
    jobs, types = load.rates.shape
    rows, bounds = [], []
    for j in range(jobs):
        work, own = np.zeros((jobs, types)), np.zeros((jobs, types))
        work[j], own[j] = -load.rates[j] / steps[j], 1.0
        rows += [np.append(work, 0.0), np.append(own, -1.0)]
        bounds += [-1.0, 0.0]
    for r in range(types):
        held = np.zeros((jobs, types))
        held[:, r] = load.gang
        rows.append(np.append(held, -load.gpus[r]))
        bounds.append(0.0)
    return linprog([0.0] * (jobs * types) + [1.0], A_ub=np.array(rows), b_ub=bounds).fun


@given(loads(), st.data())
def test_max_min_is_feasible_and_reaches_the_best_makespan(load: Any, data: Any) -> None:
    """With remaining steps as demand the ratio is one over the makespan, which another formulation confirms."""
    steps = np.array([data.draw(st.floats(1.0, 1e4)) for _ in load.gang])
    shares, level = max_min(load, steps)

    assert_feasible(load, shares)
    assert 1 / level == pytest.approx(makespan_s(load, steps), rel=1e-5)
    assert ((load.rates * shares).sum(axis=1) / steps).min() == pytest.approx(level, rel=CLOSE)
    seconds = np.divide(
        load.gang[:, None] * steps[:, None], load.rates, out=np.full(load.rates.shape, np.inf), where=load.rates > 0
    )
    assert shadow_prices(seconds, load.gpus)[1] <= 1 / level * (1 + 1e-6)


@examples(40)
@given(loads(), st.data())
def test_the_order_of_jobs_does_not_matter(load: Any, data: Any) -> None:
    """The centre is unique: jobs in another order get the same shares, and equal jobs get equal ones."""
    order = np.array(data.draw(st.permutations(range(len(load.gang)))))
    doubled = Load(np.vstack([load.rates, load.rates]), np.tile(load.gang, 2), load.gpus)
    shuffled = Load(load.rates[order], load.gang[order], load.gpus)

    assert max_min(load, load.gang)[0][order] == pytest.approx(max_min(shuffled, load.gang[order])[0], abs=0.01)
    twins = max_min(doubled, np.tile(load.gang, 2))[0]
    assert twins[: len(order)] == pytest.approx(twins[len(order) :], abs=0.01)


@given(loads())
def test_max_total_is_feasible_and_beats_equal_parts(load: Any) -> None:
    """The total is what the shares give, and no less than when everybody has an equal part."""
    shares, total = max_total(load, load.rates)

    assert_feasible(load, shares)
    assert (load.rates * shares).sum() == pytest.approx(total, rel=CLOSE)
    assert total >= isolated_rates(load).sum() * (1 - 1e-9)


@given(loads(), st.data())
def test_fair_finish_is_feasible_and_cannot_be_improved(load: Any, data: Any) -> None:
    """Nobody's ratio is above the one returned, and no shares could keep all of them a percent lower."""
    jobs = len(load.gang)
    remaining = np.array([data.draw(st.floats(10.0, 1e4)) for _ in range(jobs)])
    elapsed = np.array([data.draw(st.one_of(st.just(0.0), st.floats(0.0, 1e4))) for _ in range(jobs)])
    isolated = elapsed * data.draw(st.floats(0.0, 2.0)) + remaining / isolated_rates(load)
    shares, rho = fair_finish(load, remaining, elapsed, isolated)

    assert_feasible(load, shares)
    rate = (load.rates * shares).sum(axis=1)
    needed = remaining / (rho * isolated - elapsed)
    assert (rate >= needed * (1 - CLOSE)).all()
    tighter = rho - 0.01 * (rho - (elapsed / isolated).max())
    assert max_min(load, remaining / (tighter * isolated - elapsed))[1] < 1


def test_equal_jobs_share_equally() -> None:
    """Three equal jobs on one GPU have a third each."""
    shares, level = max_min(make_load([[5.0]] * 3), np.full(3, 5.0))
    assert shares[:, 0] == pytest.approx([1 / 3] * 3, rel=CLOSE)
    assert level == pytest.approx(1 / 3)


def test_demands_are_met_in_proportion() -> None:
    """Who demands twice as much has twice the share."""
    shares, _ = max_min(make_load([[5.0]] * 2), np.array([1.0, 2.0]))
    assert shares[:, 0] == pytest.approx([1 / 3, 2 / 3], rel=CLOSE)


def test_each_job_where_it_gains_most() -> None:
    """One GPU of either type, two jobs that gain ten times from the first and two that are indifferent.

    Usual rates are 5.5 and 5. With ``a`` of the first type for the former, all ratios are equal where
    ``a / 2 * 10 / 5.5 = (2 - a) / 2``, so ``a = 1.1 / 1.55``.
    """
    load = make_load([[10.0, 1.0], [10.0, 1.0], [5.0, 5.0], [5.0, 5.0]])
    usual = proportional_rates(load.rates, load.gpus)
    assert usual == pytest.approx([5.5, 5.5, 5.0, 5.0])
    shares, level = max_min(load, usual)
    assert level == pytest.approx(1 - 0.55 / 1.55)
    assert shares[:2] == pytest.approx(np.array([[0.55 / 1.55, 0.0]] * 2), abs=CLOSE)
    assert shares[2:].sum() == pytest.approx(2 - 1.1 / 1.55, abs=CLOSE)


def test_the_largest_total_takes_the_better_pairing() -> None:
    """10 + 7 steps/s are more than 8 + 1."""
    shares, total = max_total(make_load([[10.0, 1.0], [8.0, 7.0]]), np.array([[10.0, 1.0], [8.0, 7.0]]))
    assert total == pytest.approx(17.0)
    assert shares == pytest.approx(np.eye(2), abs=0.01)


def test_an_equal_part_of_the_cluster() -> None:
    """Two jobs on 4 + 4 GPUs have 2 + 2 each: a gang of 4 runs always, a gang of 8 half of the time."""
    load = make_load([[10.0, 2.0], [10.0, 2.0]], [4, 8], [4, 4])
    assert isolated_rates(load) == pytest.approx([6.0, 3.0])


def test_finish_time_fairness_by_hand() -> None:
    """Two jobs of 100 steps on one GPU; the first has waited 100 s and would have run 250 s alone, the second 200 s.

    Equal ratios ``(100 + 100 / a) / 250 = (100 / b) / 200`` with ``a + b = 1`` lead to ``a^2 + 1.25 a = 1``.
    """
    load = make_load([[1.0], [1.0]])
    shares, rho = fair_finish(load, np.array([100.0, 100.0]), np.array([100.0, 0.0]), np.array([250.0, 200.0]))
    first = (-1.25 + (1.25**2 + 4) ** 0.5) / 2
    assert shares[:, 0] == pytest.approx([first, 1 - first], rel=CLOSE)
    assert rho == pytest.approx((100 + 100 / first) / 250, rel=1e-4)


def test_a_job_that_nobody_can_help_leaves_the_rest_to_the_others() -> None:
    """A gated makespan: the long job has its GPU all of the time, and the others still use all of theirs."""
    load = make_load([[1.0]] * 3, gpus=[2])
    shares, level = max_min(load, np.array([1000.0, 10.0, 10.0]))
    assert 1 / level == pytest.approx(1000.0)
    assert shares[:, 0].sum() == pytest.approx(2.0, rel=0.2)


@examples(40)
@given(
    st.lists(st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.floats(-6, 12), st.floats(0, 7)), min_size=1, max_size=8)
)
def test_figures_of_any_magnitude(figures: Any) -> None:
    """Speeds and lengths that lie many orders of magnitude apart are no obstacle."""
    first, second, steps, elapsed = 10.0 ** np.array(figures).T
    load = make_load(np.column_stack([first, second]), gpus=[3, 1])

    assert_feasible(load, max_min(load, steps)[0])
    assert_feasible(load, max_total(load, load.rates)[0])
    shares, rho = fair_finish(load, steps, elapsed, steps / isolated_rates(load))
    assert_feasible(load, shares)
    assert np.isfinite(rho)
