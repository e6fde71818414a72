"""Jobs that are not done: how long a simulation waits for a step, and what it says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.policies import registry
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces import Trace, TraceJob
from tests.simulator.test_run import ON_K80, ON_V100, ONE, TWO_KINDS, fifo, row


def test_a_gang_that_fits_nowhere_is_reported(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """It does not hold up the others."""
    jobs = trace(job("big", workers=3, steps=10, v100=1), job("a", steps=10, v100=1), job("odd", steps=10, k80=1))

    result = simulate(jobs, fifo(), SimOptions("v100:2x1"))

    assert row(result, "a").completion_s == 10 and set(result.unfinished) == {"big", "odd"}
    assert result.unfinished["big"].startswith("needs 3 GPUs of one type on at most 3 nodes, more than")
    assert result.unfinished["odd"] == "cannot run on v100: no speed above zero is known there"


def test_a_policy_that_starves_a_job_ends_with_its_reason(
    job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any
) -> None:
    jobs = trace(job("a", steps=10, v100=1), job("b", steps=10, v100=1), job("c", 1e6, steps=10, v100=1))

    result = simulate(jobs, scripted({"a": ON_V100}, {}, {"c": ON_V100}), ONE)

    assert result.unfinished == {"b": "policy scripted lets it make no step any more: told to wait"}
    assert row(result, "c").completion_s > 1e6 and len(result.rounds) < 1000


def test_a_policy_that_waits_until_a_long_job_would_have_ended_elsewhere_is_waited_for(
    job: Callable[..., TraceJob], trace: Callable[..., Trace]
) -> None:
    """Strict A-SRPT starts it only then: 500 rounds without a step."""
    jobs = trace(job("a", steps=180_000, v100=1))
    result = simulate(jobs, registry.get("asrpt", strict=True), SimOptions("v100:1x1"))
    assert row(result, "a").completion_s == pytest.approx(360_000, rel=0.01)


def test_a_start_that_takes_many_rounds_is_no_idleness(
    job: Callable[..., TraceJob], trace: Callable[..., Trace]
) -> None:
    """Nobody may say of the policy that it lets such a job make no step."""
    result = simulate(trace(job("a", steps=10, v100=1)), fifo(), SimOptions("v100:1x1", start_s=1000.0, round_s=2.0))

    assert not result.unfinished and row(result, "a").completion_s == 1010.0


def test_a_job_that_would_not_end_is_reported(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """It does not hold up the others, nor the simulation; what runs for a year is simulated."""
    jobs = trace(job("a", steps=1e10, v100=1, k80=1), job("b", steps=3e10, v100=1000))

    result = simulate(jobs, fifo(), SimOptions("v100:1x1", round_s=86400.0))

    assert row(result, "b").completion_s == 3e7 and set(result.unfinished) == {"a"}
    assert result.unfinished["a"].startswith("its 1e+10 steps take 115741 d at 1 steps per second, where it is fastest")


def test_a_job_that_would_not_end_where_it_was_put_ends_the_simulation_when_nobody_else_is_to_come(
    job: Callable[..., TraceJob], trace: Callable[..., Trace]
) -> None:
    """FIFO knows no speeds: the second gets the type on which it takes 228,000 years. One that comes long after, for
    the other type, is waited for."""
    jobs = [job(name, at, steps=7200, v100=1, k80=1e-9) for name, at in (("a", 0.0), ("b", 0.0), ("c", 360_000.0))]

    result = simulate(trace(*jobs), fifo(), replace(TWO_KINDS, max_rounds=20_000))

    assert (row(result, "a").completion_s, row(result, "c").completion_s) == (7200, 367_200)
    assert result.unfinished == {"b": "policy fifo has it where it would not end in 20000 rounds"}
    assert len(result.rounds) < 2000


def test_a_job_that_would_not_end_where_it_is_may_still_be_moved(
    job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any
) -> None:
    jobs = trace(job("a", steps=360_000, v100=1, k80=1e-9))

    result = simulate(jobs, scripted(*([{"a": ON_K80}] * 1000), {"a": ON_V100}), TWO_KINDS)

    assert not result.unfinished and row(result, "a").completion_s == pytest.approx(720_000, rel=0.01)


def test_restarts_without_progress_end_too(
    job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any
) -> None:
    """A policy that moves a job before it has made a step would go on for ever."""
    policy = scripted(*([{"a": ON_V100}, {"a": ON_K80}] * 1000))
    jobs = trace(job("a", steps=1e9, v100=1, k80=1, restart_s=400.0))

    result = simulate(jobs, policy, TWO_KINDS)

    assert list(result.unfinished) == ["a"] and len(result.rounds) < 300


def test_the_number_of_rounds_can_be_limited(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    result = simulate(trace(job("a", steps=1e9, v100=1)), fifo(), SimOptions("v100:1x1", max_rounds=5))

    assert result.unfinished == {"a": "not done after 5 rounds"}
    assert result.summary()["avg_jct_s"] is None and result.summary()["jobs"] == 0
