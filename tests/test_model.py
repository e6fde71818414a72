"""What a job is expected to be: statements, predictions, and both run out of."""

from __future__ import annotations

import math
from statistics import NormalDist, fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.model import Form, Job, JobState


def job(**fields: Any) -> Job:
    return Job("1", Form(1), **fields)


def test_statements_come_before_expectations() -> None:
    """What is stated counts, whatever is predicted; where nobody says anything nothing is known."""
    stated = job(total_steps=100.0, predicted_steps=999.0, outlives=2.0, done_steps=60.0)
    assert (stated.expected_steps, stated.remaining_steps, stated.expected_remaining_steps) == (100.0, 40.0, 40.0)
    unknown = job(done_steps=60.0, outlives=2.0)
    assert (unknown.expected_steps, unknown.remaining_steps, unknown.expected_remaining_steps) == (None, None, None)
    predicted = job(predicted_steps=100.0, done_steps=20.0, outlives=1.5)
    assert (predicted.expected_steps, predicted.remaining_steps, predicted.expected_remaining_steps) == (100, None, 80)


@given(predicted=st.floats(1, 1e9), outlives=st.floats(1.01, 5), done=st.floats(0, 1e10))
def test_nothing_is_expected_to_end_for_ever(predicted: float, outlives: float, done: float) -> None:
    """Whoever has outlived its prediction has something left, more the longer it goes on; and never less than that."""
    here = job(predicted_steps=predicted, outlives=outlives, done_steps=done)
    left = here.expected_remaining_steps
    assert left is not None and left >= (outlives - 1) * done * 0.99 and left >= predicted - done
    assert left > 0 and math.isfinite(left)


def test_the_expectation_has_no_jump() -> None:
    """Around the moment when the factor begins to count."""
    before, after = (job(predicted_steps=150.0, outlives=1.5, done_steps=d) for d in (99.999, 100.001))
    assert before.expected_steps == pytest.approx(after.expected_steps, rel=1e-4)


@pytest.mark.parametrize("sigma", [0.0, 0.3, 1.5])
def test_who_cannot_be_stopped_is_weighed_by_the_mean(sigma: float) -> None:
    """The mean of the log-normal length that was predicted, found by drawing; the median for who can be stopped."""
    z = NormalDist().inv_cdf(0.9)
    between = (100.0 * math.exp(-z * sigma), 100.0 * math.exp(z * sigma))
    waits = job(predicted_steps=100.0, predicted_range=between)
    quantiles = NormalDist(math.log(100.0), sigma or 1e-9)
    drawn = fmean(math.exp(quantiles.inv_cdf((i + 0.5) / 100_000)) for i in range(100_000))

    assert waits.steps_to_go(1.0, 3600.0, mean=True) == pytest.approx(drawn, rel=0.01)
    assert waits.steps_to_go(1.0, 3600.0) == 100.0


@pytest.mark.parametrize("sigma", [0.3, 1.5])
@pytest.mark.parametrize("done", [10.0, 100.0, 400.0])
def test_who_runs_and_cannot_be_stopped_has_the_mean_of_those_that_go_on(sigma: float, done: float) -> None:
    """Found by drawing; no less than is left to the median."""
    z = NormalDist().inv_cdf(0.9)
    runs = job(
        predicted_steps=100.0,
        predicted_range=(100.0 * math.exp(-z * sigma), 100.0 * math.exp(z * sigma)),
        outlives=1.05,
        state=JobState.RUNNING,
        done_steps=done,
    )
    below = NormalDist(math.log(100.0), sigma).cdf(math.log(done))
    shares = [below + (1 - below) * (i + 0.5) / 100_000 for i in range(100_000)]
    drawn = fmean(math.exp(NormalDist(math.log(100.0), sigma).inv_cdf(share)) - done for share in shares)
    median = runs.steps_to_go(0.01, 3600.0)

    assert runs.steps_to_go(0.01, 3600.0, mean=True) == pytest.approx(max(median, drawn), rel=0.02)


def test_the_mean_is_asked_of_predictions_only() -> None:
    """Not of what is stated, nor unknown, nor predicted without an error."""
    wide = (10.0, 1000.0)
    for other in (
        job(total_steps=100.0, predicted_steps=50.0, predicted_range=wide),
        job(),
        job(predicted_steps=100.0),
    ):
        assert other.steps_to_go(1.0, 3600.0, mean=True) == other.steps_to_go(1.0, 3600.0)
