"""What Hadar decides, on cases small enough to know the answer."""

import random
from dataclasses import replace
from importlib import util
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.model import Form, Job, Mix, Node, Placement, Snapshot, Speed, Tier
from slurm_hadar.policies import check_plan, get
from slurm_hadar.policies.hadar.lookahead.planning.search import MOST_JOBS
from slurm_hadar.testing.snapshots import carry_out

BRUTE_FORCE = Path(__file__).parents[3] / "benchmarks" / "brute_force.py"


@pytest.fixture(scope="module")
def brute_force() -> Any:
    spec = util.spec_from_file_location("brute_force", BRUTE_FORCE)
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_job_that_gains_most_gets_the_fast_gpu(job: Any, snapshot: Any) -> None:
    """Comparative advantage: the job that a slow type hurts most is the one that avoids it."""
    nodes = (Node("a", {"v100": 1}), Node("c", {"k80": 1}))
    tenfold, little = job("1", k80=1.0), job("2", k80=9.0)
    plan = get("hadar").allocate(snapshot([little, tenfold], nodes))
    assert plan.placements["1"].by_type == {"v100": 1}
    assert plan.placements["2"].by_type == {"k80": 1}


def test_short_jobs_first(job: Any, snapshot: Any) -> None:
    """With average JCT as the objective the shorter of two jobs runs first, whoever came first."""
    nodes = (Node("a", {"v100": 1}),)
    plan = get("hadar").allocate(snapshot([job("1", steps=1e6), job("2", steps=1e4)], nodes))
    assert set(plan.placements) == {"2"}
    assert plan.waits["1"].tier is Tier.POLICY
    assert "1 job with" in plan.waits["1"].why and "(held by 2)" in plan.waits["1"].why
    assert plan.waits["1"].payoff < 0 < plan.waits["1"].price
    assert plan.waits["1"].wanted == Placement.of({"a": {"v100": 1}})


def test_ttd_prefers_the_job_that_would_be_last(job: Any, snapshot: Any) -> None:
    """With the makespan as the objective the longer of two jobs runs first."""
    nodes = (Node("a", {"v100": 1}),)
    jobs = [job("1", steps=1e6, arrival=900.0), job("2", steps=1e4, arrival=900.0)]
    for params in ({"objective": "ttd"}, {"frontier": 1.0}):
        assert set(get("hadar", **params).allocate(snapshot(jobs, nodes)).placements) == {"1"}


def test_ftf_prefers_who_waited_longest_for_its_size(job: Any, snapshot: Any) -> None:
    """Of two equal jobs the one that waited longer runs first."""
    nodes = (Node("a", {"v100": 1}),)
    jobs = [job("1", arrival=900.0), job("2", arrival=-90000.0)]
    assert set(get("hadar", objective="ftf").allocate(snapshot(jobs, nodes)).placements) == {"2"}


def test_deadline_prefers_the_job_that_can_still_make_it(job: Any, snapshot: Any) -> None:
    """A deadline that can be kept counts; one that is lost anyway does not."""
    nodes = (Node("a", {"v100": 1}),)
    plain, urgent, lost = job("1"), job("2", steps=2000.0, deadline=1300.0), job("3", steps=2000.0, deadline=-9e4)
    policy = get("hadar", objective="deadline")
    assert set(policy.allocate(snapshot([plain, urgent], nodes)).placements) == {"2"}
    assert set(policy.allocate(snapshot([plain, lost], nodes)).placements) == {"1"}


def test_a_deadline_that_can_wait_does(job: Any, snapshot: Any) -> None:
    """Who has time enough lets shorter jobs go first, as it may end after them and still in time."""
    nodes = (Node("a", {"v100": 1}),)
    short, long = job("1", steps=1000.0), job("2", steps=9000.0, deadline=1000.0 + 9000.0)
    assert set(get("hadar", objective="deadline").allocate(snapshot([short, long], nodes)).placements) == {"1"}


