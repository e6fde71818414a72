"""Hadar with prices that look ahead: elastic and mixed gangs, filling, memory, the makespan on the knob."""

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given

from slurm_hadar.model import Form, JobState, Mix, Node, Placement, Speed, Tier
from slurm_hadar.policies import check_plan, get
from slurm_hadar.simulator.run import SimOptions, simulate
from slurm_hadar.simulator.traces import Trace, TraceJob
from slurm_hadar.testing.snapshots import carry_out, snapshots

FOUR = (Node("a", {"v100": 4}),)


def elastic(job: Any, job_id: Any, rates: Any = ((1, 1.0), (2, 1.8), (4, 3.0)), **fields: Any) -> Any:
    """A job of 2 GPUs that can also have 1 or 4, at these steps/s."""
    speeds = {n: {"v100": Speed(rate)} for n, rate in rates}
    asked = job(job_id, form=Form(2, max_nodes=2, sizes=tuple(speeds)), **fields)
    return replace(asked, speeds=speeds.pop(2), scaled=speeds)


def width(plan: Any, job_id: Any) -> Any:
    return plan.placement(job_id).workers


# Elastic gangs


def test_an_elastic_job_alone_takes_the_largest_size_that_is_faster(job: Any, snapshot: Any) -> None:
    """All four GPUs where they help, two where four would be slower."""
    helps = elastic(job, "1")
    hurts = elastic(job, "1", rates=((1, 1.0), (2, 1.8), (4, 1.7)))
    assert width(get("hadar").allocate(snapshot([helps], FOUR)), "1") == 4
    assert width(get("hadar").allocate(snapshot([hurts], FOUR)), "1") == 2


def test_an_elastic_job_whose_asked_size_fits_nowhere_waits_for_its_turn(job: Any, snapshot: Any) -> None:
    """Others of its sizes fit, so its owner has nothing to mend."""
    jobs = []
    for i in "123":
        made = elastic(job, i, rates=((2, 1.8), (4, 3.0), (8, 5.0)))
        form = replace(made.form, workers=8, max_nodes=1)
        jobs.append(replace(made, form=form, speeds=made.scaled[8], scaled={**made.scaled, 2: made.speeds}))
    plan = get("hadar").allocate(snapshot(jobs, (Node("a", {"v100": 4}),)))
    assert plan.placements and all(wait.tier is not Tier.CANNOT_RUN for wait in plan.waits.values())
    too_large = replace(jobs[0], form=replace(jobs[0].form, sizes=(8, 16)))
    assert get("hadar").allocate(snapshot([too_large], (Node("a", {"v100": 4}),))).waits["1"].tier is Tier.CANNOT_RUN


def test_elastic_jobs_are_small_while_many_wait(job: Any, snapshot: Any) -> None:
    """The more wait, the more the work per GPU counts. On four GPUs eight equal jobs end soonest on average in pairs
    (the sum is 1111 ks, 1200 ks with 1 or 4 GPUs each), a hundred with one GPU each (130 Ms; 142 Ms and 168 Ms)."""
    for count, sizes in ((8, [2, 2]), (100, [1, 1, 1, 1])):
        jobs = [elastic(job, str(i), steps=1e5, arrival=900.0) for i in range(1, count + 1)]
        plan = get("hadar", frontier=0.0).allocate(snapshot(jobs, FOUR))
        assert [p.workers for p in plan.placements.values()] == sizes


def test_an_elastic_job_shrinks_when_others_come_and_grows_when_they_are_gone(job: Any, snapshot: Any) -> None:
    """The plan follows the queue, through the memory of the rounds before. Job 1, which has done most, goes first."""
    policy = get("hadar")
    rates = ((1, 1.0), (2, 1.6), (4, 2.0))
    alone = snapshot([elastic(job, "1", rates, steps=1e6)], FOUR)
    first = policy.allocate(alone)
    assert width(first, "1") == 4
    crowd = [elastic(job, str(i), rates, steps=1e6, arrival=1360.0) for i in range(2, 5)]
    later = replace(carry_out(alone, first), time=1360.0)
    later = later.with_jobs([replace(later.jobs[0], done_steps=4e5), *crowd])
    second = policy.allocate(later)
    assert check_plan(later, second) == []
    assert len(second.placements) == 2 and width(second, "1") == 2
    deserted = carry_out(later, second)
    deserted = replace(deserted.with_jobs([j for j in deserted.jobs if j.job_id == "1"]), time=1720.0)
    assert width(policy.allocate(deserted), "1") == 4


