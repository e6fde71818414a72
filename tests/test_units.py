"""Lengths of time in the unit that suits."""

from __future__ import annotations

import pytest

from slurm_hadar.units import lasting, unit_of


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
