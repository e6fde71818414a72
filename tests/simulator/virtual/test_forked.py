"""Forked jobs on the virtual cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import ConfigError, TraceError
from slurm_hadar.model import Fork
from slurm_hadar.policies import registry
from slurm_hadar.simulator.run import SimOptions, bounds_of, simulate
from slurm_hadar.simulator.traces import Trace, TraceJob, table_csv
from slurm_hadar.simulator.virtual.faults import Faults, Outage
from slurm_hadar.simulator.virtual.forked import Consolidation
from tests.profiles import examples

FREE = Consolidation(0.0)
THREE = SimOptions("v100:1x1,p100:1x1,k80:1x1", fork=Fork.AUTO, consolidation=FREE)
RATES = {"v100": 10.0, "p100": 5.0, "k80": 1.0}
OTHERS = sorted(set(registry.names()) - {"none", "hadare"})


def lone(steps: Any = 16_000.0, restart_s: Any = 0.0) -> Any:
    return Trace("test", "csv", (TraceJob("a", 0.0, "", None, 1, steps, restart_s=restart_s, steps_per_s=RATES),))


def run(trace: Any, options: Any = THREE, policy: Any = "hadare", **params: Any) -> Any:
    return simulate(trace, registry.get(policy, **params), options)


def test_copies_share_the_steps() -> None:
    """16 steps/s on three unequal nodes; done at the exact time, in the middle of a round."""
    result = run(lone())
    (row,) = result.jobs
    assert row.job_id == "a" and row.completion_s == pytest.approx(1000.0)
    assert row.queueing_s == pytest.approx(0.0) and row.restarts == 0
    assert {t: round(s) for t, s in row.gpu_s.items()} == {"v100": 1000, "p100": 1000, "k80": 1000}
    assert result.summary()["cru"] == pytest.approx(1.0)
    assert {i.job_id for i in result.intervals} == {"a"} and len(result.intervals) == 3


def test_consolidations_cost_their_share() -> None:
    result = run(lone(), replace(THREE, consolidation=Consolidation(0.2)))
    assert result.jobs[0].completion_s == pytest.approx(16_000 / (16 * 0.8))


def test_every_copys_start_costs(scripted: Any) -> None:
    """The first starts are free by default. A copy that comes in the second round starts for 40 s before it helps."""
    first = {"a_0": {"v100-1": {"v100": 1}}}
    both = {**first, "a_1": {"p100-1": {"p100": 1}}}
    result = simulate(lone(restart_s=40.0), scripted(first, both), THREE)
    done = 10 * 400
    assert result.jobs[0].completion_s == pytest.approx(400 + (16_000 - done) / 15)
    assert result.jobs[0].restarts == 0


def test_a_copy_that_stops_and_starts_again_is_a_restart(scripted: Any) -> None:
    first = {"a_0": {"v100-1": {"v100": 1}}, "a_1": {"p100-1": {"p100": 1}}}
    result = simulate(lone(), scripted(first, {"a_0": first["a_0"]}, first), THREE)
    row = result.jobs[0]
    assert row.completion_s == pytest.approx(720 + (16_000 - 360 * 25) / 15)
    assert (row.restarts, row.preemptions, row.moves) == (1, 1, 0)


def test_while_no_copy_runs_nothing_gets_on(scripted: Any) -> None:
    on = {"a_0": {"v100-1": {"v100": 1}}}
    result = simulate(lone(), scripted(on, {}, {"a_1": on["a_0"]}), THREE)
    assert result.jobs[0].completion_s == pytest.approx(360 + 1600)
    assert result.jobs[0].queueing_s == pytest.approx(360)


def test_all_copies_know_what_all_have_done(scripted: Any) -> None:
    first = {"a_0": {"v100-1": {"v100": 1}}, "a_1": {"p100-1": {"p100": 1}}}
    policy = scripted(first)
    simulate(lone(), policy, THREE)
    assert [j.done_steps for j in policy.seen[1].jobs] == [pytest.approx(360 * 15)] * 3
    assert {j.parent for j in policy.seen[1].jobs} == {"a"}


def test_a_lost_node_costs_at_most_a_period(scripted: Any) -> None:
    """The p100 fails after 130 s: what it did since the consolidation at 120 s is lost. The v100 goes on."""
    both = {"a_0": {"v100-1": {"v100": 1}}, "a_1": {"p100-1": {"p100": 1}}}
    faults = Faults((Outage("p100-1", 130.0, 1e6),))
    result = simulate(lone(), scripted(both, {"a_0": both["a_0"]}), replace(THREE, faults=faults))
    row = result.jobs[0]
    assert row.lost_steps == pytest.approx(5 * 10)
    assert row.completion_s == pytest.approx(130 + (16_000 - 130 * 15 + 50) / 10)


def test_a_lost_node_under_hadare_is_made_up_for() -> None:
    faults = Faults((Outage("v100-1", 130.0, 500.0),))
    result = run(lone(restart_s=10.0), replace(THREE, faults=faults))
    assert not result.unfinished
    assert 1000.0 < result.jobs[0].completion_s < 16_000 / 6


@pytest.mark.thorough
@examples(40)
@given(
    rates=st.lists(st.floats(0.1, 20.0), min_size=3, max_size=3),
    steps=st.floats(4000.0, 1e5),  # several times a restart, below which Hadar's target makes it choose a slower type
    restart_s=st.sampled_from((0.0, 30.0)),
    fork=st.sampled_from(list(Fork)),
    overhead=st.sampled_from((0.0, 0.015)),
)
def test_bounds_of_a_lone_job(rates: Any, steps: Any, restart_s: Any, fork: Any, overhead: Any) -> None:
    """``rem / sum X <= time <= rem / max X``: copies never do harm, and never wonders."""
    job = TraceJob("a", 0.0, "", None, 1, steps, restart_s=restart_s, steps_per_s=dict(zip(RATES, rates, strict=True)))
    options = replace(THREE, fork=fork, consolidation=Consolidation(overhead))
    trace = Trace("test", "csv", (job,))
    took_s = run(trace, options).jobs[0].completion_s
    assert steps / sum(rates) - 1e-5 <= took_s <= steps / max(rates) + 1e-5
    bound_s = bounds_of(trace, options)["ttd_s"]
    assert bound_s <= took_s * (1 + 1e-6)
    assert bound_s == pytest.approx(steps / sum(rates), rel=1e-4)


@st.composite
def mixes(draw: Any) -> Any:
    jobs = []
    for number in range(draw(st.integers(1, 6))):
        rates = {t: r * draw(st.sampled_from((0.5, 1.0, 2.0))) for t, r in RATES.items()}
        jobs.append(
            TraceJob(
                str(number),
                draw(st.sampled_from((0.0, 0.0, 500.0, 4000.0))),
                "",
                None,
                draw(st.sampled_from((1, 1, 1, 2))),
                draw(st.floats(100.0, 30_000.0)),
                restart_s=draw(st.sampled_from((0.0, 30.0))),
                steps_per_s=rates,
                weight=draw(st.sampled_from((1.0, 1.0, 10.0))),
                fork=draw(st.sampled_from((None, *Fork))),
            )
        )
    return Trace("mix", "csv", tuple(sorted(jobs, key=lambda j: j.arrival_s)))


@examples(30)
@given(
    trace=mixes(),
    cluster=st.sampled_from(("v100:1x2,p100:2x1", "v100:2x2,k80:1x4", "v100:2x1,p100:1x1,k80:2x2")),
    objective=st.sampled_from(("jct", "ttd")),
    event_round_s=st.sampled_from((0.0, 30.0)),
)
def test_any_mix_is_done_within_its_bounds(trace: Any, cluster: Any, objective: Any, event_round_s: Any) -> None:
    options = SimOptions(cluster, event_round_s=event_round_s)
    result = run(trace, options, objective=objective)
    assert not result.unfinished
    assert [r.job_id for r in result.jobs] == [j.job_id for j in trace.jobs]
    bounds, summary = bounds_of(trace, options), result.summary()
    assert summary["ttd_s"] >= bounds["ttd_s"] * (1 - 1e-6)
    assert summary["avg_jct_s"] >= bounds["avg_jct_s"] * (1 - 1e-6)
    for row in result.jobs:
        assert 0 <= row.queueing_s <= row.jct_s


@pytest.mark.parametrize("name", OTHERS)
def test_for_policies_that_do_not_fork_nothing_changes(
    name: Any, job: Callable[..., TraceJob], trace: Callable[..., Trace]
) -> None:
    """The same rows, round by round and GPU by GPU, whether jobs are forked or not; equal arrivals and failures too."""
    jobs = [job(str(n), 100.0 * (n % 3), workers=1 + n % 2, steps=4000.0 * (1 + n), **RATES) for n in range(12)]
    mix = trace(*jobs)
    faults = Faults((Outage("p100-1", 3000.0, 9000.0),))
    plain = SimOptions("v100:2x2,p100:2x2,k80:1x4", restart_s=30.0, start_s=10.0, save_s=5.0, faults=faults)
    alone, forked = (run(mix, replace(plain, fork=fork), name) for fork in (None, Fork.AUTO))
    assert forked.jobs == alone.jobs
    assert forked.rounds == alone.rounds
    assert forked.intervals == alone.intervals


def test_gangs_larger_than_a_node_are_not_forked(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    mix = trace(job("a", workers=4, nodes=(1, 4), **RATES), job("b", **RATES))
    result = run(mix, SimOptions("v100:4x1", fork=Fork.IDLE))
    assert not result.unfinished
    assert "1 jobs are not forked: their gang fits on no single node" in result.assumptions


def test_copies_need_nodes() -> None:
    with pytest.raises(ConfigError, match="fork=auto with model gavel"):
        SimOptions(model="gavel", fork=Fork.AUTO)


def test_the_column_fork() -> None:
    text = "job_id,arrival_s,gpus,steps,model,fork\na,0,1,100000,resnet18,spread\nb,0,1,100000,resnet18,\n"
    trace = table_csv.read(text.splitlines(), "t.csv")
    assert [j.fork for j in trace.jobs] == [Fork.SPREAD, None]
    assert table_csv.read(table_csv.write(trace).splitlines(), "t.csv").jobs == trace.jobs
    with pytest.raises(TraceError, match=r"t.csv:2: fork must be one of idle, spread, auto, not 'often'"):
        table_csv.read(text.replace("spread", "often").splitlines(), "t.csv")
