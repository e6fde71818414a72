"""How many workers there should be."""

from __future__ import annotations

import pytest

from slurm_hadar.errors import ConfigError
from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.policy import Setup
from slurm_hadar.serving.scheduling.registry import Name
from slurm_hadar.serving.simulation.scaling import Bounds, scaling_of, wanted_workers
from slurm_hadar.serving.trace import TracedRequest

BOUNDS = Bounds(1, 4, 0.9)


@pytest.mark.parametrize(
    ("rates", "now", "wanted"),
    [
        ((0.5, 0.92, 0.99, 1.0), 1, 2),  # the fewest that reach the goal
        ((0.92, 0.99, 1.0, 1.0), 2, 2),  # one would only just do: it stays
        ((0.96, 0.99, 1.0, 1.0), 2, 1),  # one would do well
        ((0.96, 0.99, 1.0, 1.0), 4, 1),
        ((0.5, 0.6, 0.602, 0.603), 1, 2),  # what cannot be reached is not paid for
        ((0.1, 0.2, 0.3, 0.4), 2, 4),
    ],
)
def test_as_many_as_reach_the_goal(rates: tuple[float, ...], now: int, wanted: int) -> None:
    assert wanted_workers(lambda n: rates[n - 1], now, BOUNDS).wanted == wanted


def test_what_came_of_late_is_played_again() -> None:
    """Two requests of 50 ms in each 60 ms: one worker is too few, two do, however many there are now."""
    seen = [TracedRequest(0.03 * n, "a", 0.05, 0.03 * n + 0.07, "m") for n in range(100)]
    setups = {"m": Setup(BatchLaw.linear(0.0, 1), 0.07, {"a": [0.05] * 20})}

    for now in (1, 2, 4):
        found = scaling_of(seen, Name.ORLOJ, setups, now, BOUNDS)
        assert found.wanted == 2
        assert found.expected[1] < 0.7
        assert found.expected[2] == 1.0


def test_nobody_needs_no_more_than_the_least() -> None:
    assert scaling_of([], Name.ORLOJ, {}, 3, BOUNDS).wanted == 1


def test_bounds_are_read() -> None:
    assert Bounds.read("2", 0.9) == Bounds(2, 2, 0.9)
    assert Bounds.read("1-4", 0.9) == BOUNDS
    for text in ("", "a", "0", "4-1", "1-", "1-300", "-3"):
        with pytest.raises(ConfigError, match="--workers"):
            Bounds.read(text, 0.9)
