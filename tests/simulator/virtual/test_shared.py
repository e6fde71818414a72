"""Several jobs on one virtual GPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.config import GuardSection
from slurm_hadar.errors import ConfigError, TraceError
from slurm_hadar.model import Fork, Plan, Snapshot
from slurm_hadar.policies import registry
from slurm_hadar.policies.base import Policy
from slurm_hadar.simulator.options import SimOptions
from slurm_hadar.simulator.run import _Run, bounds_of, simulate
from slurm_hadar.simulator.traces import Trace, TraceJob, table_csv
from slurm_hadar.simulator.virtual.faults import Faults, Outage
from slurm_hadar.simulator.virtual.jobs import VirtualJob
from slurm_hadar.throughput.colocation import published
from slurm_hadar.throughput.table import reference

Make = Callable[..., Any]
ONE = SimOptions("v100:1x1", restart_s=0.0)
A, B = "a3c", "cyclegan"
KEPT = published()[A, B, "v100"]


def test_each_makes_the_steps_that_the_pair_keeps(job: Make, trace: Make) -> None:
    """Both start at once; when the shorter one ends, the other one has the GPU."""
    jobs = trace(job("1", v100=1, steps=2e4, model=B), job("2", v100=1, steps=1e4, model=A))

    result = simulate(jobs, registry.get("fifo"), replace(ONE, share="beside", slow_down=10.0))

    second, first = (row.completion_s for row in result.jobs)
    assert first == pytest.approx(1e4 / KEPT[0])
    assert second == pytest.approx(first + 2e4 - first * KEPT[1])
    assert result.sharing["pairs"] == 1 and result.sharing["shared_gpu_s"] == pytest.approx(first)
    assert sum(i.end_s - i.start_s for i in result.intervals) == pytest.approx(second)  # of one GPU
    assert result.summary()["gru"] == pytest.approx(1.0)


@pytest.mark.thorough
def test_a_host_that_ends_first_leaves_the_gpu_to_its_guest(job: Make, trace: Make) -> None:
    jobs = trace(job("1", v100=1, steps=1e5, model=B), job("2", 5.0, v100=1, steps=1e6, model=A))

    result = simulate(jobs, registry.get("fifo"), replace(ONE, share="beside", slow_down=10.0))

    start = result.jobs[1].first_start_s
    assert start is not None
    first = start + (1e5 - start) / KEPT[1]
    assert result.jobs[0].completion_s == pytest.approx(first)
    assert result.jobs[1].completion_s == pytest.approx(first + 1e6 - (first - start) * KEPT[0])
    assert result.jobs[1].restarts == 0


class _Watched(Policy):
    """Decides as another one, and keeps what each round was shown of the usage of users."""

    name = "watched"

    def __init__(self, decides: Policy) -> None:
        self._decides = decides
        self.seen: list[tuple[float, dict[str, float]]] = []

    def allocate(self, snapshot: Snapshot) -> Plan:
        self.seen.append((snapshot.time, {u: sum(of.values()) for u, of in snapshot.user_usage.items()}))
        return self._decides.allocate(snapshot)


@pytest.mark.parametrize("share", ["beside", "turns", "halves"])
def test_users_are_charged_for_a_gpu_once(job: Make, trace: Make, share: Any) -> None:
    """As in the live controller: each with its part of it, from when the other one comes until one of them leaves."""
    jobs = trace(
        job("1", v100=1, steps=9e3, model=B, user="ann"),
        job("2", 700.0, v100=1, steps=3e3, model=A, user="bob"),
    )
    policy = _Watched(registry.get("fifo"))

    result = simulate(jobs, policy, replace(ONE, share=share, slow_down=10.0, usage_half_life_s=1e12))

    assert result.sharing["pairs"] == 1
    begun = policy.seen[0][0]
    for now, usage in policy.seen:
        assert sum(usage.values()) == pytest.approx(now - begun, abs=1e-3)
    assert policy.seen[-1][1]["bob"] > 0


def test_by_equal_turns_each_has_half(job: Make, trace: Make) -> None:
    """Which is worth it for a short job behind a long one."""
    jobs = trace(job("1", v100=1, steps=1e5, model=B), *(job(str(n), 5.0, v100=1, steps=1e3, model=A) for n in (2, 3)))

    result = simulate(jobs, registry.get("fifo"), replace(ONE, share="halves"))

    assert result.sharing["pairs"] == 2
    assert result.jobs[0].completion_s == pytest.approx(1e5 + 2e3)
    assert result.jobs[1].completion_s == pytest.approx(360.0 + 2e3)


def test_by_turns_who_is_nearer_to_its_end_has_all_of_them(job: Make, trace: Make) -> None:
    """The long one has run for longer than the short ones take: it waits in memory, and goes on without a restart."""
    short = [job(str(n), 7200.0 + n, v100=1, steps=1e3, model=A) for n in (2, 3)]
    jobs = trace(job("1", v100=1, steps=1e5, model=B), *short)

    result = simulate(jobs, registry.get("fifo"), replace(ONE, share="turns"))

    assert result.sharing["pairs"] == 2 and [row.restarts for row in result.jobs] == [0, 0, 0]
    second, third = (row.completion_s or 0.0 for row in result.jobs[1:])
    assert second == pytest.approx(7560.0 + 1e3)  # from the round that sees it
    assert third - second == pytest.approx(1e3, abs=361.0)
    assert result.jobs[0].completion_s == pytest.approx(1e5 + 2e3)  # the GPU's time is conserved


def test_who_has_just_begun_is_not_passed_over(job: Make, trace: Make) -> None:
    """It accepts twice the time, and has none yet: the turns are equal."""
    jobs = trace(job("1", v100=1, steps=1e5, model=B), job("2", v100=1, steps=1e3, model=A))

    result = simulate(jobs, registry.get("fifo"), replace(ONE, share="turns", unmovable=1.0))

    assert result.jobs[1].completion_s == pytest.approx(2e3)


def test_who_is_stopped_for_another_waits_in_memory(job: Make, trace: Make) -> None:
    """As the policy wants it, but without the restart."""
    jobs = trace(job("1", v100=1, steps=1e5, model=B), job("2", 5.0, v100=1, steps=1e3, model=A))
    dear = replace(ONE, restart_s=1800.0)
    whole, shared = (simulate(jobs, registry.get("srtf"), options) for options in (dear, replace(dear, share="turns")))

    assert [row.restarts for row in whole.jobs] == [1, 0] and [row.restarts for row in shared.jobs] == [0, 0]
    assert shared.jobs[1].completion_s == whole.jobs[1].completion_s == pytest.approx(360.0 + 1e3)
    assert shared.jobs[0].completion_s == pytest.approx(1e5 + 1e3)


@pytest.mark.thorough
@given(
    st.lists(
        st.tuples(st.floats(0, 2e4), st.floats(10, 2e4), st.sampled_from([A, B, "lm"]), st.floats(0.2, 5.0)),
        min_size=2,
        max_size=7,
    ),
    st.sampled_from(["srtf", "fifo", "tiresias", "gavel_las"]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([1.5, 2.0, 4.0]),
)
def test_nobody_is_passed_over_for_longer_than_he_accepts(
    drawn: list[tuple[float, float, str, float]], policy: str, unmovable: float, slow_down: float
) -> None:
    """Every job is done without a step lost, and the sum of what it lost to its company is within what it accepts, if
    it could not be stopped at all."""
    jobs = [
        TraceJob(str(n), at_s, model, 20 if model == "lm" else None, 1, steps, steps_per_s={"v100": 1.0}, weight=weight)
        for n, (at_s, steps, model, weight) in enumerate(sorted(drawn))
    ]
    options = SimOptions("v100:1x2", share="turns", slow_down=slow_down, unmovable=unmovable, restart_s=600.0)
    run = _Run(Trace("t", "drawn", tuple(jobs)), registry.get(policy), options, reference())

    result = run.simulated({}, None)

    assert result.unfinished == {}
    for one in run.setup.jobs:
        assert isinstance(one, VirtualJob)
        assert one.done == pytest.approx(one.total) and one.held_up_s <= one.held_s + 1e-6
        if not one.terms.movable:
            assert one.held_up_s <= (slow_down - 1) * (one.held_s - one.held_up_s) + 1e-3


def test_who_accepts_nothing_is_alone(job: Make, trace: Make) -> None:
    """By the trace's own word, or the simulation's."""
    both = [job(str(n), v100=1, steps=1e4, model=A) for n in (1, 2)]
    unwilling = trace(replace(both[0], slow_down=1.0), replace(both[1], slow_down=10.0))
    whole = simulate(trace(*both), registry.get("fifo"), ONE)

    for jobs, times in ((unwilling, 10.0), (trace(*both), 1.0)):
        shared = simulate(jobs, registry.get("fifo"), replace(ONE, share="beside", slow_down=times))
        assert [r.completion_s for r in shared.jobs] == [r.completion_s for r in whole.jobs]


@pytest.mark.thorough
@given(
    st.sampled_from(sorted({(a, b) for a, b, t in published() if t == "v100"})),
    st.tuples(st.floats(500, 5e4), st.floats(500, 5e4)),
    st.sampled_from(["beside", "halves", "turns"]),
)
def test_two_jobs_are_never_worse_off_for_it(pair: tuple[str, str], steps: tuple[float, float], share: Any) -> None:
    """One GPU: what the rule says of two jobs is exact, so that the sum of their completion times never grows."""
    names = [(name.partition(":")[0], name.partition(":")[2]) for name in pair]
    jobs = [
        TraceJob(str(n), 0.0, model, int(batch) if batch else None, 1, size, steps_per_s={"v100": 1.0})
        for n, ((model, batch), size) in enumerate(zip(names, steps, strict=True))
    ]
    options = replace(ONE, slow_down=100.0)
    whole, shared = (
        simulate(Trace("t", "drawn", tuple(jobs)), registry.get("fifo"), given_)
        for given_ in (options, replace(options, share=share))
    )

    total = [sum(row.jct_s or math.inf for row in result.jobs) for result in (whole, shared)]
    assert total[1] <= total[0] + 1e-3


@given(
    st.lists(
        st.tuples(st.floats(0, 5e3), st.floats(10, 1e4), st.sampled_from([A, B, "lm"]), st.sampled_from([1, 1, 2])),
        min_size=1,
        max_size=7,
    ),
    st.sampled_from(["srtf", "fifo", "tiresias"]),
    st.booleans(),
)
def test_nothing_is_lost_and_nobody_is_slower_than_he_accepts(
    drawn: list[tuple[float, float, str, int]], policy: str, guarded: bool
) -> None:
    """Under any limits of a site every job is done, no sooner than alone and with its steps made."""
    jobs = [
        TraceJob(
            str(n), at_s, model, 20 if model == "lm" else None, workers, steps, steps_per_s={"v100": 1.0}, nodes=(1, 1)
        )
        for n, (at_s, steps, model, workers) in enumerate(sorted(drawn))
    ]
    guard = GuardSection(max_preemptions=1, min_run_s=600.0, max_changed_share=0.5) if guarded else None
    options = SimOptions("v100:2x2", share="beside", slow_down=2.0, guard=guard)

    result = simulate(Trace("t", "drawn", tuple(jobs)), registry.get(policy), options)

    assert result.unfinished == {}
    for row, asked in zip(result.jobs, sorted(jobs, key=lambda j: j.arrival_s), strict=True):
        alone_s = asked.steps
        held_s = sum(row.gpu_s.values()) / asked.workers
        assert row.jct_s is not None and row.jct_s >= alone_s * (1 - 1e-9) - 1e-6
        # at most twice as long as alone, and restarts of 30 s
        assert held_s <= 2.0 * alone_s + 60.0 * (row.restarts + 1)
    gru = result.summary()["gru"]
    assert gru is not None and gru <= 1 + 1e-9


def test_what_is_not_simulated_together_is_refused() -> None:
    for fault in (
        {"fork": Fork.AUTO},
        {"faults": Faults((Outage("v100-1", 1.0, 2.0),))},
        {"self_start_s": 60.0},
    ):
        with pytest.raises(ConfigError, match="leave one of them out"):
            SimOptions(share="beside", **fault)
    with pytest.raises(ConfigError, match="accepted slow-down"):
        SimOptions(share="beside", slow_down=0.5)


def test_no_bounds_are_told_that_two_on_a_gpu_could_beat(job: Make, trace: Make) -> None:
    assert bounds_of(trace(job("1", v100=1)), replace(ONE, share="beside")) == {}


def test_the_column_share_is_read_and_written(job: Make, trace: Make) -> None:
    jobs = trace(*(job(str(n), v100=1, slow_down=times) for n, times in enumerate((None, 1.0, 1.5))))

    again = table_csv.read(table_csv.write(jobs).splitlines(), "t")

    assert [j.slow_down for j in again.jobs] == [None, 1.0, 1.5]


def test_measured_pairs_go_before_published_ones(job: Make, trace: Make) -> None:
    """Also of models of which nothing was published."""
    jobs = trace(job("1", v100=1, steps=2e4, model="x"), job("2", v100=1, steps=1e4, model="y"))
    measured = {("y", "x", "v100"): (0.8, 0.9), ("x", "y", "v100"): (0.9, 0.8)}

    result = simulate(jobs, registry.get("fifo"), replace(ONE, share="beside", pairings=measured))

    assert result.jobs[1].completion_s == pytest.approx(1e4 / 0.8)


def test_many_small_jobs_run_on_one_gpu_at_once(job: Make, trace: Make) -> None:
    """Five that need a fifth of it each lose nothing; by turns without duties it is as if each were alone."""
    small = [job(str(n), v100=1, steps=1e4, model=A, duty=0.2) for n in range(5)]
    options = replace(ONE, share="turns")

    result = simulate(trace(*small), registry.get("fifo"), options)
    large = simulate(trace(*(replace(j, duty=1.0) for j in small)), registry.get("fifo"), options)

    assert [row.completion_s for row in result.jobs] == pytest.approx([1e4] * 5)
    assert result.sharing["shared_gpu_s"] == result.sharing["crowded_gpu_s"] == pytest.approx(1e4)
    assert sum(i.end_s - i.start_s for i in result.intervals) == pytest.approx(1e4)  # of one GPU
    assert "crowded_gpu_s" not in large.sharing and max(r.completion_s or 0.0 for r in large.jobs) >= 5e4 - 1.0


def test_when_the_host_ends_one_of_its_guests_is_the_host_of_the_others(job: Make, trace: Make) -> None:
    """Each makes its steps by the division of the GPU's time among those who are there."""
    jobs = trace(*(job(str(n), v100=1, steps=steps, model=A, duty=0.4) for n, steps in enumerate((1e4, 1.2e4, 3e4))))

    result = simulate(jobs, registry.get("fifo"), replace(ONE, share="turns"))

    first = 1e4 * 0.4 * 3  # each has a third of the time until then
    second = first + 2e3  # and what it wants after that
    assert [row.completion_s for row in result.jobs] == pytest.approx([first, second, second + 1.8e4])
    assert [row.restarts for row in result.jobs] == [0, 0, 0]
    assert result.sharing["shared_gpu_s"] == pytest.approx(second)
    assert result.sharing["crowded_gpu_s"] == pytest.approx(first)


