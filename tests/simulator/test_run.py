"""Simulations small enough to be worked out by hand."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.errors import ClusterError, ConfigError, PolicyError, TraceError
from slurm_hadar.model import Mix, Plan, Tier, Wait
from slurm_hadar.policies import registry
from slurm_hadar.policies.baselines.fifo import Fifo
from slurm_hadar.simulator.options import unlimited
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces import Trace, TraceJob
from slurm_hadar.simulator.virtual.faults import Faults, Outage

ONE = SimOptions("v100:1x1")
TWO_KINDS = SimOptions("v100:1x1,k80:1x1")
ON_V100, ON_K80 = {"v100-1": {"v100": 1}}, {"k80-1": {"k80": 1}}


def fifo() -> Any:
    return registry.get("fifo")


def row(result: Any, job_id: str) -> Any:
    return next(j for j in result.jobs if j.job_id == job_id)


def test_one_job_runs_for_its_work(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """36,000 steps at 10 steps/s are 3,600 s: ten rounds, one GPU busy all the time."""
    result = simulate(trace(job("a", steps=36000, v100=10)), fifo(), ONE)

    summary = result.summary()
    assert row(result, "a").completion_s == 3600.0
    assert (summary["avg_jct_s"], summary["ttd_s"], summary["rounds"]) == (3600.0, 3600.0, 10)
    assert (summary["gru"], summary["cru"], summary["avg_queueing_s"]) == (1.0, 1.0, 0.0)
    assert (summary["restarts"], summary["unfinished"], summary["ftf_mean"]) == (0, {}, 1.0)


def test_results_as_a_table(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """A row per measured job, under the names of the CSV."""
    result = simulate(trace(job("a", v100=10), job("b", v100=20)), fifo(), SimOptions("v100:1x2"))

    frame = result.frame()

    assert [",".join([frame.index.name, *frame.columns])] == result.jobs_csv().splitlines()[:1]
    assert frame["jct_s"].to_dict() == {j.job_id: j.jct_s for j in result.jobs}


def test_freed_gpus_go_to_others_at_the_next_round(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """A job that is done at 1,000 s makes room at 1,080 s, the fourth round."""
    jobs = trace(job("a", steps=1000, v100=1), job("b", steps=100, v100=1))

    result = simulate(jobs, fifo(), ONE)

    assert (row(result, "a").completion_s, row(result, "b").first_start_s) == (1000.0, 1080.0)
    assert row(result, "b").completion_s == 1180.0 and row(result, "b").queueing_s == 1080.0
    assert [(r.time_s, r.active, r.running) for r in result.rounds] == [
        (0, 2, 1),
        (360, 2, 1),
        (720, 2, 1),
        (1080, 1, 1),
    ]
    assert result.summary()["gru"] == pytest.approx(1100 / 1180)


def test_ends_and_first_reports_bring_the_next_round_forward(
    job: Callable[..., TraceJob], trace: Callable[..., Trace]
) -> None:
    """As in the live controller: half a second later, but not closer than event_round_s to the last round."""
    jobs = trace(job("a", steps=1000, v100=1), job("b", steps=10, v100=1), job("c", steps=10, v100=1))

    result = simulate(jobs, fifo(), SimOptions("v100:1x1", event_round_s=30, report_s=40))

    # a reports at 40, and nothing happens until it ends; b has ended before it would report
    assert [r.time_s for r in result.rounds] == [0, 40.5, 400.5, 760.5, 1000.5, 1030.5]
    assert (row(result, "b").completion_s, row(result, "c").completion_s) == (1010.5, 1040.5)


def test_arrivals_bring_the_next_round_forward(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """Also after an idle time: d comes when nobody is there."""
    arrivals = {"a": 0.0, "b": 10.0, "c": 100.0, "d": 5000.0}
    jobs = trace(*(job(name, at, steps=1, v100=1) for name, at in arrivals.items()))

    result = simulate(jobs, fifo(), SimOptions("v100:1x4", event_round_s=30))

    assert [row(result, name).first_start_s for name in "abcd"] == [0.0, 30.0, 100.0, 5000.0]


def test_new_jobs_are_noticed_when_slurm_is_asked_for_them(
    job: Callable[..., TraceJob], trace: Callable[..., Trace]
) -> None:
    """From half a second before a round may come; an end is noticed at once."""
    arrivals = {"a": 0.0, "b": 10.0, "c": 100.0}
    jobs = trace(*(job(name, at, steps=200, v100=1) for name, at in arrivals.items()))

    result = simulate(jobs, fifo(), SimOptions("v100:1x4", event_round_s=30, asked_s=3))

    # a and b report at once; after the round at 60 it is asked at 89.5, 92.5, ..., 98.5, 101.5
    assert [row(result, name).first_start_s for name in "abc"] == [0.0, 30.0, 102.0]
    assert [r.time_s for r in result.rounds][:6] == [0.0, 30.0, 60.0, 102.0, 132.0, 200.5]


def test_rounds_are_due_whole_rounds_before_their_phase_too(
    job: Callable[..., TraceJob], trace: Callable[..., Trace]
) -> None:
    jobs, options = trace(job("a", 10.0, steps=100, v100=1)), SimOptions("v100:1x1", phase_s=50.0)

    before = simulate(jobs, fifo(), replace(options, phase_s=50.0 - 10 * options.round_s))

    assert before.jobs == simulate(jobs, fifo(), options).jobs and before.rounds[0].time_s == 50.0 - options.round_s


def test_slurm_starts_by_itself_what_no_round_has_seen(
    job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any
) -> None:
    """On the fullest node with room, a second after the arrival. What does not fit waits for GPUs to come free,
    and once a round has seen it, for the policy: c, which comes just before the round at 720, gets its lease there."""
    both = {"v100": 1.0, "k80": 0.5}
    jobs = trace(
        job("a", 10.0, steps=100, **both),
        job("b", 20.0, workers=2, steps=100, **both),
        job("d", 30.0, steps=30, k80=1),
        job("c", 719.5, steps=100, **both),
    )
    policy = scripted({}, {}, {}, {"c": {"v100-1": {"v100": 1}}})

    result = simulate(jobs, policy, SimOptions("v100:1x2,k80:1x1", self_start_s=1.0, start_s=5.0, phase_s=0.0))

    assert [(i.job_id, i.node, i.count, i.start_s, i.end_s) for i in result.intervals] == [
        ("b", "v100-1", 2, 21, 126),
        ("a", "k80-1", 1, 11, 216),
        ("d", "k80-1", 1, 216, 251),
        ("c", "v100-1", 1, 1080, 1185),
    ]
    assert [r.time_s for r in result.rounds] == [0, 360, 720, 1080]


def test_rounds_tick_while_nobody_is_there(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """After an idle time the last round before the next arrival counts: from it the next one is a round away."""
    jobs = trace(job("a", 500.0, steps=10, v100=1), job("b", 5000.0, steps=10, v100=1))

    result = simulate(jobs, fifo(), SimOptions("v100:1x1", self_start_s=2.0, phase_s=0.0))

    assert [r.time_s for r in result.rounds] == [360, 4680]
    assert [row(result, j).completion_s for j in "ab"] == [512.0, 5012.0]


def test_a_first_start_takes_its_time(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """It delays the steps, and holds the GPUs meanwhile."""
    result = simulate(trace(job("a", steps=100, v100=1)), fifo(), SimOptions("v100:1x1", start_s=7.0))

    assert (row(result, "a").completion_s, row(result, "a").first_start_s) == (107.0, 0.0)
    assert row(result, "a").gpu_s == {"v100": 107.0}


def test_a_move_costs_a_restart(job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any) -> None:
    """360 steps on the K80, then 30 s of nothing on the V100, then 640 steps at 10/s: the GPU is held meanwhile."""
    policy = scripted({"a": ON_K80}, {"a": ON_V100})

    result = simulate(trace(job("a", steps=1000, v100=10, k80=1)), policy, TWO_KINDS)

    assert row(result, "a").completion_s == 360 + 30 + 64
    assert (row(result, "a").moves, row(result, "a").restarts, row(result, "a").preemptions) == (1, 1, 0)
    assert row(result, "a").gpu_s == {"k80": 360.0, "v100": 94.0}
    assert [(i.node, i.start_s, i.end_s) for i in result.intervals] == [("k80-1", 0, 360), ("v100-1", 360, 454)]


@pytest.mark.parametrize(
    ("options", "cost_s"),
    [({}, 250.0), ({"restart_s": 7.0}, 7.0), ({"restart_s": 0.0}, 0.0), ({"save_s": 5.0}, 250.0)],
)
def test_a_preempted_job_restarts_at_its_own_cost(
    job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any, options: Any, cost_s: float
) -> None:
    """ResNet-50 takes 250 s to restart, unless told otherwise; the first start costs nothing."""
    policy = scripted({"a": ON_V100}, {}, {"a": ON_V100})

    result = simulate(trace(job("a", steps=1000, v100=1, model="resnet50")), policy, SimOptions("v100:1x1", **options))

    assert row(result, "a").completion_s == 720 + cost_s + 640
    assert (row(result, "a").preemptions, row(result, "a").restarts) == (1, 1)
    assert row(result, "a").queueing_s == 360.0


def test_the_traces_own_restart_cost_prevails(
    job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any
) -> None:
    policy = scripted({"a": ON_V100}, {}, {"a": ON_V100})

    result = simulate(trace(job("a", steps=1000, v100=1, restart_s=3.0)), policy, SimOptions("v100:1x1", restart_s=9))

    assert row(result, "a").completion_s == 720 + 3 + 640


def test_starts_wait_for_the_saves_of_their_round(
    job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any
) -> None:
    """Who takes over a GPU starts when the one before has saved."""
    policy = scripted({"a": ON_V100}, {"b": ON_V100}, {"a": ON_V100})
    jobs = trace(job("a", steps=360, v100=0.5, restart_s=0.0), job("b", steps=100, v100=1))

    result = simulate(jobs, policy, SimOptions("v100:1x1", save_s=20.0))

    assert row(result, "b").completion_s == 360 + 20 + 100
    assert row(result, "a").completion_s == 720 + 360  # b has ended by itself: there is nothing to wait for


def test_time_without_jobs_is_skipped(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """Rounds go on at whole rounds after the last, and what nobody could use counts against nobody."""
    jobs = trace(job("a", steps=300, v100=1), job("b", 20000.0, steps=300, v100=1))

    result = simulate(jobs, fifo(), ONE)

    assert row(result, "b").first_start_s == 20160 and result.summary()["rounds"] == 2
    assert result.summary()["gru"] == pytest.approx(600 / (300 + 460))


def test_a_gang_over_two_nodes_runs_at_its_spread_speed(trace: Callable[..., Trace], scripted: Any) -> None:
    """Two ResNet-18 workers on two V100 nodes take the published spread rate; on one node the other."""
    from slurm_hadar.simulator.traces import TraceJob
    from slurm_hadar.throughput.table import reference

    apart = scripted({"a": {"v100-1": {"v100": 2}, "v100-2": {"v100": 2}}})
    together = scripted({"a": {"v100-1": {"v100": 4}}})
    one = reference().steps_per_s("resnet18", 128, "v100", 4)
    spread = reference().steps_per_s("resnet18", 128, "v100", 4, spread=True)
    jobs = trace(TraceJob("a", 0.0, "resnet18", 128, 4, 1e5))

    results = [simulate(jobs, p, SimOptions("v100:2x4")) for p in (apart, together)]

    assert [r.jobs[0].jct_s for r in results] == pytest.approx([1e5 / spread, 1e5 / one])


def test_gavels_model(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """No node boundaries, no restart costs, steps and rates summed over workers, rounds that end with their jobs."""
    options = SimOptions("v100:2x2", model="gavel")
    jobs = trace(job("a", workers=4, steps=500, v100=1), job("b", 100.0, steps=100, v100=1))

    result = simulate(jobs, fifo(), options)

    assert [(i.node, i.count) for i in result.intervals] == [("v100", 4), ("v100", 1)]
    assert row(result, "a").steps == 2000 and row(result, "a").completion_s == 500
    assert row(result, "b").first_start_s == 500  # the second round ended with its only job
    assert (result.setting.cluster.nodes, result.summary()["model"]) == (1, "gavel")


def test_gavels_model_moves_for_nothing(
    job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any
) -> None:
    policy = scripted({"a": {"k80": {"k80": 1}}}, {"a": {"v100": {"v100": 1}}})

    result = simulate(
        trace(job("a", steps=1000, v100=10, k80=1), job("b", 50000.0, steps=10, v100=1)),
        policy,
        SimOptions("v100:1x1,k80:1x1", model="gavel", save_s=50.0, max_rounds=2),
    )

    assert row(result, "a").completion_s == 360 + 64


def test_only_the_measured_jobs_count(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """The others are there all the same, and the simulation ends with the last that counts."""
    jobs = trace(*(job(str(i), 10.0 * i, steps=500, v100=1) for i in range(6)))

    result = simulate(jobs, fifo(), SimOptions("v100:1x1", measure=(1, 3)))

    assert [j.job_id for j in result.counted] == ["1", "2"] and result.summary()["jobs"] == 2
    assert row(result, "1").jct_s == 720 + 500 - 10 and result.end_s == 1440 + 500
    assert row(result, "0").completion_s == 500 and row(result, "5").completion_s is None
    assert result.jobs_csv().count("\n") == 3


def test_a_window_without_jobs_is_refused(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    with pytest.raises(TraceError, match="5:6 leaves none of its 1 jobs"):
        simulate(trace(job("a", v100=1)), fifo(), SimOptions("v100:1x1", measure=(5, 6)))


class _Bad(Fifo):
    name = "bad"

    def allocate(self, _snapshot: Any) -> Any:
        return Plan(self.name)


def test_a_broken_plan_ends_the_simulation(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    with pytest.raises(PolicyError, match=r"policy bad broke its contract.*job a: neither runs nor has a reason"):
        simulate(trace(job("a", v100=1)), _Bad(), ONE)


def test_a_policy_that_abstains_cannot_be_simulated(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    with pytest.raises(PolicyError, match="policy none leaves the jobs to Slurm, which is not simulated"):
        simulate(trace(job("a", v100=1)), registry.get("none"), ONE)


def test_a_failed_node_costs_what_was_not_saved(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """Down at 500 s, checkpoints every 200 s: 400 steps are kept; on at 1,080 s, 30 s later."""
    faults = Faults((Outage("v100-1", 500.0, 1000.0),), checkpoint_s=200.0)

    result = simulate(trace(job("a", steps=1000, v100=1)), fifo(), SimOptions("v100:1x1", faults=faults))

    assert row(result, "a").completion_s == 1080 + 30 + 600
    assert (row(result, "a").lost_steps, row(result, "a").restarts, row(result, "a").preemptions) == (100, 1, 0)
    assert result.summary()["lost_steps"] == 100


def test_a_failed_node_that_no_one_uses(
    job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any
) -> None:
    """The policy sees it, with the reason, and when it is back."""
    faults = Faults((Outage("k80-1", 100.0, 500.0),))
    policy = scripted({"a": ON_V100})

    result = simulate(trace(job("a", steps=1000, v100=1)), policy, SimOptions("v100:1x1,k80:1x1", faults=faults))

    assert row(result, "a").completion_s == 1000
    assert [s.node["k80-1"].available for s in policy.seen] == [True, False, True]
    assert policy.seen[1].node["k80-1"].reason == "failed"


def test_the_snapshot_is_complete(job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any) -> None:
    """What a live policy gets, a simulated one gets too."""
    policy = scripted({"a": ON_V100}, {"b": ON_V100}, {"a": ON_V100})
    jobs = trace(
        job("a", steps=1000, v100=1, user="eve", account="lab", weight=2.0, deadline_s=50.0, restart_s=5.0),
        job("b", 10.0, steps=100, v100=1, user="bob", mix=Mix.GATED, nodes=(1, 1)),
    )

    result = simulate(jobs, policy, SimOptions("v100:1x1", usage_half_life_s=1e12))

    first, second, third = (s.job["a"] for s in policy.seen[:3])
    assert (first.user, first.account, first.weight, first.restart_cost_s) == ("eve", "lab", 2.0, 5.0)
    assert first.deadline == first.arrival + 50 and first.total_steps == 1000 and not first.running
    assert second.running and second.placement.as_dict() == ON_V100
    assert (second.done_steps, second.attained_s, second.restarts) == (360, 360, 0)
    assert (third.running, third.done_steps, third.attained_s, third.restarts) == (False, 360, 360, 1)
    b = policy.seen[1].job["b"]
    assert (b.form.mix, b.form.min_nodes, b.form.max_nodes, b.arrival - first.arrival) == (Mix.GATED, 1, 1, 10)
    assert policy.seen[2].user_usage["eve"]["v100"] == pytest.approx(360)
    assert policy.seen[2].account_usage == {"lab": pytest.approx({"v100": 360.0})}
    assert result.summary()["deadlines_missed"] == 1


def test_who_ends_just_at_its_deadline_is_not_late(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    """On a clock of epoch seconds 0.1 + 200.9 - 0.1 is more than 200.9."""
    jobs = [
        job(f"{n}", 1000.0 * n + 0.1 * n, steps=100.0 + n / 10, v100=1, deadline_s=100.0 + n / 10 - early)
        for n, early in [*((n, 0.0) for n in range(30)), (30, 0.001)]
    ]

    result = simulate(trace(*jobs), fifo(), replace(ONE, event_round_s=1.0))

    assert all(row(result, j.job_id).queueing_s == pytest.approx(0.0, abs=1e-6) for j in jobs)
    assert result.summary()["deadlines_missed"] == 1


def test_usage_counts_less_with_age(job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any) -> None:
    policy = scripted({"a": ON_V100}, {})
    jobs = trace(job("a", steps=1000, v100=1, user="eve"))

    simulate(jobs, policy, SimOptions("v100:1x1", usage_half_life_s=360.0, max_rounds=4))

    usage = [s.user_usage.get("eve", {}).get("v100", 0.0) for s in policy.seen]
    assert usage[0] == 0.0 and 180 < usage[1] < 360
    assert usage[2:] == pytest.approx([usage[1] / 2, usage[1] / 4])


class _Remembering(Fifo):
    name = "remembering"

    def allocate(self, snapshot: Any) -> Any:
        waits = {j.job_id: Wait(Tier.POLICY, f"round {snapshot.memory.get('n', 0)}") for j in snapshot.jobs}
        return Plan(self.name, {}, waits, memory={"n": snapshot.memory.get("n", 0) + 1})


def test_a_policy_remembers(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    result = simulate(trace(job("a", v100=1)), _Remembering(), SimOptions("v100:1x1", max_rounds=4))

    assert result.unfinished == {"a": "not done after 4 rounds: round 3"}


def test_elastic_gangs_grow_by_the_live_controllers_law(
    job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any
) -> None:
    """Four workers make 0.87 * 2 ** 0.6 times the steps of two a second: the same work per step, shared by more."""
    wide = scripted({"a": {"v100-1": {"v100": 4}}})

    result = simulate(trace(job("a", workers=2, steps=1e4, v100=1, sizes=(2, 4))), wide, SimOptions("v100:1x4"))

    assert wide.seen[0].job["a"].form.gang_sizes == (2, 4)
    assert result.jobs[0].jct_s == pytest.approx(1e4 / (0.87 * 2**0.6))


def test_a_sites_guard_holds_in_the_simulation(
    job: Callable[..., TraceJob], trace: Callable[..., Trace], scripted: Any
) -> None:
    """Jobs that have just started are not movable; a policy that moves them breaks its contract."""
    guard = unlimited().model_copy(update={"min_run_s": 1000.0})
    policy = scripted({"a": ON_K80}, {"a": ON_V100})

    with pytest.raises(PolicyError, match="must keep k80-1"):
        simulate(trace(job("a", steps=9000, v100=10, k80=1)), policy, SimOptions("v100:1x1,k80:1x1", guard=guard))

    assert "is younger than guard.min_run_s" in policy.seen[1].job["a"].unmovable


def test_bad_options_are_refused_in_one_line(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    with pytest.raises(ConfigError, match="round length 0 s"):
        SimOptions(round_s=0)
    for length in (0.5, 1e300):
        with pytest.raises(ConfigError, match=r"round length .* s: must be from 1 to 86400"):
            SimOptions(round_s=length)
    with pytest.raises(ConfigError, match="model 'mars': must be nodes or gavel"):
        SimOptions(model="mars")
    with pytest.raises(ConfigError, match="save_s -1"):
        SimOptions(save_s=-1)
    for pause in (math.nan, math.inf):
        with pytest.raises(ConfigError, match=r"save_s .*: must be a number of at least 0"):
            SimOptions(save_s=pause)
    with pytest.raises(ClusterError, match="'v100:x'"):
        simulate(trace(job("a", v100=1)), fifo(), SimOptions("v100:x"))


def test_a_result_can_be_sent_between_processes(job: Callable[..., TraceJob], trace: Callable[..., Trace]) -> None:
    result = simulate(trace(job("a", v100=1)), fifo(), ONE)

    assert pickle.loads(pickle.dumps(result)) == result


def test_a_scheduler_inside_slurm_waits_for_no_round() -> None:
    """It is asked when a job arrives or ends, and once more when its backfill looks: not every so many seconds."""
    limit = {"limit_s": 600.0}
    jobs = (
        TraceJob("1", 0.0, "", None, 4, 600.0, steps_per_s={"v100": 1.0}, **limit),
        TraceJob("2", 100.0, "", None, 4, 50.0, steps_per_s={"v100": 1.0}, **limit),
        TraceJob("3", 10_000.0, "", None, 1, 50.0, steps_per_s={"v100": 1.0}, **limit),
    )

    result = simulate(Trace("t", "csv", jobs), registry.get("slurm"), SimOptions("v100:1x4", round_s=360.0))

    assert [(j.first_start_s, j.completion_s) for j in result.jobs] == [
        (0.0, 600.0),
        (600.0, 650.0),
        (10_000.0, 10_050.0),
    ]
    assert len(result.rounds) <= 2 * 6 and result.setting.round_s == 30.0
    stuck = (jobs[0], replace(jobs[1], job_id="2", workers=8, nodes=(2, 2)))
    outage = Faults((Outage("v100-1", 50.0, 700.0),))
    failed = simulate(Trace("t", "csv", stuck), registry.get("slurm"), SimOptions("v100:2x4", faults=outage))
    assert failed.jobs[1].first_start_s is not None and not failed.unfinished
