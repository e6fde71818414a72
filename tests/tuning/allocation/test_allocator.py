"""Who gets which GPUs as trials come and go, and nodes too."""

from __future__ import annotations

from fractions import Fraction

from slurm_hadar.tuning.allocation.allocator import Allocator
from slurm_hadar.tuning.allocation.pool import GpuType, Limits
from slurm_hadar.tuning.allocation.widths import water_level, within
from slurm_hadar.tuning.trials import Trial

POOL = (GpuType("g", 4),)


def test_widths_divide_the_batch() -> None:
    """Three GPUs cannot share 32 samples; one that is made for one GPU gets one."""
    widths = [g.width for g in water_level([Trial("a", 100.0, batch=32)], (GpuType("g", 3),), Limits(1, 4)).grants if g]
    assert widths == [2]
    (grant,) = water_level([Trial("a", 100.0, batch=1)], POOL, Limits(2, 4)).grants
    assert grant is not None and grant.width <= 1


def test_within_a_deadline_the_shortest_come_first() -> None:
    trials = [Trial("long", 1000.0, batch=1), Trial("a", 10.0), Trial("b", 12.0), Trial("c", 11.0), Trial("d", 13.0)]
    grants = within(trials, POOL, Limits(1, 1), deadline_s=20.0).grants
    assert grants[0] is None and all(grants[1:])


def test_all_at_once_where_that_ends_sooner() -> None:
    """Twenty-seven almost equal trials, four on each of eight GPUs: none waits for another round."""
    trials = [Trial(str(n), 300.0 + n, alpha=1.03, batch=1) for n in range(27)]
    assert all(water_level(trials, (GpuType("g", 8),), Limits(4, 1)).grants)


def test_another_node_with_gpus_as_fast_does_as_well() -> None:
    """Widths do not know who is where: what waits for a node whose GPUs are taken starts on its like."""
    allocator = Allocator((GpuType("v100@a", 2), GpuType("v100@b", 2)), Limits(1, 1))
    allocator.submit([Trial(str(n), 10.0, batch=1) for n in range(4)], 0.0)
    on = {run.trial.trial_id: run.grant.gpu_type for run in allocator.start()}
    for trial in [name for name, kind in on.items() if kind == "v100@a"]:
        allocator.leave(trial)
    allocator.submit([Trial("new", 5.0, batch=1), Trial("newer", 5.0, batch=1)], 1.0)
    assert {run.grant.gpu_type for run in allocator.start()} == {"v100@a"} and not allocator.waiting


def test_a_change_in_place_is_no_restart() -> None:
    """Who is left alone on its GPU has all of it; who must move to grow is started anew."""
    allocator = Allocator((GpuType("g", 1),), Limits(2, 1), resize_s=1e9)
    allocator.submit([Trial("a", 10.0, 1.3), Trial("b", 20.0, 1.3)], 0.0)
    assert {run.grant.width for run in allocator.start()} == {Fraction(1, 2)}
    allocator.leave("a")
    ((run, anew),) = allocator.resize()
    assert run.trial.trial_id == "b" and run.grant.width == 1 and not anew
    assert allocator.resize(fixed={"b"}) == []


def test_fewer_on_a_gpu_from_now_on() -> None:
    allocator = Allocator((GpuType("g", 2),), Limits(2, 1))
    allocator.submit([Trial(str(n), 10.0, 1.1) for n in range(4)], 0.0)
    assert len(allocator.start()) == 4
    allocator.pack_no_more_than(1)
    allocator.leave("0")
    allocator.submit([Trial("new", 10.0, 1.1)], 1.0)
    assert not [run for run in allocator.start() if len(allocator.gpus.places("new")) and run.grant.width < 1]


def test_a_node_that_is_lost_takes_its_trials_only() -> None:
    """Those on it have nothing any more, and wait for what is left; the others stay where they are."""
    pool = (GpuType("v100@a", 2), GpuType("p100@b", 2, 0.5))
    allocator = Allocator(pool, Limits(1, 1))
    allocator.submit([Trial(str(n), 10.0, batch=1) for n in range(4)], 0.0)
    on = {run.trial.trial_id: run.grant.gpu_type for run in allocator.start()}
    places = {name: allocator.gpus.places(name) for name in on}
    lost = allocator.change_pool((GpuType("p100@b", 2),))
    assert set(lost) == {name for name, kind in on.items() if kind == "v100@a"} and len(lost) == 2
    assert all(allocator.gpus.places(name) == (() if name in lost else places[name]) for name in on)
    assert all(run.speed == 1.0 for run in allocator.running.values())
    allocator.submit([Trial(name, 5.0, batch=1) for name in lost], 1.0)
    assert allocator.start() == []
    assert allocator.change_pool((GpuType("p100@b", 2), GpuType("v100@c", 2))) == []
    allocator.submit([], 2.0)
    assert {run.grant.gpu_type for run in allocator.start()} == {"v100@c"}


def test_what_waits_is_judged_by_what_is_known_now() -> None:
    """Submitted once more it waits once, with its new length."""
    allocator = Allocator(POOL, Limits(1, 4))
    allocator.submit([Trial("a", 60.0)], 0.0)
    allocator.submit([Trial("a", 1.0)], 0.0)
    assert [trial.budget_s for trial, _ in allocator.waiting] == [1.0]