def test_an_elastic_job_does_not_change_its_size_for_less_than_the_restart(job: Any, snapshot: Any) -> None:
    """Two more GPUs are worth it to a job with much left, and not to one that is nearly done."""
    long = replace(elastic(job, "1", steps=1e5), state=JobState.RUNNING, placement=Placement.of({"a": {"v100": 2}}))
    nearly = replace(long, total_steps=90.0)
    assert width(get("hadar").allocate(snapshot([long], FOUR)), "1") == 4
    assert width(get("hadar").allocate(snapshot([nearly], FOUR)), "1") == 2


def test_what_a_server_does_not_want_is_given_back_when_others_want_it(job: Any, snapshot: Any) -> None:
    """Four GPUs that are worth no more than one: kept while nobody waits, left to three who do. Wanted, and they are
    taken where they are free."""

    def serving(wanted: int, held: int) -> Any:
        rates = {1: 1.0, 2: 1.8, 4: 3.0}
        asked = elastic(job, "1", tuple((n, rates[min(n, wanted)]) for n in rates), steps=None, serves=True)
        return replace(asked, state=JobState.RUNNING, placement=Placement.of({"a": {"v100": held}}))

    others = [job(str(n), steps=1e4, arrival=900.0) for n in range(2, 5)]
    policy = get("hadar")
    assert width(policy.allocate(snapshot([serving(1, 4)], FOUR)), "1") == 4
    plan = policy.allocate(snapshot([serving(1, 4), *others], FOUR))
    assert width(plan, "1") == 1 and len(plan.placements) == 4
    assert width(policy.allocate(snapshot([serving(1, 1)], FOUR)), "1") == 1
    assert width(policy.allocate(snapshot([serving(4, 1)], FOUR)), "1") == 4


# Mixed gangs


def test_mixed_gangs_take_what_is_left_and_balanced_ones_the_fast_part_of_it(job: Any, snapshot: Any) -> None:
    """Two v100, a p100 and two k80 are left over. A gang of three leaves the k80s alone, gated or balanced. In a gang
    of four, which needs one, a balanced one takes all faster GPUs; a gated one, at the k80's rate anyway, few
    nodes.
    """
    nodes = (Node("a", {"v100": 2}), Node("b", {"p100": 1}), Node("c", {"k80": 2}))

    def types(workers: Any, mix: Any) -> Any:
        form = Form(workers, max_nodes=4, mix=mix, uniform=False)
        return get("hadar").allocate(snapshot([job("1", form=form)], nodes)).placement("1").by_type

    assert types(3, Mix.GATED) == types(3, Mix.BALANCED) == {"v100": 2, "p100": 1}
    assert types(4, Mix.BALANCED) == {"v100": 2, "p100": 1, "k80": 1}
    assert types(4, Mix.GATED) == {"v100": 2, "k80": 2}
    assert types(4, Mix.NEVER) == {}


def test_a_mixed_gang_takes_nothing_from_others(job: Any, snapshot: Any) -> None:
    """Jobs on one type go first; what they leave is too little for the mixed gang, which waits."""
    nodes = (Node("a", {"v100": 2}), Node("b", {"p100": 2}))
    mixed = job("9", form=Form(4, max_nodes=2, mix=Mix.BALANCED), steps=10.0)
    plan = get("hadar").allocate(snapshot([job("1", 2), mixed], nodes))
    assert set(plan.placements) == {"1"}
    assert "several types" in plan.waits["9"].why


# Where gangs go


def test_wide_gangs_are_laid_out_before_narrow_ones(job: Any, snapshot: Any) -> None:
    """Gangs of 1, 2, 3 and 2, in this order of density, fill two nodes of four only if the widest is placed first."""
    nodes = (Node("a", {"v100": 4}), Node("b", {"v100": 4}))
    steps = {"1": (1, 1e3), "2": (2, 2e3), "3": (3, 3e3), "4": (2, 5e3)}
    jobs = [job(name, form=Form(workers), steps=n, p100=None, k80=None) for name, (workers, n) in steps.items()]
    plan = get("hadar").allocate(snapshot(jobs, nodes))
    assert set(plan.placements) == {"1", "2", "3", "4"}


