"""What a job is expected to be: statements, predictions, and both run out of."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.model import Form, Job


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
