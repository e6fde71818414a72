"""Who of those that wait for any part of a GPU starts now, and where."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.tuning.allocation.allocator import Allocator, TuningPolicy
from slurm_hadar.tuning.allocation.dispatch import dispatch
from slurm_hadar.tuning.allocation.pool import GpuType, Limits
from slurm_hadar.tuning.allocation.widths import Grant
from slurm_hadar.tuning.simulation.run import simulate
from slurm_hadar.tuning.trials import Trial

UNLIKE = (GpuType("fast", 1), GpuType("slow", 1, 0.25))
SECONDS = st.floats(0.1, 1000.0)
FREE = st.lists(st.just(0.0) | SECONDS, max_size=4)


@pytest.mark.parametrize(
    ("small_s", "free_in_s", "chosen"),
    [
        ([8.0], [[0.0], [0.0]], [0]),
        ([8.0], [[25.0], [0.0]], [1]),  # 32 s there, 33 s where it is fast
        ([8.0], [[23.0], [0.0]], [None]),
        ([8.0, 1.0], [[23.0], [0.0]], [None, 1]),  # who waits has the fast one
        ([8.0, 8.0], [[0.0, 0.0], []], [0, 0]),
        ([8.0], [[3.0], [9.0]], [None]),
        ([8.0], [[], []], [None]),
        ([], [[0.0], [0.0]], []),
    ],
)
def test_each_goes_where_it_ends_first(
    small_s: list[float], free_in_s: list[list[float]], chosen: list[int | None]
) -> None:
    """The first type is four times as fast as the second."""
    assert dispatch(small_s, [1.0, 0.25], free_in_s) == {n: t for n, t in enumerate(chosen) if t is not None}


def test_no_more_trials_are_asked_for_than_matter() -> None:
    """Thousands may wait at each end of one."""
    waiting = iter([1.0] * 1000)
    assert dispatch(waiting, [1.0], [[0.0, 5.0]]) == {0: 0}
    assert len(list(waiting)) == 999


@given(st.lists(SECONDS, max_size=12), st.lists(st.tuples(st.floats(0.05, 1.0), FREE), min_size=1, max_size=4))
def test_only_what_is_free_is_given_and_the_first_has_the_best(
    small_s: list[float], types: list[tuple[float, list[float]]]
) -> None:
    speeds, free_in_s = [speed for speed, _ in types], [free for _, free in types]

    chosen = dispatch(small_s, speeds, free_in_s)

    for n, free in enumerate(free_in_s):
        assert list(chosen.values()).count(n) <= free.count(0.0)
    if small_s and any(0.0 in free for free in free_in_s):
        best_s = min(at + small_s[0] / speed for speed, free in types for at in free)
        if 0 not in chosen:
            assert all(small_s[0] / speed >= best_s for speed, free in types if 0.0 in free)
        else:
            assert small_s[0] / speeds[chosen[0]] == pytest.approx(best_s)


def test_a_long_one_waits_for_the_fast_type_and_a_short_one_does_not() -> None:
    """Both wait; the slow GPU is free. The long one would be there until 160 s, and ends at 50 s."""
    allocator = Allocator(UNLIKE, Limits(1, 1))
    allocator.submit([Trial("first", 10.0)], 0.0)
    (first,) = allocator.start()
    allocator.waiting = [(Trial("long", 40.0), None), (Trial("short", 4.0), None)]
    (short,) = allocator.start()
    assert (first.grant.gpu_type, short.trial.trial_id, short.grant.gpu_type) == ("fast", "short", "slow")
    allocator.leave("first")
    (long_,) = allocator.start()
    assert (long_.trial.trial_id, long_.grant.gpu_type) == ("long", "fast")


def test_gpus_that_are_granted_to_others_are_theirs() -> None:
    """One waits for both GPUs of a type, of which one is taken: nobody else takes the other one's place."""
    allocator = Allocator((GpuType("a", 2),), Limits(1, 2))
    allocator.waiting = [(Trial("first", 10.0), Grant("a", Fraction(1)))]
    (first,) = allocator.start()
    more = (Trial("more", 9.0), None)
    allocator.waiting = [(Trial("wide", 30.0), Grant("a", Fraction(2))), more]
    assert allocator.start() == [] and len(allocator.waiting) == 2
    allocator.waiting = [more]
    assert [run.trial.trial_id for run in allocator.start()] == ["more"]
    allocator.leave("more")
    allocator.leave(first.trial.trial_id)
    allocator.submit([Trial("alone", 10.0)], 0.0)
    allocator.start()
    assert allocator.running["alone"].grant.width == 2
    allocator.waiting = [more]
    assert allocator.start() == [] and allocator.waiting


def test_many_trials_end_sooner_when_the_long_ones_wait_for_fast_gpus() -> None:
    """Whole slow GPUs for the long ones would hold up all others: no more than a tenth above the lower bound."""
    pool = (GpuType("fast", 2), GpuType("slow", 8, 0.2))
    trials = [Trial(str(n), 10.0 + 190.0 * n / 80, 1.15, 1.02) for n in range(81)]

    played = simulate([trials], pool, TuningPolicy.FLUID, Limits(4, 4), 1.0)

    assert played.makespan_s < 1.1 * played.lower_bound_s


@given(
    st.lists(st.tuples(st.floats(1.0, 500.0), st.floats(1.0, 2.0), st.floats(1.0, 1.5)), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(1, 4), st.floats(0.1, 1.0)), min_size=1, max_size=3),
    st.integers(1, 4),
    st.integers(1, 4),
)
def test_nobody_waits_for_ever(
    trials: list[tuple[float, float, float]], types: list[tuple[int, float]], packed: int, widest: int
) -> None:
    """Whatever there is: all run, and in the end nobody holds anything."""
    pool = [GpuType(str(n), count, speed) for n, (count, speed) in enumerate(types)]
    allocator = Allocator(pool, Limits(packed, widest), 1.0)
    allocator.submit([Trial(str(n), *t) for n, t in enumerate(trials)], 0.0)
    ended = 0
    while allocator.start() or allocator.running:
        run = min(allocator.running.values(), key=lambda r: r.left_s / r.rate)
        passed_s = run.left_s / run.rate
        for other in allocator.running.values():
            other.left_s -= other.rate * passed_s
        allocator.leave(run.trial.trial_id)
        ended += 1
        allocator.start()
        allocator.resize()
        assert all(other.grant.width >= Fraction(1, packed) for other in allocator.running.values())
    assert ended == len(trials) and not allocator.waiting
