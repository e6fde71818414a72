"""Gavel's policies in rounds: what is followed, what is remembered, and when targets change."""

import json
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.errors import ConfigError, PolicyError
from slurm_hadar.model import Form, Mix, Node, Snapshot, Speed, Tier
from slurm_hadar.policies import check_plan, get
from slurm_hadar.testing.snapshots import carry_out

ROUND_S = 360.0


def play(policy: Any, snapshot: Any, rounds: Any, on_round: Any = None) -> Any:
    """Carry out round after round; memory goes through JSON. Returns GPU-seconds per job and type, and the plans."""
    served: dict[tuple[str, str], float] = {}
    plans = []
    for number in range(rounds):
        plan = policy.allocate(snapshot)
        assert check_plan(snapshot, plan) == []
        plans.append(plan)
        for job_id, placement in plan.placements.items():
            for gpu_type, count in placement.by_type.items():
                key = job_id, gpu_type
                served[key] = served.get(key, 0.0) + count * ROUND_S
        memory = json.loads(json.dumps(plan.memory))
        snapshot = replace(carry_out(snapshot, plan), time=snapshot.time + ROUND_S, memory=memory)
        if on_round:
            snapshot = on_round(number, snapshot) or snapshot
    return served, plans


@pytest.mark.parametrize("aware", [True, False])
def test_equal_jobs_take_turns(job: Any, snapshot: Any, aware: bool) -> None:
    """Three equal jobs on one GPU have a third of 30 rounds each, and who waits is told what it is due."""
    jobs = [job(str(i), steps=1e6) for i in range(3)]
    served, plans = play(get("gavel_las", aware=aware), snapshot(jobs, [Node("a", {"v100": 1})]), 30)
    assert served == {(str(i), "v100"): 10 * ROUND_S for i in range(3)}
    assert all(len(p.placements) == 1 for p in plans)
    assert "33%" in plans[-1].waits.popitem()[1].why


def test_turns_follow_weights_and_gangs(job: Any, snapshot: Any) -> None:
    """GPU time is shared by weight, so a gang of two runs half as long as a single worker of the same weight."""
    jobs = [job("1", 2, steps=1e6), job("2", 1, steps=1e6), job("3", 1, steps=1e6)]
    served, _ = play(get("gavel_las"), snapshot(jobs, [Node("a", {"v100": 2})]), 60)
    assert served == pytest.approx({(i, "v100"): 40 * ROUND_S for i in ("1", "2", "3")}, rel=0.05)
    jobs = [job("1", steps=1e6), job("2", steps=1e6, weight=3.0)]
    served, _ = play(get("gavel_las"), snapshot(jobs, [Node("a", {"v100": 1})]), 40)
    assert served == pytest.approx({("1", "v100"): 10 * ROUND_S, ("2", "v100"): 30 * ROUND_S}, rel=0.05)


def test_each_type_goes_to_whom_it_serves_most(job: Any, snapshot: Any) -> None:
    """The jobs that gain ten times on a v100 run nowhere else; without knowledge of speeds they take turns there."""
    jobs = [job(i, steps=1e7, v100=10, p100=1, k80=None) for i in ("1", "2")]
    jobs += [job(i, steps=1e7, v100=5, p100=5, k80=None) for i in ("3", "4")]
    nodes = [Node("a", {"v100": 1}), Node("b", {"p100": 1})]
    served, _ = play(get("gavel_las"), snapshot(jobs, nodes), 40)
    assert served["1", "v100"] + served["2", "v100"] > 0.65 * 40 * ROUND_S
    assert ("1", "p100") not in served and ("2", "p100") not in served
    served, _ = play(get("gavel_las", aware=False), snapshot(jobs, nodes), 40)
    assert served["1", "v100"] == pytest.approx(served["1", "p100"], rel=0.2)


def test_never_on_a_type_where_it_cannot_run(job: Any, snapshot: Any) -> None:
    """Without knowledge of speeds a job still runs only where it can."""
    jobs = [job("1", p100=0.0, k80=None, steps=1e6), job("2", steps=1e6)]
    for name in ("gavel_las", "gavel_ftf", "gavel_ttd", "gavel_throughput"):
        served, _ = play(get(name, aware=False), snapshot(jobs), 12)
        assert {t for j, t in served if j == "1"} == {"v100"}