def test_a_long_queue_goes_by_how_close_deadlines_are(job: Any, snapshot: Any) -> None:
    """Where no plans are searched for, prices know it too."""
    nodes = (Node("a", {"v100": 1}),)
    jobs = [job(str(n), steps=1000.0, deadline=1000.0 + 1e6) for n in range(80)]
    jobs += [job("90", steps=2000.0, deadline=1000.0 + 300.0)]
    assert set(get("hadar", objective="deadline").allocate(snapshot(jobs, nodes)).placements) == {"90"}


def test_weight_multiplies(job: Any, snapshot: Any) -> None:
    """A job five times as important goes before one half as long."""
    nodes = (Node("a", {"v100": 1}),)
    jobs = [job("1", steps=1e5), job("2", steps=2e5, weight=5.0)]
    assert set(get("hadar").allocate(snapshot(jobs, nodes)).placements) == {"2"}


def test_no_move_for_a_gain_below_the_restart_cost(running: Any, snapshot: Any) -> None:
    """A job that is nearly done stays on the slow type; one with much left moves to the fast one."""
    nodes = (Node("a", {"v100": 1}), Node("b", {"p100": 1}))
    here = {"b": {"p100": 1}}
    nearly = running("1", here, steps=100.0, restart_cost_s=60.0)
    long = running("1", here, steps=1e6, restart_cost_s=60.0)
    assert get("hadar").allocate(snapshot([nearly], nodes)).placements["1"].by_type == {"p100": 1}
    assert get("hadar").allocate(snapshot([long], nodes)).placements["1"].by_type == {"v100": 1}


def test_switch_gain_bounds_moves(running: Any, snapshot: Any) -> None:
    """A gain below switch_gain moves nobody."""
    nodes = (Node("a", {"v100": 1}), Node("b", {"p100": 1}))
    slow = running("1", {"b": {"p100": 1}}, steps=1e6, p100=8.0)
    assert get("hadar", switch_gain=0.1).allocate(snapshot([slow], nodes)).placements["1"].by_type == {"v100": 1}
    assert get("hadar", switch_gain=0.5).allocate(snapshot([slow], nodes)).placements["1"].by_type == {"p100": 1}


def test_a_newcomer_takes_idle_gpus_not_those_of_a_running_job(job: Any, running: Any, snapshot: Any) -> None:
    """Nobody is disturbed while equal GPUs are idle."""
    nodes = (Node("a", {"v100": 2}), Node("b", {"v100": 2}))
    first = running("1", {"a": {"v100": 2}}, steps=1e6)
    plan = get("hadar").allocate(snapshot([first, job("2", 2, steps=100.0)], nodes))
    assert plan.placements == {"1": first.placement, "2": Placement.of({"b": {"v100": 2}})}


def test_one_node_before_several(job: Any, snapshot: Any) -> None:
    """A gang that fits one node is not spread."""
    nodes = (Node("a", {"v100": 2}), Node("b", {"v100": 2}), Node("d", {"v100": 4}))
    plan = get("hadar").allocate(snapshot([job("1", 4)], nodes))
    assert plan.placements["1"] == Placement.of({"d": {"v100": 4}})


def test_spread_where_the_form_allows(job: Any, snapshot: Any) -> None:
    """A plain job spreads evenly over the fewest nodes; one that may not spread waits."""
    nodes = (Node("a", {"v100": 2}), Node("b", {"v100": 2}))
    plan = get("hadar").allocate(snapshot([job("1", form=Form(4, max_nodes=2))], nodes))
    assert plan.placements["1"] == Placement.of({"a": {"v100": 2}, "b": {"v100": 2}})
    refused = get("hadar").allocate(snapshot([job("1", form=Form(4, max_nodes=1))], nodes))
    assert refused.waits["1"].tier is Tier.CANNOT_RUN and "4 GPUs" in refused.waits["1"].why


def test_mixed_types_for_gangs_that_accept_them(job: Any, snapshot: Any) -> None:
    """A gang that fits on no single type runs on two if it may mix them, and never otherwise."""
    nodes = (Node("a", {"v100": 2}), Node("b", {"p100": 2}))
    for mix in (Mix.GATED, Mix.BALANCED):
        plan = get("hadar").allocate(snapshot([job("1", form=Form(4, max_nodes=2, mix=mix))], nodes))
        assert plan.placements["1"].by_type == {"v100": 2, "p100": 2}
    plan = get("hadar").allocate(snapshot([job("1", form=Form(4, max_nodes=2))], nodes))
    assert not plan.placements


