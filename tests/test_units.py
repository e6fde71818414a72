"""Lengths of time in the unit that suits."""

from __future__ import annotations

import math

import pytest

from slurm_hadar.units import between, lasting, span, unit_of


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "-"), (0.0, "0 s"), (0.4, "0.40 s"), (45.0, "45.0 s"), (119.9, "120 s"), (120.0, "2.00 min"),
        (2400.0, "40.0 min"), (3600.0, "1.00 h"), (36_000.0, "10.0 h"), (4 * 86400.0, "4.00 d"), (-90.0, "-90.0 s"),
    ],
)  # fmt: skip
def test_by_itself(seconds: float | None, said: str) -> None:
    """Three digits, in the largest unit of which there is enough."""
    assert lasting(seconds) == said


def test_among_others() -> None:
    """In a column all have the unit of the longest, but for what would be next to nothing in it."""
    column = (7200.0, 1800.0, 3.0, None)

    assert [lasting(value, column) for value in column] == ["2.00 h", "0.50 h", "3.00 s", "-"]
    assert unit_of(7 * 86400.0).words == "days"


@pytest.mark.parametrize(
    ("low", "high", "said"),
    [
        (45.0, 90.0, "45 s to 90 s"), (119.0, 150.0, "2 min"), (119.0, 190.0, "2 min to 3 min"),
        (70.0, 440.0, "1 min to 7 min"), (5.0, 440.0, "0 to 7 min"), (480.0, 660.0, "8 min to 11 min"),
        (3000.0, 7500.0, "50 min to 2 h 05"), (130.0, 140.0, "2 min"),
    ],
)  # fmt: skip
def test_an_interval_has_no_seconds_beside_minutes(low: float, high: float, said: str) -> None:
    assert between(low, high) == said


def test_a_length_that_has_no_end_is_said() -> None:
    """A policy reckons so with jobs whose speed nobody knows."""
    assert span(math.inf) == "an unknown time" and span(None) == "-"