def test_running_jobs_stay_where_a_newcomer_fits_beside_them(job: Any, running: Any, snapshot: Any) -> None:
    """A wide newcomer takes the free node although running jobs come first in line."""
    nodes = (Node("a", {"v100": 4}), Node("b", {"v100": 4}))
    here = [running(str(i), {"b": {"v100": 1}}, steps=5e4) for i in range(1, 4)]
    plan = get("hadar").allocate(snapshot([*here, job("9", form=Form(4), steps=1e5)], nodes))
    assert all(plan.placements[j.job_id] == j.placement for j in here)
    assert plan.placements["9"] == Placement.of({"a": {"v100": 4}})


# What is left over


@pytest.mark.parametrize("coming", [False, True])
def test_nobody_runs_on_a_slower_type_beside_idle_faster_gpus(running: Any, snapshot: Any, coming: Any) -> None:
    """Nine jobs on ten GPUs are no queue; in a fluid each waited for those shorter than itself, and two went to a
    slower type. Where jobs keep coming, who runs there stays, and who runs elsewhere does not count on room."""
    nodes = (Node("a", {"v100": 10}), Node("b", {"p100": 4}))
    when = {str(i): 1000.0 - (i if coming else 5e4) for i in range(1, 10)}
    there = [
        running(str(i), {"a": {"v100": 1}}, arrival=when[str(i)], steps=1e5, p100=8.0, restart_cost_s=30.0)
        for i in range(1, 9)
    ]
    slow = running("9", {"b": {"p100": 1}}, arrival=when["9"], steps=2e5, p100=8.0, restart_cost_s=30.0)
    plan = get("hadar", frontier=0.0).allocate(snapshot([*there, slow], nodes))
    assert [plan.placement(j.job_id).by_type for j in there] == [{"v100": 1}] * 8
    assert plan.placement("9").by_type == ({"p100": 1} if coming else {"v100": 1})


@pytest.mark.thorough
def test_nobody_is_sent_to_a_slower_type_for_an_end_that_is_not_in_danger() -> None:
    """Nine jobs of ten hours, one each half hour. The last one ends last, whatever the others do; one that would take
    as long on the slow type was sent there every few minutes, and came back to GPUs that were idle."""
    speeds = {"v100": 1.3, "p100": 1.0}
    jobs = tuple(
        TraceJob(str(i), 1800.0 * i, "m", 1, 1, 46800.0, steps_per_s=speeds, restart_s=20.0, start_s=10.0)
        for i in range(9)
    )
    result = simulate(Trace("late", "drawn", jobs), get("hadar"), SimOptions("v100:10x1,p100:10x1", round_s=60))
    assert sum(row.restarts for row in result.counted) <= len(jobs)


def test_critical_jobs_take_turns_that_are_worth_their_restarts() -> None:
    """Ten equal gangs, of which five have a GPU type that is twice as fast: they end together by taking turns with it.
    Each was critical until it had run for a round."""
    speeds = {"v100": 2.0, "p100": 1.0}
    jobs = tuple(
        TraceJob(str(i), 600.0 * i, "m", 1, 2, 72000.0, steps_per_s=speeds, restart_s=20.0, start_s=10.0)
        for i in range(10)
    )
    options = SimOptions("v100:5x2,p100:5x2", round_s=60, event_round_s=10)
    result = simulate(Trace("turns", "drawn", jobs), get("hadar"), options)
    assert sum(row.restarts for row in result.counted) <= 5 * len(jobs)


@pytest.mark.parametrize("sizes", [(), (1, 2)])
def test_equal_jobs_do_not_take_turns_with_what_they_have_for_the_meantime(sizes: Any) -> None:
    """Fourteen on six fast GPUs and four slow ones. Who runs on a slow one goes on there until its turn comes, and does
    not lose it each round to another that waits: that made up to 800 restarts."""
    speeds = {"v100": 10.0, "p100": 2.5}
    scaled = {n: {t: rate * n**0.8 for t, rate in speeds.items()} for n in sizes[1:]}
    jobs = tuple(
        TraceJob(
            str(i), 0.0, "m", 1, 1, 2e4, user="u", name="n", steps_per_s=speeds, restart_s=5.0, start_s=5.0,
            sizes=sizes, scaled=scaled,
        )
        for i in range(14)
    )  # fmt: skip
    options = SimOptions("v100:6x1,p100:4x1", round_s=60, event_round_s=10)
    result = simulate(Trace("equal", "drawn", jobs), get("hadar", frontier=0.0), options)
    assert sum(row.restarts for row in result.counted) <= 3 * len(jobs)