def test_balanced_gangs_seek_speed_where_gated_ones_cannot_use_it(job: Any, snapshot: Any) -> None:
    """Beside a job that needs the v100, a balanced pair takes the fastest mix."""
    nodes = (Node("a", {"v100": 1, "k80": 1}), Node("b", {"p100": 1, "k80": 1}))
    form = Form(2, max_nodes=1, mix=Mix.BALANCED)
    plan = get("hadar").allocate(snapshot([job("1", form=form)], nodes))
    assert plan.placements["1"] == Placement.of({"a": {"v100": 1, "k80": 1}})


def test_who_cannot_be_moved_waits_where_that_ends_it_sooner(job: Any, running: Any, snapshot: Any) -> None:
    """On the slow type it would run for good: it takes it only if the fast one comes free too late."""
    nodes = (Node("a", {"v100": 1}), Node("c", {"k80": 1}))
    stuck = job("2", steps=1e5, unmovable="saves no checkpoint")
    for holder_steps, placed in ((1e5, {}), (1e7, {"k80": 1})):
        holder = running("1", {"a": {"v100": 1}}, steps=holder_steps, unmovable="exempt")
        assert get("hadar").allocate(snapshot([holder, stuck], nodes)).placement("2").by_type == placed


@pytest.mark.parametrize("unmovable", ["saves no checkpoint", None])
def test_a_longer_queue_is_planned_where_jobs_cannot_be_moved(
    job: Any, running: Any, snapshot: Any, unmovable: Any
) -> None:
    """Nobody starts on a type on which it would end after all others; who can be moved goes there for the meantime."""
    nodes = (Node("a", {"v100": 1}), Node("c", {"k80": 1}))
    queue = [job(str(n), steps=1e5, k80=0.001, restart_cost_s=1.0, unmovable=unmovable) for n in range(2, 82)]
    plan = get("hadar").allocate(
        snapshot([running("1", {"a": {"v100": 1}}, steps=1e5, unmovable="exempt"), *queue], nodes)
    )
    assert bool({i for i, p in plan.placements.items() if p and i != "1"}) is (unmovable is None)


@pytest.mark.parametrize("sizes, steps, planned", [((), None, True), ((1, 2), 1e5, True), ((1, 2), None, False)])
def test_a_longer_queue_of_elastic_jobs_is_planned_where_lengths_are_known(
    job: Any, snapshot: Any, sizes: Any, steps: Any, planned: bool
) -> None:
    """A size that cannot be changed any more is not chosen by a guess."""
    queue = [job(str(n), steps=steps, form=Form(1, sizes=sizes), unmovable="saves nothing") for n in range(1, 80)]
    assert ("plan" in get("hadar").allocate(snapshot(queue)).memory) is planned


@pytest.mark.parametrize(
    "gpus, sizes, apart_s, restart_s, planned",
    [
        (4, (), 1.0, 0.0, True),
        (40, (), 1.0, 0.0, False),
        (4, (1, 2), 1.0, 0.0, False),
        (4, (1, 2), 1.0, 1.0, True),
        (4, (), 0.0, 0.0, False),
        (4, (), 0.0, 1.0, True),
    ],
)
def test_where_stops_cost_little_rigid_gangs_are_planned_in_pools_that_hold_few(
    job: Any, snapshot: Any, gpus: int, sizes: Any, apart_s: float, restart_s: float, planned: bool
) -> None:
    """Of larger pools, and of gangs whose size may change, the prices of a fluid are nearer to the best, unless these
    keep coming and a stop costs anything; and where stops cost nothing at all, of a batch, which has an end to aim
    at."""
    nodes = (Node("a", {"v100": gpus}), Node("c", {"k80": gpus}))
    queue = [
        job(str(n), form=Form(1, sizes=sizes), restart_cost_s=restart_s, arrival=900.0 + n * apart_s)
        for n in range(1, 20)
    ]
    assert ("plan" in get("hadar").allocate(snapshot(queue, nodes)).memory) is planned