def test_targets_stand_until_reset_s(job: Any, snapshot: Any) -> None:
    """A job that comes gets a target only when 1920 s have passed since the targets were set: in the seventh round."""
    nodes = [Node("a", {"v100": 1})]
    late = job("9", steps=1e6, arrival=1e6)

    def arrive(number: Any, state: Any) -> Any:
        return state.with_jobs([*state.jobs, late]) if number == 0 else None

    start = snapshot([job("1", steps=1e6)], nodes)
    _, plans = play(get("gavel_las"), start, 8, arrive)
    assert [set(p.placements) for p in plans[:6]] == [{"1"}] * 6
    assert set(plans[6].placements) == {"9"}
    assert "target share of GPU time is 0 for now" in plans[3].waits["9"].why
    _, plans = play(get("gavel_las", reset_s=0), start, 8, arrive)
    assert set(plans[1].placements) == {"9"}


def test_what_is_lost_is_only_knowledge(job: Any, snapshot: Any) -> None:
    """Memory that is lost, foreign or of other GPU types is as good as none."""
    state = snapshot([job("1", steps=1e6), job("2", steps=1e6)], [Node("a", {"v100": 1})])
    policy = get("gavel_las")
    plan = policy.allocate(state)
    for memory in ({}, {"standings": {"1": [0, 0, 0, None]}}, plan.memory | {"types": ["p100"]}):
        assert policy.allocate(replace(state, memory=memory)).placements == plan.placements


def test_a_lost_node_sets_new_targets(job: Any, snapshot: Any) -> None:
    """GPUs that go are a reason for new targets, once reset_s is over."""
    nodes = (Node("a", {"v100": 1}), Node("b", {"v100": 1}))
    policy = get("gavel_las", reset_s=0)
    state = snapshot([job("1", steps=1e6), job("2", steps=1e6)], nodes)
    plan = policy.allocate(state)
    assert all(sum(row[:1]) == pytest.approx(1.0, abs=0.01) for row in plan.memory["jobs"].values())
    down = (nodes[0], replace(nodes[1], available=False))
    after = policy.allocate(replace(state, time=state.time + 1, nodes=down, memory=plan.memory))
    assert all(row[0] == pytest.approx(0.5, abs=0.01) for row in after.memory["jobs"].values())


def test_makespan_favours_the_longest(job: Any, snapshot: Any) -> None:
    """With 300 and 100 steps to go the GPU time is shared 3 to 1."""
    jobs = [job("1", steps=3e6), job("2", steps=1e6)]
    served, _ = play(get("gavel_ttd"), snapshot(jobs, [Node("a", {"v100": 1})]), 40)
    assert served["1", "v100"] == pytest.approx(30 * ROUND_S, rel=0.05)


def test_fairness_favours_who_has_waited(job: Any, snapshot: Any) -> None:
    """Of two jobs of the same length, the one that came long ago is due more."""
    jobs = [job("1", steps=1e5, arrival=-20000.0), job("2", steps=1e5, arrival=1000.0)]
    plan = get("gavel_ftf").allocate(snapshot(jobs, [Node("a", {"v100": 1})]))
    assert plan.memory["jobs"]["1"][0] > 0.6 > 0.4 > plan.memory["jobs"]["2"][0]
    assert set(plan.placements) == {"1"}


def test_fairness_remembers_what_was_done(job: Any, snapshot: Any) -> None:
    """Steps done count at the speed that an equal part of the cluster had when the targets were set."""
    state = snapshot([job("1", steps=1e5), job("2", steps=1e5)], [Node("a", {"v100": 1})])
    plan = get("gavel_ftf").allocate(state)
    assert plan.memory["noted"]["1"] == [0.0, 1e5, 5.0]
    done = [replace(state.jobs[0], done_steps=5e3), state.jobs[1]]
    policy = get("gavel_ftf", reset_s=0)
    later = policy.allocate(replace(state, jobs=(*done, job("3")), time=2000.0, memory=plan.memory))
    assert later.memory["noted"]["1"] == pytest.approx([1000.0, 9.5e4, 10 / 3])


def test_throughput_counts_steps_unless_normalised(job: Any, snapshot: Any) -> None:
    """The job with short steps has the GPU; normalised, both are equal."""
    jobs = [job("1", steps=1e7, v100=100.0), job("2", steps=1e7, v100=1.0)]
    nodes = [Node("a", {"v100": 1})]
    raw = get("gavel_throughput").allocate(snapshot(jobs, nodes)).memory["jobs"]
    assert raw["1"][0] == pytest.approx(1.0, abs=0.02) and raw["2"][0] == pytest.approx(0.0, abs=0.02)
    fair = get("gavel_throughput", normalised=True).allocate(snapshot(jobs, nodes)).memory["jobs"]
    assert fair["1"][0] == pytest.approx(fair["2"][0], abs=0.01)