def test_no_fill_for_a_job_whose_turn_comes_before_a_restart_pays(job: Any, running: Any, snapshot: Any) -> None:
    """Its fast GPU is busy for a while. On the slow one it would do a ninth of the work meanwhile: worth it if that is
    more than a restart, and not if the turn comes before."""
    nodes = (Node("a", {"v100": 1}), Node("c", {"k80": 1}))

    def meanwhile(holder_steps: Any, restart_s: Any) -> Any:
        holder = running("1", {"a": {"v100": 1}}, steps=holder_steps, k80=None, p100=None)
        waiting = job("2", steps=1e6, k80=1.0, restart_cost_s=restart_s)
        return get("hadar", frontier=0.0).allocate(snapshot([holder, waiting], nodes)).placement("2").by_type

    assert meanwhile(1e5, restart_s=30.0) == {"k80": 1}
    assert meanwhile(1e5, restart_s=3600.0) == {}
    assert meanwhile(1800.0, restart_s=30.0) == {}


def test_jobs_on_a_draining_node_stay_or_move(running: Any, snapshot: Any) -> None:
    """It moves to a free node, and stays where it is if there is none; it is not stopped for nothing."""
    drained = Node("a", {"v100": 2}, available=False, state="draining", reason="fan")
    holder = running("1", {"a": {"v100": 2}}, steps=1e6)
    full = running("2", {"b": {"v100": 2}}, steps=1e3)
    free, busy = (drained, Node("b", {"v100": 2})), (drained, Node("b", {"v100": 2}))
    assert get("hadar").allocate(snapshot([holder], free)).placement("1").nodes in (("a",), ("b",))
    plan = get("hadar").allocate(snapshot([holder, full], busy))
    assert plan.placement("1") == holder.placement and plan.placement("2") == full.placement


# Memory


@given(snapshots(max_jobs=10))
def test_losing_the_memory_costs_nothing_but_knowledge(seen: Any) -> None:
    """With the memory the plan repeats itself; without, with that of another queue or with older keys it is still a
    plan that keeps the contract."""
    policy = get("hadar", frontier=0.5)
    plan = policy.allocate(seen)
    after = carry_out(seen, plan)
    assert policy.allocate(after).placements == plan.placements
    columns = {j.job_id: "gone/elsewhere/8*3" for j in seen.jobs}
    for memory in ({}, {"columns": columns, "terminal": {"gone//4": 3.0}, "end": 0.0, "time": 0.0}):
        forgetful = replace(after, memory=memory, time=after.time + 60.0)
        assert check_plan(forgetful, policy.allocate(forgetful)) == []


def test_who_is_not_decided_about_for_a_while_is_not_new_afterwards(job: Any, snapshot: Any) -> None:
    """The makespan aimed at moves for jobs that come, and for nobody who was left alone while it started."""
    policy = get("hadar")
    jobs = [job(str(i), 1, steps=1e5 * i, arrival=900.0) for i in range(1, 9)]
    seen = snapshot(jobs, FOUR)
    end = policy.allocate(seen).memory["end"]
    for minutes in range(1, 6):
        seen = carry_out(seen, policy.allocate(seen))
        begun = [replace(j, unmovable="is starting" if j.running and minutes % 2 else None) for j in seen.jobs]
        seen = replace(seen.with_jobs(begun), time=seen.time + 60.0)
    assert policy.allocate(seen).memory["end"] == end
    with_new = seen.with_jobs([*seen.jobs, job("9", 1, steps=1e7)])
    assert policy.allocate(with_new).memory["end"] > end


def test_plan_is_the_same_however_the_jobs_are_listed(job: Any, snapshot: Any) -> None:
    """Order of arrival and id decide ties, not the order in a list."""
    rng = random.Random(5)
    jobs = [job(str(i), rng.choice((1, 2)), steps=rng.choice((1e4, 2e4))) for i in range(1, 30)]
    plan = get("hadar").allocate(snapshot(jobs))
    rng.shuffle(jobs)
    assert get("hadar").allocate(snapshot(jobs)).placements == plan.placements


