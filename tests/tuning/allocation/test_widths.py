"""Widths of trials: the paper's vectors, and what must hold of any group."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.tuning.optimum import optimum_s
from slurm_hadar.tuning.allocation.allocator import Allocator, Form, TuningPolicy
from slurm_hadar.tuning.allocation.gpus import Gpus
from slurm_hadar.tuning.allocation.pool import GpuType, Limits, parse_pool
from slurm_hadar.tuning.allocation.resize import grow, shrink
from slurm_hadar.tuning.allocation.widths import Grant, lower_bound_s, static_widths, water_level
from slurm_hadar.tuning.simulation.run import simulate
from slurm_hadar.tuning.trials import Trial, height, packing_limit

HALF = Fraction(1, 2)
TOY = tuple(Trial(str(n), budget_s) for n, budget_s in enumerate((4.0, 4.0, 12.0, 30.0)))
FIVE = (GpuType("g", 5),)
PAIRS = Limits(packed=2, widest=4)


def test_the_papers_example() -> None:
    """Fluid, figure 5: five GPUs, two trials on one at most."""
    assert static_widths([4, 4, 12, 30], 5, PAIRS) == [HALF, HALF, 1, 3]
    made = {p: simulate([TOY], FIVE, p, PAIRS, form=Form.PAPER).makespan_s for p in TuningPolicy}
    assert made[TuningPolicy.STATIC] == 12.0 and made[TuningPolicy.ONE_EACH] == 30.0


def test_ours_is_no_worse_on_the_papers_example() -> None:
    assert simulate([TOY], FIVE, TuningPolicy.STATIC, PAIRS).makespan_s <= 12.0
    fluid = simulate([TOY], FIVE, TuningPolicy.FLUID, PAIRS)
    assert fluid.makespan_s <= 10.0 and fluid.resizes > 0


def test_what_a_floor_leaves_idle_is_used() -> None:
    """Five equal trials on eight GPUs have a width of 1 each by the paper's formula, and three GPUs nothing to do."""
    equal = [Trial(str(n), 10.0, alpha=1.2) for n in range(5)]
    assert sum(static_widths([10.0] * 5, 8, PAIRS)) == 5
    widths = [grant.width for grant in water_level(equal, (GpuType("g", 8),), PAIRS).grants if grant]
    assert sorted(widths) == [1, 1, 2, 2, 2]


def test_long_trials_go_to_fast_types() -> None:
    pool = (GpuType("slow", 2, 0.5), GpuType("fast", 2))
    granted = water_level([Trial("short", 5.0), Trial("long", 40.0)], pool, PAIRS).grants
    assert granted[1] is not None and granted[1] == Grant("fast", Fraction(2))
    assert granted[0] is not None and granted[0].gpu_type == "slow"


def test_a_group_that_packing_slows_unlike_is_not_packed() -> None:
    """Most would share a GPU for little, and the longest for much: by the group's mean four share it, and nobody ever
    has the whole of it. Who is resized later begins on a part, as long as a resize takes less than all of it."""
    one, limits = (GpuType("g", 1),), Limits(packed=4, widest=1)
    group = [Trial(str(n), 1.0, alpha=1.1) for n in range(11)] + [Trial("long", 169.0, alpha=2.9)]
    assert [water_level(group, one, limits, resize_s).part for resize_s in (0.0, 1e6)] == [HALF, Fraction(1)]
    alone = simulate([group], one, TuningPolicy.ONE_EACH, limits).makespan_s
    for policy in (TuningPolicy.STATIC, TuningPolicy.FLUID):
        assert simulate([group], one, policy, limits, 1e6).makespan_s == pytest.approx(alone) == 180.0


def test_few_trials_have_large_parts() -> None:
    """Four would gain by sharing the GPU, but there are two of them: with a quarter each they would be as slow as
    four."""
    pair = [Trial(str(n), 10.0, alpha=1.2) for n in range(2)]
    assert simulate([pair], (GpuType("g", 1),), TuningPolicy.FLUID, Limits(4, 1)).makespan_s == pytest.approx(12.0)


def test_two_of_unlike_length_take_turns_where_nobody_is_resized() -> None:
    pair = [Trial("short", 1.0, alpha=1.8), Trial("long", 10.0, alpha=1.8)]
    assert simulate([pair], (GpuType("g", 1),), TuningPolicy.STATIC, PAIRS).makespan_s == pytest.approx(11.0)


def test_a_group_that_gains_by_packing_is_packed() -> None:
    """GPUs that a wide trial has had are others' after it: without them packing would look worse than it is."""
    budgets = (1.0, 1.0, 1.0, 1.0, 1.88, 1.0, 8.64, 1.0, 1.96, 1.0)
    group = [Trial(str(n), budget_s, alpha=1.5 if n else 1.4, beta=1.02) for n, budget_s in enumerate(budgets)]
    made = {p: simulate([group], (GpuType("g", 3),), TuningPolicy.STATIC, Limits(p, 2)).makespan_s for p in (1, 3)}
    assert made[3] == pytest.approx(5.9064) and made[1] == 8.64


@pytest.mark.parametrize(
    ("iteration_s", "limit"),
    [((1.0,), 1), ((1.0, 1.0, 1.0), 3), ((1.0, 1.9, 2.7), 3), ((1.0, 2.1), 1), ((1.0, 1.5, 2.4), 2)],
)
def test_the_packing_limit(iteration_s: tuple[float, ...], limit: int) -> None:
    """As long as one more trial on the GPU brings more iterations in all."""
    assert packing_limit(iteration_s) == limit