@pytest.mark.parametrize(("apart_s", "unmovable", "wide"), [(0.0, "no", True), (1.0, "no", False), (1.0, None, True)])
def test_a_size_that_stays_is_chosen_with_those_in_mind_who_are_still_to_come(
    job: Any, snapshot: Any, apart_s: float, unmovable: str | None, wide: bool
) -> None:
    """Two GPUs make a job 1.6 times as fast. Four such jobs on four GPUs end sooner two by two, and where others come
    meanwhile those find all GPUs taken for longer. Not after a lone batch, nor where a job can give a GPU back."""
    form, scaled = Form(1, max_nodes=1, sizes=(1, 2)), {2: {"v100": Speed(16.0)}}
    queue = [
        job(str(n), k80=None, p100=None, form=form, scaled=scaled, unmovable=unmovable, restart_cost_s=5.0,
            steps=1e4, arrival=990.0 + n * apart_s)
        for n in range(4)
    ]  # fmt: skip

    plan = get("hadar").allocate(snapshot(queue, (Node("a", {"v100": 4}),)))

    assert any(sum(p.by_type.values()) == 2 for p in plan.placements.values()) is wide


def test_patience(job: Any, running: Any, snapshot: Any) -> None:
    """In a queue too long to be planned it starts on what is free, unless it is told to wait, and then not for ever."""
    nodes = (Node("a", {"v100": 1}), Node("c", {"k80": 1}))
    holder = running("1", {"a": {"v100": 1}}, unmovable="exempt")
    stuck = job("2", steps=1e5, unmovable="saves no checkpoint", arrival=990.0)
    others = [job(f"9{n}", steps=1e9, k80=None, p100=None) for n in range(MOST_JOBS)]

    def placed(arrival: float = 990.0, **params: float) -> Any:
        seen = snapshot([holder, replace(stuck, arrival=arrival), *others], nodes)
        return get("hadar", **params).allocate(seen)

    assert placed().placements["2"].by_type == {"k80": 1}
    patient = placed(patience_s=3600.0)
    assert "2" not in patient.placements and "faster" in patient.waits["2"].why
    assert placed(arrival=-9000.0, patience_s=3600.0).placements["2"].by_type == {"k80": 1}


def test_unmovable_holders_are_named(job: Any, running: Any, snapshot: Any) -> None:
    """A job whose GPUs are held by one that must not move is told by whom."""
    nodes = (Node("a", {"v100": 2}),)
    plan = get("hadar").allocate(snapshot([running("7", {"a": {"v100": 2}}, unmovable="exempt"), job("8", 2)], nodes))
    assert plan.waits["8"].tier is Tier.CAPACITY and "7" in plan.waits["8"].why


def test_unknown_length_counts_as_the_assumed_run_time(job: Any, snapshot: Any) -> None:
    """A job that names no steps goes after a shorter one and before a longer one."""
    nodes = (Node("a", {"v100": 1}),)
    unknown = job("1", steps=None)
    for steps, first in ((1e4, {"2"}), (1e5, {"1"})):
        assert set(get("hadar").allocate(snapshot([unknown, job("2", steps=steps)], nodes)).placements) == first


def test_prices_rise_with_occupancy(job: Any, snapshot: Any) -> None:
    """A type that is sold out costs more than one that is idle; each slot has a price."""
    jobs = [job("1", 2, p100=None, k80=None)]
    plan = get("hadar", prices="round").allocate(snapshot(jobs))
    assert set(plan.prices) == {("a", "v100"), ("b", "p100"), ("c", "k80")}
    assert plan.prices["a", "v100"] > plan.prices["b", "p100"] > 0
    assert plan.payoffs["1"] > 0


def test_later_buyers_pay_more(job: Any, snapshot: Any) -> None:
    """Of equal jobs on one type each pays more than the one before, so its payoff is smaller."""
    jobs = [job(str(i), p100=None, k80=None) for i in range(1, 3)]
    plan = get("hadar", prices="round").allocate(snapshot(jobs))
    assert plan.payoffs["1"] > plan.payoffs["2"] > 0


