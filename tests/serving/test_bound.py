"""The benchmark's upper bound: never under what trying all schedules finds, nor under what a scheduler reaches."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.bound import most_in_time
from slurm_hadar.serving.scheduling.law import BatchLaw
from slurm_hadar.serving.scheduling.registry import Name
from slurm_hadar.serving.simulation.run import ServeOptions, simulate
from slurm_hadar.serving.trace import TracedRequest, drawn, with_slo


def best(trace: list[TracedRequest], law: BatchLaw, free_s: float = 0.0) -> int:
    """By trying all batches of all of them, one behind the other."""
    most = 0
    for size in range(1, min(law.largest, len(trace)) + 1):
        for batch in itertools.combinations(trace, size):
            start_s = max(free_s, *(r.arrival_s for r in batch))
            end_s = start_s + max(r.exec_s for r in batch) * law.factors[size]
            if all(end_s <= r.deadline_s for r in batch):
                most = max(most, size + best([r for r in trace if r not in batch], law, end_s))
    return most


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 16)), min_size=1, max_size=5),
    st.integers(1, 30),
    st.floats(0.0, 2 / 3),
    st.integers(1, 4),
)
def test_no_schedule_is_better(drawn_: list[tuple[int, int]], span: int, g: float, largest: int) -> None:
    trace = [TracedRequest(float(at), str(n), float(takes), at + span) for n, (at, takes) in enumerate(drawn_)]

    assert most_in_time(trace, g, largest) >= best(trace, BatchLaw.linear(g, largest))


def test_it_is_reached_where_nothing_can_share_a_batch() -> None:
    """Three of 10 that come together and are due after 25: two, and no third; all three in one batch of 22."""
    trace = [TracedRequest(0.0, str(n), 10.0, 25.0) for n in range(3)]
    assert (most_in_time(trace, 0.6, 1), best(trace, BatchLaw.linear(0.6, 1))) == (2, 2)
    assert (most_in_time(trace, 0.6, 3), best(trace, BatchLaw.linear(0.6, 3))) == (3, 3)
    assert most_in_time([TracedRequest(0.0, "a", 10.0, 9.0)], 0.6, 1) == 0


def test_what_it_does_not_hold_for_is_refused() -> None:
    with pytest.raises(ValueError, match="g up to"):
        most_in_time([], 0.7, 16)
    with pytest.raises(ValueError, match="order of arrivals"):
        most_in_time([TracedRequest(0.0, "a", 1.0, 9.0), TracedRequest(1.0, "a", 1.0, 8.0)], 0.6, 16)


@pytest.mark.parametrize("name", [Name.ORLOJ, Name.EDF])
def test_no_scheduler_is_better(name: Name) -> None:
    trace = with_slo(drawn("bursts:load=0.7,seconds=20,seed=5"), "1.2xP99")
    reached = simulate(trace, name, ServeOptions(BatchLaw.linear(0.6, 16))).finish_rate

    assert reached <= most_in_time(trace, 0.6, 16) / len(trace) <= reached + 0.1