def test_cost_prefers_the_cheaper_type(job: Any, snapshot: Any) -> None:
    """A type that is half as fast and five times cheaper is preferred; a type without a price is an error."""
    state = snapshot([job("1", v100=10, p100=None, k80=5)], [Node("a", {"v100": 1}), Node("b", {"k80": 1})])
    plan = get("gavel_cost", prices="v100=2.5,k80=0.5").allocate(state)
    shares = dict(zip(plan.memory["types"], plan.memory["jobs"]["1"], strict=False))
    assert shares["k80"] > 0.95
    with pytest.raises(PolicyError, match=r"no price for GPU type k80.*set prices=v100=2.5,k80="):
        get("gavel_cost", prices="v100=2.5").allocate(state)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("gavel_las", "reset_s", -1),
        ("gavel_las", "unknown_runtime_s", 0),
        ("gavel_cost", "prices", "v100"),
        ("gavel_cost", "prices", "v100=-1"),
        ("allox", "window", 0),
        ("tiresias", "thresholds", "100,50"),
        ("tiresias", "thresholds", "a"),
        ("tiresias", "starvation", -1),
        ("srtf", "unknown_runtime_s", "nan"),
    ],
)
def test_impossible_values_are_refused(name: str, key: str, value: Any) -> None:
    """The error names policy and parameter."""
    with pytest.raises(ConfigError, match=f"{name}.*{key}"):
        get(name, **{key: value})


def test_a_gang_that_fits_only_on_mixed_types_gets_what_is_left_over(job: Any, snapshot: Any) -> None:
    """It runs when nobody else wants the GPUs, and is told so when somebody does."""
    nodes = [Node("a", {"v100": 2}), Node("b", {"p100": 2})]
    mixed = job("1", form=Form(4, max_nodes=2, mix=Mix.GATED))
    assert set(get("gavel_las").allocate(snapshot([mixed], nodes)).placements) == {"1"}
    plan = get("gavel_las").allocate(snapshot([mixed, job("2"), job("3")], nodes))
    assert set(plan.placements) == {"2", "3"}
    assert plan.waits["1"].tier is Tier.CAPACITY and "left over" in plan.waits["1"].why


def test_unknown_lengths_are_no_obstacle(job: Any, snapshot: Any) -> None:
    """Jobs whose steps nobody stated have targets like others."""
    jobs = [job("1", steps=None), job("2", steps=None)]
    for name in ("gavel_ttd", "gavel_ftf"):
        plan = get(name).allocate(snapshot(jobs, [Node("a", {"v100": 1})]))
        assert plan.memory["jobs"]["1"][0] == pytest.approx(0.5, abs=0.01)


def test_placements_are_kept_while_the_turn_lasts(job: Any, snapshot: Any) -> None:
    """A job whose turn goes on stays on its GPUs, though gangs of other sizes come and go beside it."""
    nodes = tuple(Node(f"n{i}", {"v100": 4}) for i in range(3))
    jobs = [job(str(i), (1, 2, 4)[i % 3], steps=1e7) for i in range(9)]
    state, moved, kept = snapshot(jobs, nodes), 0, 0
    policy = get("gavel_las")
    for _ in range(40):
        plan = policy.allocate(state)
        for held in state.jobs:
            if held.running and held.job_id in plan.placements:
                same = plan.placements[held.job_id] == held.placement
                moved, kept = moved + (not same), kept + same
        state = replace(carry_out(state, plan), time=state.time + ROUND_S, memory=plan.memory)
    assert kept > 50
    assert moved <= 0.1 * kept, (moved, kept)


def test_snapshot_of_nothing() -> None:
    """No jobs and no nodes: nothing to do, nothing to remember."""
    plan = get("gavel_las").allocate(Snapshot(0.0, (), ()))
    assert not plan.placements and plan.memory["jobs"] == {}


def test_a_gang_that_must_be_spread_counts_at_its_spread_speed(job: Any, snapshot: Any) -> None:
    """A gang of four fits on one node of the slower type only; spread over the faster, it would be slower still."""
    nodes = [Node("a", {"v100": 2}), Node("b", {"v100": 2}), Node("c", {"p100": 4})]
    speeds = {"v100": Speed(10.0, spread=0.3), "p100": Speed(5.0, spread=0.3)}
    gang = replace(job("1", 4, steps=1e6), speeds=speeds)
    plan = get("gavel_throughput").allocate(snapshot([gang], nodes))
    shares = dict(zip(plan.memory["types"], plan.memory["jobs"]["1"], strict=False))
    assert shares["p100"] > 0.95
    assert get("srtf").allocate(snapshot([gang], nodes)).placements["1"].by_type == {"p100": 4}
