"""A pool's queue as it is served: who waits, how long, and whom one more gang delays."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.policies.hadar.lookahead.line import Line


def places(run_s: Any, gpus: Any, fluid: Any = False, row: Any = -1) -> Any:
    """Of one of the jobs that take so many seconds, the last if no other is meant: seconds that it waits, and that all
    others wait for it. Their rows are their places in ``run_s``, of which the last is not in the queue."""
    area, row = np.array(run_s, float), np.arange(len(run_s))[[row]]
    line = Line.of(np.arange(len(run_s) - 1), area, np.ones(len(run_s)), gpus)
    at = (line.as_fluid if fluid else line.as_they_fit)(row, area[row])
    return (at.before / gpus + at.late_s).item(), (at.near + at.behind * area[row] / gpus).item()


def total_wait_s(run_s: Any, gpus: Any) -> Any:
    """Of jobs of one GPU, shortest first: each waits by the formula in the module's docstring. Plain loops."""
    order, total = sorted(run_s), 0.0
    for i in range(len(order)):
        x = i + 1 - gpus
        total += sum(order[:x]) / gpus + (1 - 1 / gpus) / 2 * order[x - 1] if x > 0 else 0.0
    return total


@given(st.lists(st.floats(1, 1e4), min_size=1, max_size=8), st.integers(0, 20))
def test_nobody_waits_where_all_fit(run_s: Any, spare: Any) -> None:
    """As many jobs as GPUs, or fewer: the fluid has them wait for each other."""
    assert places(run_s, len(run_s) + spare) == (0.0, 0.0)
    assert places([10.0, 20.0], 8, fluid=True) == (10.0 / 8, 0.0)
    assert places([20.0, 10.0], 8, fluid=True) == (0.0, 10.0 / 8)


@pytest.mark.parametrize("gpus", [1, 2, 5, 16])
def test_equal_jobs_of_one_gpu_wait_for_as_many_as_run_before_them(gpus: Any) -> None:
    """The i-th starts with the (i // gpus)-th wave; by the formula each wave waits as long in all."""
    for wave in range(4):
        waits = [places([60.0] * i + [60.0 + 1e-9], gpus)[0] for i in range(wave * gpus, (wave + 1) * gpus)]
        assert sum(waits) == pytest.approx(60.0 * wave * gpus, abs=1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(1, 1e3), min_size=1, max_size=30), st.integers(1, 8), st.data())
def test_what_a_job_costs_is_by_how_much_all_wait_longer(run_s: Any, gpus: Any, data: Any) -> None:
    """Up to the half of a run time that is lost where the queue begins to wait; and it costs the same where it is one
    of the queue already."""
    with_it, without = total_wait_s(run_s, gpus), total_wait_s(run_s[:-1], gpus)
    cost = sum(places(run_s, gpus))
    assert cost == pytest.approx(with_it - without, abs=(1 - 1 / gpus) / 2 * run_s[-1] + 1e-6)
    if len(run_s) > 1:
        row = data.draw(st.integers(0, len(run_s) - 2))
        others = [*run_s[:row], *run_s[row + 1 : -1], run_s[row]]
        assert sum(places(run_s, gpus, row=row)) == pytest.approx(sum(places(others, gpus)), abs=1e-6)


@settings(deadline=None)
@given(st.lists(st.floats(1, 1e3), min_size=2, max_size=20), st.data())
def test_a_fluid_serves_all_together(areas: Any, data: Any) -> None:
    """Each waits for all that is before it and delays all behind it, wherever it is now."""
    row, area = data.draw(st.integers(0, len(areas) - 1)), np.array(areas)
    rest = np.delete(area[:-1], row) if row < len(areas) - 1 else area[:-1]
    ahead, behind = rest[rest < area[row]].sum(), (rest >= area[row]).sum()
    assert places(areas, 8, fluid=True, row=row) == pytest.approx((ahead / 8, behind * area[row] / 8), abs=1e-6)