# The knob


def static_queue(seed: Any) -> Any:
    """Thirty jobs, all there from the start, short and long, with a comparative advantage each."""
    rng = random.Random(seed)
    jobs = []
    for i in range(30):
        fast = 10 ** rng.uniform(0, 1)
        rates = {"v100": fast, "p100": fast * rng.uniform(0.3, 0.9), "k80": fast * rng.uniform(0.05, 0.4)}
        steps = fast * 3600 * 10 ** rng.uniform(-0.7, 1.2)
        jobs.append(TraceJob(f"j{i:02}", 0.0, "", None, rng.choice((1, 1, 1, 2, 4)), steps, steps_per_s=rates))
    return Trace("static", "csv", tuple(jobs))


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 2))])
def test_the_knob_trades_average_jct_for_ttd(seed: Any) -> None:
    """At 0.5 the last job ends no later than at 0, at a loss of the average JCT that is bounded."""
    found = {}
    for frontier in (0.0, 0.5):
        options = SimOptions("v100:2x4,p100:2x4,k80:2x4", restart_s=30.0)
        found[frontier] = simulate(static_queue(seed), get("hadar", frontier=frontier), options).summary()
    assert found[0.5]["ttd_s"] <= found[0.0]["ttd_s"] * (1 + 1e-9)
    assert found[0.5]["avg_jct_s"] <= found[0.0]["avg_jct_s"] * 1.15


def elastic_stream(seed: int) -> Trace:
    """Forty jobs that come one after the other and may have 1 to 16 GPUs, at which they do 2.7 to 5.3 times as much."""
    rng = random.Random(seed)
    jobs, now = [], 0.0
    for i in range(40):
        now += rng.expovariate(1 / 250)
        fast, scaling = rng.uniform(1, 4), rng.uniform(0.35, 0.6)
        rates = {"v100": fast, "p100": 0.6 * fast}
        scaled = {n: {t: rate * n**scaling for t, rate in rates.items()} for n in (2, 4, 8, 16)}
        steps = fast * 1800 * 10 ** rng.uniform(-0.5, 1.0)
        jobs.append(TraceJob(f"j{i:02}", now, "", None, 1, steps, (1, 2, 4, 8, 16),
                             restart_s=90.0, steps_per_s=rates, scaled=scaled))  # fmt: skip
    return Trace("elastic", "csv", tuple(jobs))


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 2))])
def test_for_the_makespan_elastic_gangs_are_no_wider_than_it_pays(seed: int) -> None:
    """Made as wide as can be they would do less for each GPU, and be stopped again and again."""
    options = SimOptions("v100:2x8,p100:2x8")
    usual, ttd = (
        simulate(elastic_stream(seed), get("hadar", **params), options).summary()
        for params in ({}, {"objective": "ttd"})
    )
    assert ttd["ttd_s"] <= 1.02 * usual["ttd_s"]
    assert ttd["avg_jct_s"] <= 1.5 * usual["avg_jct_s"]


def half_fixed(seed: int) -> Trace:
    """Forty jobs that come one after the other, every other of which cannot be moved, and four fifths with a
    deadline."""
    rng = random.Random(seed)
    jobs, now = [], 0.0
    for i in range(40):
        now += rng.expovariate(1 / 300)
        fast = rng.uniform(1, 4)
        rates = {"v100": fast, "p100": 0.6 * fast, "k80": 0.2 * fast}
        seconds = 1800 * 10 ** rng.uniform(-0.7, 0.8)
        due_s = now + seconds * rng.uniform(1.3, 5) if i % 5 else None
        jobs.append(TraceJob(f"j{i:02}", now, "", None, rng.choice((1, 1, 2, 4)), fast * seconds, deadline_s=due_s,
                             restart_s=60.0, movable=i % 2 == 0, steps_per_s=rates))  # fmt: skip
    return Trace("half", "csv", tuple(jobs))


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.thorough) for n in (1, 2))])
def test_who_cannot_be_moved_is_no_reason_for_others_to_wait_for_ever(seed: int) -> None:
    """A plan knows who stays where; prices start whom the rest then cannot pass."""
    played = simulate(half_fixed(seed), get("hadar", objective="ftf"), SimOptions("v100:2x4,p100:2x4,k80:2x4"))
    assert played.summary()["ftf_max"] <= 2.0