def test_fill_off_leaves_unprofitable_gpus_idle_but_stops_nobody(running: Any, snapshot: Any) -> None:
    """Without filling, running jobs still keep what nobody bought."""
    nodes = (Node("a", {"v100": 2}),)
    jobs = [running("1", {"a": {"v100": 2}}, steps=1e7)]
    assert set(get("hadar", prices="round", fill=False).allocate(snapshot(jobs, nodes)).placements) == {"1"}


def _random_queue(job: Any, snapshot: Any, seed: Any, count: Any = 40) -> Any:
    rng = random.Random(seed)
    nodes = [Node(f"{t}{i}", {t: 4}) for t in ("v100", "p100", "k80") for i in range(3)]
    jobs = []
    for i in range(count):
        rates = {t: 10 ** rng.uniform(-1, 1) for t in ("v100", "p100", "k80")}
        jobs.append(job(str(i), rng.choice([1, 1, 2, 4, 8]), steps=10 ** rng.uniform(2, 6), **rates))
    return snapshot(jobs, nodes)


@pytest.mark.parametrize("seed", range(5))
def test_work_conserving_and_steady_on_a_busy_cluster(job: Any, snapshot: Any, seed: Any) -> None:
    """With single-GPU jobs waiting no usable GPU is idle, and the plan repeats itself once carried out."""
    queue = _random_queue(job, snapshot, seed, count=100)
    plan = get("hadar").allocate(queue)
    assert check_plan(queue, plan) == []
    assert any(queue.job[j].form.workers == 1 for j in plan.waits)
    assert sum(p.workers for p in plan.placements.values()) == 36
    assert get("hadar").allocate(carry_out(queue, plan)).placements == plan.placements


def test_large_queue_keeps_the_contract(job: Any, snapshot: Any) -> None:
    """A thousand jobs on nine nodes go through the window of the dynamic programme and the greedy rest."""
    queue = _random_queue(job, snapshot, 1, count=1000)
    plan = get("hadar").allocate(queue)
    assert check_plan(queue, plan) == []
    assert sum(p.workers for p in plan.placements.values()) == 36


@pytest.mark.thorough
def test_near_the_optimum_of_a_round(brute_force: Any) -> None:
    """On a fixed seed the plan never falls below 0.8 of the exhaustive optimum, and rarely below it at all."""
    rng, policy = random.Random(3), get("hadar", prices="round")
    ratios = [brute_force.exact_ratio(rng, policy) for _ in range(150)]
    assert max(ratios) <= 1 + 1e-9
    assert min(ratios) >= 0.8
    assert sum(ratios) / len(ratios) >= 0.99


def test_near_the_linear_bound(brute_force: Any) -> None:
    """On queues of moderate size the plan reaches nine tenths of what divisible jobs could."""
    rng, policy = random.Random(3), get("hadar", prices="round")
    ratios = [brute_force.lp_ratio(rng, policy) for _ in range(5)]
    assert max(ratios) <= 1 + 1e-9
    assert sum(ratios) / len(ratios) >= 0.9


def test_a_preferred_type_wins_between_equals_and_is_no_limit() -> None:
    """prefer= is a wish: followed where it costs nothing, given up where the other type is much faster or free."""
    nodes = (Node("a", {"k80": 1}), Node("b", {"v100": 1}))
    equal = {"k80": Speed(5.0), "v100": Speed(5.0)}
    job = Job("1", Form(1), total_steps=1000, speeds=equal, prefer=frozenset({"k80"}))

    assert get("hadar").allocate(Snapshot(0.0, nodes, (job,))).placement("1").by_type == {"k80": 1}
    faster = replace(job, speeds={"k80": Speed(5.0), "v100": Speed(10.0)})
    assert get("hadar").allocate(Snapshot(0.0, nodes, (faster,))).placement("1").by_type == {"v100": 1}
    assert get("hadar").allocate(Snapshot(0.0, nodes[1:], (job,))).placement("1").by_type == {"v100": 1}