@pytest.mark.thorough
@given(
    st.lists(
        st.tuples(
            st.floats(0, 2e4), st.floats(10, 2e4), st.sampled_from([A, B]), st.sampled_from([0.05, 0.2, 0.35, 0.7, 1.0])
        ),
        min_size=3,
        max_size=9,
    ),
    st.sampled_from(["srtf", "fifo", "tiresias", "hadar"]),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.booleans(),
)
def test_with_duties_every_job_is_done_and_no_gpu_gives_more_time_than_it_has(
    drawn: list[tuple[float, float, str, float]], policy: str, unmovable: float, guarded: bool
) -> None:
    jobs = [
        TraceJob(str(n), at_s, model, None, 1, steps, steps_per_s={"v100": 1.0}, duty=duty)
        for n, (at_s, steps, model, duty) in enumerate(sorted(drawn))
    ]
    guard = GuardSection(max_preemptions=1, min_run_s=600.0, max_changed_share=0.5) if guarded else None
    options = SimOptions("v100:1x2", share="turns", slow_down=2.0, unmovable=unmovable, restart_s=60.0, guard=guard)

    run = _Run(Trace("t", "drawn", tuple(jobs)), registry.get(policy), options, reference())
    result = run.simulated({}, None)

    assert result.unfinished == {}
    busy_s = sum(i.end_s - i.start_s for i in result.intervals)
    assert sum(j.duty * j.steps for j in jobs) <= busy_s * (1 + 1e-6) + 1e-3  # what they needed of the GPUs' time
    for one in run.setup.jobs:
        assert isinstance(one, VirtualJob)
        assert one.done == pytest.approx(one.total) and one.held_up_s <= one.held_s + 1e-6
    gru = result.summary()["gru"]
    assert gru is not None and gru <= 1 + 1e-9


def test_the_column_duty_is_read_and_written(job: Make, trace: Make) -> None:
    jobs = trace(*(job(str(n), v100=1, duty=duty) for n, duty in enumerate((1.0, 0.25))))

    again = table_csv.read(table_csv.write(jobs).splitlines(), "t")

    assert [j.duty for j in again.jobs] == [1.0, 0.25]
    for wrong in ("0", "1.5", "-1", "x"):
        with pytest.raises(TraceError, match="duty"):
            table_csv.read(["job_id,arrival_s,gpus,steps,model,duty", f"1,0,1,10,m,{wrong}"], "t")
