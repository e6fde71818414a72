"""The arithmetic of stretches, against a merge of all turns."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.sharing.simulation import stretch
from slurm_hadar.sharing.simulation.stretch import Run, changes, start_ns, starts_within

run_lists = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(0, 25), st.integers(1, 9)), min_size=1, max_size=5
).map(lambda drawn: [Run(i, *values) for i, values in enumerate(drawn)])


def _merged(runs: list[Run]) -> list[tuple[int, int]]:
    """All starts in their order: key, and whose."""
    return sorted((run.passed + n * run.stride, run.order) for run in runs for n in range(run.left))


@given(run_lists, st.integers(0, 60))
def test_a_start_comes_after_all_before_it(runs: list[Run], number: int) -> None:
    run = runs[number % len(runs)]
    number %= run.left
    starts = _merged(runs)

    before = starts[: starts.index((run.passed + number * run.stride, run.order))]

    assert start_ns(runs, run, number) == sum(runs[order].iteration_ns for _, order in before)


@given(run_lists, st.integers(0, 500))
def test_the_starts_within_a_time_are_the_most_that_end_in_it(runs: list[Run], work: int) -> None:
    counts, level, over = starts_within(runs, work)

    starts = _merged(runs)
    assert counts == [sum(o == run.order and key < level for key, o in starts) for run in runs]
    assert over == work - sum(n * run.iteration_ns for n, run in zip(counts, runs, strict=True)) >= 0
    if sum(counts) < len(starts):
        on_level = [o for key, o in starts if key == level]
        assert over < sum(runs[o].iteration_ns for o in on_level)


@pytest.mark.parametrize("chunk", [1, 3, 1 << 22])
@given(runs=run_lists, level=st.integers(0, 120))
def test_changes_of_turns_are_counted(chunk: int, runs: list[Run], level: int) -> None:
    """For turns below any level, whatever chunks they are counted in."""
    for run in runs:
        run.left = level + 1  # none ends before
    starts = [order for key, order in _merged(runs) if key < level]
    counts = [starts.count(run.order) for run in runs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stretch, "_CHUNK", chunk)
        found, first, last = changes(runs, counts)

    assert found == sum(a != b for a, b in pairwise(starts))
    assert (first, last) == ((starts[0], starts[-1]) if starts else (None, None))


@given(run_lists, st.integers(0, 120))
def test_changes_are_the_same_in_any_unit(runs: list[Run], level: int) -> None:
    """Also where strides have more than 64 bits, as those of classes do whose iterations take months."""
    for run in runs:
        run.left = level + 1
    counts = [run.below(level, 0) for run in runs]
    finer = [replace(run, passed=run.passed << 62, stride=run.stride << 62) for run in runs]

    assert changes(finer, counts) == changes(runs, counts)
