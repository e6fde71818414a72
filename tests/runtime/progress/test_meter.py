"""Steps per second, as a reporter that looks once a second sees them."""

from __future__ import annotations

import pytest

from slurm_hadar.runtime.reporter import Meter


def _told(moments: list[tuple[float, int]]) -> list[float | None]:
    meter, told = Meter(), []
    for now, steps in moments:
        meter.look(now)
        meter.add(now, steps)
        told.append(meter.rate(now))
    return told


def test_a_training_that_stands_still_is_slower() -> None:
    running = [(float(s), 5 * s) for s in range(1, 8)]

    assert _told(running)[1:] == pytest.approx([5.0] * 6)
    assert 0 < _told([*running, *((7.0 + s, 35) for s in range(1, 24))])[-1] < 1.5


def test_a_time_in_which_nobody_looked_is_not_measured() -> None:
    """As while the job is suspended: its processes are stopped, and this one with them."""
    before = [(float(s), 5 * s) for s in range(1, 8)]
    after = [(100.0 + s, 37 + 5 * s) for s in range(5)]

    rates = [rate for rate in _told([*before, *after]) if rate is not None]

    assert rates == pytest.approx([5.0] * 10)