def test_resizes_must_pay_for_themselves() -> None:
    assert grow(10.0, 5.0, 4.9) and not grow(10.0, 5.0, 5.0)
    assert shrink(10.0, 15.0, 4.9, 2, 1) and not shrink(10.0, 15.0, 5.0, 2, 1)


def test_heights() -> None:
    trial = Trial("t", 12.0, alpha=1.5, beta=1.1)
    assert [height(trial, w) for w in (HALF, Fraction(1), Fraction(3))] == pytest.approx([18.0, 12.0, 4.0 * 1.21])


@st.composite
def groups(draw: st.DrawFn, most: int = 12) -> tuple[list[Trial], tuple[GpuType, ...], Limits]:
    count = draw(st.integers(1, most))
    budgets = draw(st.lists(st.floats(0.1, 1000.0), min_size=count, max_size=count))
    alpha, beta = draw(st.floats(1.0, 1.9)), draw(st.floats(1.0, 1.2))
    trials = [Trial(str(n), budget_s, alpha, beta) for n, budget_s in enumerate(budgets)]
    slow = draw(st.integers(0, 4))
    pool = (
        GpuType("fast", draw(st.integers(1, 4))),
        *([GpuType("slow", slow, draw(st.floats(0.1, 1.0)))] if slow else []),
    )
    return trials, pool, Limits(draw(st.integers(1, 4)), draw(st.integers(1, 4)))


@given(groups(), st.sampled_from(TuningPolicy), st.sampled_from(Form), st.sampled_from((0.0, 5.0)))
def test_every_trial_ends_and_nothing_beats_the_bound(case: Any, policy: Any, form: Any, resize_s: float) -> None:
    trials, pool, limits = case
    made = simulate([trials], pool, policy, limits, resize_s, form)
    assert made.lower_bound_s * (1 - 1e-6) <= made.makespan_s < float("inf")
    assert 0 < made.gpu_use <= 1 + 1e-9


@given(groups(), st.floats(0.0, 60.0))
def test_resizes_make_nobody_later(case: Any, resize_s: float) -> None:
    """Whatever a resize costs: who gives GPUs away that nobody waits for does not become the last."""
    trials, pool, limits = case

    def fluid_s() -> float:
        return simulate([trials], pool, TuningPolicy.FLUID, limits, resize_s).makespan_s

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Allocator, "resize", lambda _self: [])
        never_s = fluid_s()
    assert fluid_s() <= never_s * (1 + 1e-6)


@given(groups(), st.sampled_from(TuningPolicy), st.sampled_from((0.0, 5.0)))
def test_names_and_units_are_nothing_to_it(case: Any, policy: TuningPolicy, resize_s: float) -> None:
    trials, pool, limits = case
    others = [replace(t, trial_id=f"z{len(trials) - n}", budget_s=1024 * t.budget_s) for n, t in enumerate(trials)]
    renamed = [replace(t, name=f"y{len(pool) - n}") for n, t in enumerate(pool)]
    made = simulate([trials], pool, policy, limits, resize_s)
    other = simulate([others], renamed, policy, limits, 1024 * resize_s)
    assert other.makespan_s == pytest.approx(1024 * made.makespan_s) and other.resizes == made.resizes


@given(groups())
def test_grants_fit_into_the_pool(case: Any) -> None:
    """Within the widest that is allowed; somebody starts, and nobody waits while a GPU of the fastest type is free."""
    trials, pool, limits = case
    granted = water_level(trials, pool, limits).grants
    gpus = Gpus(pool, limits.packed)
    for trial, grant in zip(trials, granted, strict=True):
        if grant is not None:
            assert gpus.take(trial.trial_id, grant) and grant.width <= limits.widest
    assert any(granted)
    if None in granted:
        assert not gpus.take("another", Grant("fast", Fraction(1)))


@given(groups(most=4))
def test_no_worse_than_twice_the_best_without_resizes(case: Any) -> None:
    trials, pool, limits = case
    made = simulate([trials], pool, TuningPolicy.STATIC, limits).makespan_s
    best_s = optimum_s(trials, pool, limits, made)
    assert lower_bound_s(trials, pool, limits) * (1 - 1e-6) <= best_s <= made <= 2 * best_s


def test_a_pool_is_read() -> None:
    assert parse_pool("v100:4,k80:2", {"v100": 2.0, "k80": 0.5}) == (GpuType("v100", 4, 1.0), GpuType("k80", 2, 0.25))


@pytest.mark.parametrize("policy", list(TuningPolicy))
@pytest.mark.parametrize(("longest_s", "shortest_s"), [(3e6, 0.011), (1e9, 1.3), (1e9, 1e-9)])
def test_trials_of_very_unequal_length_end(policy: TuningPolicy, longest_s: float, shortest_s: float) -> None:
    """What is left of a short one by rounding is too little to move the clock."""
    trials = [Trial("a", longest_s), *(Trial(name, shortest_s) for name in "bcde")]
    made = simulate([trials], [GpuType("v100", 1, 1.0)], policy, Limits(packed=1))

    assert made.makespan_s == pytest.approx(longest_s, rel=1e-5)
