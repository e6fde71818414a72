"""The reconstruction without our additions, which the results are compared with."""

from __future__ import annotations

import pytest

from benchmarks.serving.plain import Plain
from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.policy import Setup
from slurm_hadar.serving.scheduling.request import Request


@pytest.mark.parametrize(
    ("due_s", "size"),
    [(30.0, 16), (7.0, 16), (6.9, 8), (3.7, 4), (1.0, 1), (0.9, 0)],  # of 16 in 7 s, of 8 in 3.8, of 4 in 2.2
)
def test_as_many_as_are_in_time_go_together(due_s: float, size: int) -> None:
    """Of 20 that take 1 s each alone: the more, the more of them in a second."""
    plain = Plain(Setup(BatchLaw.linear(0.6, 16), 30.0, {"a": [1.0]}))
    for number in range(20):
        plain.arrive(Request(number, "a", 0.0, due_s), 0.0)

    found = plain.propose(0.0, 1.0)

    assert (len(found.requests) if found else 0) == size


def test_a_long_one_is_left_out_of_a_batch_of_short_ones() -> None:
    """3 short ones take 1.8 s together and 9 s with the long one, which is in time in either way."""
    plain = Plain(Setup(BatchLaw.linear(0.6, 16), 100.0, {"short": [1.0], "long": [5.0]}))
    for number in range(4):
        plain.arrive(Request(number, "short" if number else "long", 0.0, 100.0), 0.0)

    found = plain.propose(0.0, 1.0)

    assert found is not None
    assert {r.application for r in found.requests} == {"short"}
