"""Distributions, the score, and the order that follows from it."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.serving.scheduling.distribution import Distribution, longest_of
from slurm_hadar.serving.scheduling.heap import ScoreHeap
from slurm_hadar.serving.scheduling.learning import Window
from slurm_hadar.serving.scheduling.request import MISS, Request, Step
from slurm_hadar.serving.scheduling.score import ScoreTable


@pytest.mark.parametrize(("size", "mean"), [(1, 28), (2, 42.4), (4, 63.136), (8, 84.901), (16, 97.467)])
def test_the_longest_of_a_batch(size: int, mean: float) -> None:
    """The reconstruction's vectors."""
    assert longest_of([(Distribution([10, 100], [0.8, 0.2]), size)]).mean_s == pytest.approx(mean, abs=5e-4)


@pytest.mark.parametrize(
    ("now", "deadline", "score"), [(0, 120, 0.006758), (50, 120, 0.008520), (90, 120, 0.009058), (0, 35, 0.008196)]
)
def test_the_score_of_atoms(now: float, deadline: float, score: float) -> None:
    table = ScoreTable(Distribution([10, 40, 100], [0.5, 0.3, 0.2]), 0.02)

    assert table.score(deadline - now) == pytest.approx(score, abs=5e-7)


@pytest.mark.parametrize(("now", "score"), [(0, 0.006636), (50, 0.011396), (80, 0.014423)])
def test_the_score_of_bins_is_that_of_many_atoms(now: float, score: float) -> None:
    """Run times of 5 to 15, 15 to 50 and 50 to 110, even within these."""
    parts = 20_000
    inside = (np.arange(parts) + 0.5) / parts
    times = [low + (high - low) * inside for low, high in ((5, 15), (15, 50), (50, 110))]
    weights = np.repeat(np.array([0.5, 0.3, 0.2]) / parts, parts)
    table = ScoreTable(Distribution(np.concatenate(times), weights), 0.02)
    assert table.score(120 - now) == pytest.approx(score, abs=5e-7)


TIMES = st.lists(st.floats(0.001, 10.0), min_size=1, max_size=6)


@given(TIMES, st.floats(0.01, 50.0), st.floats(0.0, 30.0), st.lists(st.floats(0.0, 5.0), min_size=1, max_size=3))
def test_a_score_is_the_cost_of_waiting(times: list[float], rate: float, slack: float, offsets: list[float]) -> None:
    """Of several steps: the sum of those of each, by the formula as it stands."""
    distribution = Distribution(times)
    steps = tuple(Step(after, 1.0 + n) for n, after in enumerate(sorted(offsets)))
    expected = 0.0
    for step in steps:
        for time, weight in zip(distribution.times_s, distribution.weights, strict=True):
            if time - step.after_s <= slack:
                expected += step.cost * weight * _decay(rate, slack + step.after_s - time)

    found = ScoreTable(distribution, rate, steps).score(slack)

    assert found == pytest.approx(expected / distribution.mean_s, rel=1e-6, abs=1e-12)


def _decay(rate: float, seconds: float) -> float:
    return math.exp(-rate * seconds)


@given(st.integers(0, 2**32).map(random.Random), st.integers(1, 4), st.floats(0.01, 5.0), st.floats(0.0, 1e7))
def test_the_heap_has_the_order_of_brute_force(dice: random.Random, kinds: int, rate: float, begin: float) -> None:
    """At any time, on a clock that may have run for months, whoever comes and goes between: the scores are those of
    the best by computing all."""
    tables = {
        str(n): ScoreTable(Distribution([dice.uniform(0.01, 3.0) for _ in range(dice.randint(1, 6))]), rate)
        for n in range(kinds)
    }
    queued: dict[int, Request] = {}
    now_s = begin
    heap = ScoreHeap(queued, lambda r, _: tables[r.application], rate, now_s)
    for number in range(60):
        now_s += dice.choice([0.0, dice.expovariate(5.0)])
        request = Request(number, str(dice.randrange(kinds)), now_s, now_s + dice.uniform(0.0, 6.0))
        queued[number] = request
        heap.push(request, now_s)
        if queued and dice.random() < 0.3:
            del queued[dice.choice(list(queued))]

        count = dice.randint(1, 8)
        found = [tables[r.application].score(r.deadline_s - now_s) for r in heap.best(count, now_s)]
        every = (tables[r.application].score(r.deadline_s - now_s) for r in queued.values())
        best = sorted((s for s in every if s > 0.0), reverse=True)[:count]

        assert found == pytest.approx(best, rel=1e-5)


@pytest.mark.parametrize("slack", [1e-3, 1.0, 1e6])
def test_nothing_overflows(slack: float) -> None:
    """Rates and times whose product no exponential takes."""
    table = ScoreTable(Distribution([1e-6, 1.0, 1e5]), 1e4, MISS)

    assert 0.0 <= table.score(slack) < float("inf")


def test_batches_teach_what_single_runs_would() -> None:
    """Only the longest of each is seen, and yet the distribution is found."""
    dice = random.Random(3)
    window = Window(20_000)
    for _ in range(20_000):
        size = dice.choice([1, 4, 16])
        window.add(max(dice.expovariate(1.0) for _ in range(size)), size, 0.0)
    found = window.distribution()

    for share in (0.25, 0.5, 0.9):
        assert found.cdf(-math.log(1 - share)) == pytest.approx(share, abs=0.03)


def test_single_runs_are_taken_as_they_are() -> None:
    window = Window()
    for seconds in (3.0, 1.0, 2.0, 2.0):
        window.add(seconds, 1, 0.0)
    found = window.distribution()

    assert found.times_s == (1.0, 2.0, 3.0)
    assert found.weights == pytest.approx((0.25, 0.5, 0.25))


@pytest.mark.parametrize("factor", [0.5, 1.5])
def test_what_was_before_a_change_is_forgotten(factor: float) -> None:
    """Also where some batches of before are left in the part that differs the most at first."""
    dice = random.Random(4)
    window = Window()
    for n in range(430):
        seconds = 0.1 * dice.uniform(0.9, 1.1) * (factor if n >= 400 else 1.0)
        window.add(seconds, 2, 0.0)
        if n % 20 == 0:
            window.distribution()
    times = window.distribution().times_s

    assert 0.09 * factor <= times[0] <= times[-1] <= 0.11 * factor
    assert len(window) == 30 and window.requests == 60


@pytest.mark.parametrize("seed", range(10))
def test_chance_is_no_change(seed: int) -> None:
    """Nor is another size of batches, the longest of which take longer."""
    dice = random.Random(seed)
    window = Window()
    for n in range(600):
        size = dice.choice([1, 2]) if n < 300 else 16
        window.add(max(dice.lognormvariate(0.0, 1.2) for _ in range(size)), size, 0.0)
        window.distribution()

    assert len(window) == 600


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=300), st.integers(1, 20))
def test_thinning_keeps_the_mean(times: list[float], atoms: int) -> None:
    whole = Distribution(times)
    thin = whole.thinned(atoms)

    assert len(thin.times_s) <= atoms or len(whole.times_s) <= atoms
    assert thin.mean_s == pytest.approx(whole.mean_s, rel=1e-6)
