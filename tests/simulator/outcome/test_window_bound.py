"""The bound on the measured jobs of a trace against the best of all schedules of small ones, found by trying them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.simulator.run import SimOptions, bounds_of
from slurm_hadar.simulator.traces import Trace, TraceJob

RATES = {"v100": 2, "k80": 1}  # one GPU of each
CLUSTER = "v100:1x1,k80:1x1"
MEASURED = (1, 3)

JOBS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=4, max_size=4).map(sorted)


def best_sum(jobs: Sequence[tuple[int, int]], counted: range) -> float:
    """The least sum of completion times of the counted jobs: (arrival, steps) each. In every second each GPU has any
    job or none, until those that count are done. An end within a second counts as what it is."""

    @cache
    def least(second: int, left: tuple[int, ...]) -> float:
        if not any(left[j] for j in counted):
            return 0.0
        there = [j for j, steps in enumerate(left) if steps > 0 and jobs[j][0] <= second]
        if not there:
            return least(second + 1, left)
        found = []
        for choice in itertools.product((*there, -1), repeat=len(RATES)):
            if choice[0] == choice[1] or set(choice) == {-1}:
                continue
            after, ends = list(left), 0.0
            for job, rate in zip(choice, RATES.values(), strict=True):
                if job >= 0:
                    after[job] = max(0, left[job] - rate)
                    if after[job] == 0 and job in counted:
                        ends += second + left[job] / rate - jobs[job][0]
            found.append(ends + least(second + 1, tuple(after)))
        return min(found)

    return least(0, tuple(steps for _, steps in jobs))


def bound_of(jobs: Sequence[tuple[int, int]], measure: tuple[int, int]) -> float:
    trace = [
        TraceJob(str(i), float(at), "", None, 1, float(steps), steps_per_s={t: float(r) for t, r in RATES.items()})
        for i, (at, steps) in enumerate(jobs)
    ]
    return bounds_of(Trace("t", "csv", tuple(trace)), SimOptions(CLUSTER, measure=measure))["avg_jct_s"]


@settings(deadline=None, max_examples=6)
@given(JOBS)
def test_no_schedule_beats_the_bound_of_a_window(jobs: list[tuple[int, int]]) -> None:
    """With other jobs before and after the measured ones: the best schedule of all is as good for these as the best of
    them alone, and no better than the bound."""
    ours = range(*MEASURED)
    best, alone = best_sum(jobs, ours), best_sum([jobs[j] for j in ours], range(len(ours)))

    assert best == alone
    assert bound_of(jobs, MEASURED) <= best / len(ours) + 1e-6


def test_the_bound_of_a_window_counts_who_must_wait() -> None:
    """Three equal jobs at once on two GPUs: more than the time of each alone on the faster, no more than the best. The
    second one goes over to the fast GPU when that comes free, then the third one."""
    jobs = [(0, 4), (0, 4), (0, 4), (0, 4)]

    bound, best = bound_of(jobs, (0, 3)), best_sum(jobs, range(3)) / 3

    assert best == pytest.approx((2 + 3 + 4.5) / 3) and 2.2 < bound <= best
