"""How fast trials are, and how long they will be."""

from __future__ import annotations

import pytest

from slurm_hadar.tuning.executor.estimate import Estimates
from slurm_hadar.tuning.executor.live import Live
from slurm_hadar.tuning.executor.meter import Meter
from slurm_hadar.tuning.study.profile import Profile


def test_a_meter_counts_settled_stretches_only() -> None:
    meter = Meter()
    meter.stretch((1, 1))
    for second in range(10):  # the first steps take ten times as long
        meter.beat(max(0, (second - 3) * 10), 1000, True, 64, float(second))
    assert meter.rate == pytest.approx(10.0) and meter.left(None) == 940
    meter.stretch((1, 2))
    assert meter.rate is None
    for second in range(10, 20):
        meter.beat(60 + (second - 10) * 5, 1000, True, 64, float(second))
    assert meter.rates == {(1, 1): pytest.approx(10.0), (1, 2): pytest.approx(5.0)}


def test_a_rung_is_so_many_steps_away() -> None:
    meter = Meter()
    meter.stretch((1, 1))
    for steps in (0, 50, 100, 150):
        meter.beat(steps, 1000, True, 0, steps / 10)
        if steps == 100:
            meter.reported(2, 10.0)
    assert meter.left(6) == 150 and meter.left(100) == 850 and meter.left(None) == 850


def live(number: int, steps: int, rate: float | None) -> Live:
    """A trial whose reports come every ten steps, thirty in all."""
    found = Live(number, until=3)
    if steps:
        found.meter.stretch((1, 1))
        found.meter.beat(steps, 30, True, 0, 0.0)
        found.meter.reported(steps // 10, 0.0)
    if rate is not None:
        found.meter.rates[1, 1] = rate
    return found


def test_a_trial_of_which_nothing_is_known_is_as_the_others() -> None:
    """As long as they are in all, not as what is left of them; at their pace where its own is not known."""
    estimates = Estimates(Profile(), {})
    known, promoted_one, new = live(0, 20, 10.0), live(1, 10, None), live(2, 0, None)
    group = [known, promoted_one, new]
    assert [estimates.trial(one, group).budget_s for one in group] == pytest.approx([1.0, 2.0, 3.0])
