"""Which gangs run on a pool: first fit as the plain loop has it, and choices as brute force has them."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.policies.hadar.lookahead.knapsack import choose, first_fit

WIDTHS = st.sampled_from((1, 1, 2, 2, 3, 4, 5, 8, 12, 16))


@st.composite
def queues(draw: Any, most_jobs: Any = 12, most_gpus: Any = 32) -> Any:
    """Gang sizes and values of some jobs, the order in which they come, and GPUs."""
    jobs = draw(st.integers(0, most_jobs))
    workers = np.array([draw(WIDTHS) for _ in range(jobs)], int)
    value = np.array([draw(st.floats(0.01, 100.0)) for _ in range(jobs)], float) * workers
    order = np.array(draw(st.permutations(range(jobs))), int)
    kept = draw(st.integers(0, jobs))
    return order[:kept], workers, value, draw(st.integers(0, most_gpus))


def naive_first_fit(order: Any, workers: Any, gpus: Any) -> Any:
    chosen = []
    for job in order:
        if workers[job] <= gpus:
            chosen.append(int(job))
            gpus -= workers[job]
    return chosen


def best_value(order: Any, workers: Any, value: Any, gpus: Any) -> Any:
    """The most value of all subsets."""
    subsets = itertools.chain.from_iterable(itertools.combinations(order, n) for n in range(len(order) + 1))
    return max(value[list(s)].sum() for s in subsets if workers[list(s)].sum() <= gpus)


@given(queues(most_jobs=60, most_gpus=100))
def test_first_fit_is_the_plain_loop(queue: Any) -> None:
    """Done in leaps over the array, but the same jobs in the same order."""
    order, workers, _, gpus = queue
    assert first_fit(order, workers, gpus).tolist() == naive_first_fit(order, workers, gpus)


@given(queues(most_jobs=60, most_gpus=100))
def test_choices_fit_and_are_worth_no_less_than_first_fit(queue: Any) -> None:
    """No job twice, none that was not offered, never more GPUs than there are, never less value than first fit."""
    order, workers, value, gpus = queue
    chosen = choose(order, workers, value, gpus)
    assert len(set(chosen.tolist())) == len(chosen)
    assert set(chosen.tolist()) <= set(order.tolist())
    assert workers[chosen].sum() <= gpus
    assert value[chosen].sum() >= value[first_fit(order, workers, gpus)].sum() * (1 - 1e-12)


@given(queues())
def test_where_first_fit_leaves_a_hole_the_choice_is_the_best_of_all_subsets(queue: Any) -> None:
    """Exact inside the window; a pool that first fit fills keeps first fit."""
    order, workers, value, gpus = queue
    chosen = choose(order, workers, value, gpus)
    greedy = naive_first_fit(order, workers, gpus)
    if workers[greedy].sum() == gpus:
        assert chosen.tolist() == greedy
    elif workers[order].sum() <= 3 * gpus:  # more candidates than that are not weighed
        assert value[chosen].sum() == pytest.approx(best_value(order.tolist(), workers, value, gpus))


def test_a_hole_is_closed_by_a_wider_gang() -> None:
    """Of 4 GPUs a gang of three leaves one idle; two pairs of a little less density use all."""
    workers, value = np.array([3, 2, 2]), np.array([3.0, 1.9, 1.9])
    assert choose(np.arange(3), workers, value, 4).tolist() == [1, 2]
    assert choose(np.arange(3), workers, np.array([3.0, 1.4, 1.4]), 4).tolist() == [0]


def test_jobs_far_from_the_margin_are_taken_for_granted() -> None:
    """With 100 GPUs only the last 32 are weighed anew, and what comes first in line runs whatever follows."""
    workers = np.array([4] * 24 + [3, 2, 2])
    value = workers * np.array([2.0] * 24 + [1.0, 0.99, 0.99])
    assert choose(np.arange(27), workers, value, 100).tolist() == [*range(24), 25, 26]
