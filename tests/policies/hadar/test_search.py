"""Plans that are played forward, the search for the best of them, and lengths that nobody knows."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_hadar.model import Form, Job, JobState, Node, Placement, Snapshot, Speed
from slurm_hadar.policies import get
from slurm_hadar.policies.hadar.lookahead.estimates.lifetimes import Lifetimes
from slurm_hadar.policies.hadar.lookahead.outlook import Outlook, survey
from slurm_hadar.policies.hadar.lookahead.planning.schedule import Machine, Plans
from slurm_hadar.policies.hadar.lookahead.planning.search import LastPlan, Problem, search
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.testing.snapshots import carry_out
from tests.policies.conftest import NOW, make_job, make_running

NODES = (Node("a", {"v100": 2}), Node("c", {"k80": 2}))
RESTART_S = 50.0


def outlook_of(jobs: Sequence[Job]) -> Outlook:
    return survey(Arena.of(Snapshot(NOW, NODES, tuple(jobs))), Lifetimes(3600.0))


def started(outlook: Outlook) -> Any:
    """Run times with the cost of a start."""
    return outlook.run_s + outlook.restart_s[:, None]


QUEUES = st.lists(
    st.tuples(st.sampled_from((1, 1, 2)), st.integers(100, 9000), st.sampled_from((0.5, 1.0, 3.0))),
    min_size=1,
    max_size=4,
).map(
    lambda drawn: [
        make_job(str(i), workers, float(steps), v100=v100, p100=None, k80=0.5, restart_cost_s=RESTART_S)
        for i, (workers, steps, v100) in enumerate(drawn)
    ]
)


def by_hand(outlook: Outlook, order: Sequence[int], column: Sequence[int]) -> list[float]:
    """When each job ends, served one by one in its column; columns are the two pools here."""
    free = {pool: [0.0, 0.0] for pool in range(2)}
    ends = [0.0] * len(order)
    for job in order:
        pool, width = column[job], int(outlook.workers[job, column[job]])
        times = sorted(free[pool])
        ends[job] = times[width - 1] + started(outlook)[job, pool]
        free[pool] = [ends[job]] * width + times[width:]
    return ends


def no_toll(outlook: Outlook) -> Any:
    return np.zeros(outlook.run_s.shape)


def no_risk(outlook: Outlook) -> Any:
    return np.zeros(len(outlook.jobs))


@given(QUEUES, st.randoms(use_true_random=False))
def test_a_plan_is_played_as_a_list_schedule(jobs: list[Job], rng: Any) -> None:
    """In order, each in its column when enough GPUs are free there."""
    outlook = outlook_of(jobs)
    order = rng.sample(range(len(jobs)), len(jobs))
    column = [rng.randrange(2) for _ in jobs]
    plans = Plans(np.array([order]), np.array([column]), np.full((1, len(jobs)), -1))

    played = Machine(outlook, started(outlook), no_toll(outlook), no_risk(outlook)).play(plans)

    assert played.end_s[0] == pytest.approx(by_hand(outlook, order, column))
    assert played.column[0].tolist() == column
    assert [c >= 0 for c in played.now[0]] == [bool(s == 0) for s in played.start_s[0]]


@given(QUEUES, st.randoms(use_true_random=False))
def test_who_fits_starts_before_a_gang_that_does_not(jobs: list[Job], rng: Any) -> None:
    """At each time the first of the order that fits, where it ends first; played in the order in which they started
    nobody starts later."""
    outlook = outlook_of(jobs)
    order = rng.sample(range(len(jobs)), len(jobs))
    machine = Machine(outlook, started(outlook), no_toll(outlook), no_risk(outlook))
    free, now, waiting, starts = [[0.0, 0.0], [0.0, 0.0]], 0.0, list(order), dict[int, tuple[float, int]]()
    while waiting:
        for job in list(waiting):
            width = int(outlook.workers[job, 0])
            idle = [[at for at, until in enumerate(times) if until <= now] for times in free]
            room = [column for column in range(2) if len(idle[column]) >= width]
            if room:
                column = min(room, key=lambda c: started(outlook)[job, c])
                starts[job] = now, column
                waiting.remove(job)
                for at in idle[column][:width]:
                    free[column][at] = now + started(outlook)[job, column]
        now = min((until for times in free for until in times if until > now), default=now)

    found, where = machine.backfilled(np.array(order))
    played = machine.play(Plans(found[None], where[None], np.full((1, len(jobs)), -1)))

    assert where.tolist() == [starts[job][1] for job in range(len(jobs))]
    assert [starts[job][0] for job in found] == sorted(now for now, _ in starts.values())
    assert all(played.start_s[0, job] <= starts[job][0] + 1e-6 for job in order)


def test_gangs_as_wide_as_the_cluster_go_together() -> None:
    """In the order of GPU time each gang would wait for two GPUs to be empty, between jobs that keep one busy."""
    area = [400.0 + 10 * n for n in range(12)]
    jobs = [
        make_job(str(n), 1 + n % 2, seconds / (1 + n % 2), v100=1.0, p100=None, k80=None, unmovable="no checkpoints")
        for n, seconds in enumerate(area)
    ]
    outlook = outlook_of(jobs)
    machine = Machine(outlook, started(outlook), no_toll(outlook), no_risk(outlook))
    order = np.arange(len(jobs))
    static, filled = (
        machine.play(Plans(o[None], c[None], np.full((1, len(jobs)), -1))).end_s.mean()
        for o, c in ((order, np.full(len(jobs), -1)), machine.backfilled(order))
    )

    assert filled < 0.95 * static


def test_the_meantime_is_used_and_charged() -> None:
    """The fast GPUs are held for 1000 s. A job that then takes 2000 s there does a part of it on the slow ones first;
    one that gains less than a restart does not."""
    holder = make_running("1", {"a": {"v100": 2}}, steps=1000.0, v100=1.0, k80=None, p100=None, unmovable="exempt")
    for steps, gains in ((2000.0, True), (20.0, False)):
        waiting = make_job("2", 2, steps, v100=1.0, p100=None, k80=0.5, restart_cost_s=RESTART_S)
        outlook = outlook_of([holder, waiting])
        machine = Machine(outlook, started(outlook), no_toll(outlook), no_risk(outlook))
        played = machine.play(Plans(np.array([[0]]), np.array([[0]]), np.array([[1]])))
        done = (1000.0 - RESTART_S) / (steps / 0.5)
        ends = 1000.0 + RESTART_S + ((1 - done) * steps if gains else steps)
        assert played.end_s[0, 0] == pytest.approx(ends) and bool(played.now[0, 0] == 1) is gains


def test_who_is_stopped_pays_a_restart_to_go_on() -> None:
    """In the very place that it leaves to another; one that is not stopped pays nothing."""
    runs = make_running("1", {"a": {"v100": 2}}, steps=1000.0, v100=1.0, k80=None, p100=None, restart_cost_s=RESTART_S)
    other = make_job("2", 2, 300.0, v100=1.0, k80=None, p100=None, restart_cost_s=RESTART_S, form=Form(2))
    outlook = outlook_of([runs, other])
    seconds = np.where(outlook.held[:, None] == np.arange(2), outlook.run_s, started(outlook))
    plans = Plans(np.array([[0, 1], [1, 0]]), np.zeros((2, 2), int), np.full((2, 2), -1))

    played = Machine(outlook, seconds, no_toll(outlook), no_risk(outlook)).play(plans)

    assert played.end_s.tolist() == [[1000.0, 1000.0 + RESTART_S + 300.0], [1700.0 - 300.0, RESTART_S + 300.0]]


def elastic(job_id: str, steps: float, **fields: Any) -> Job:
    """1 step/s on one V100, 2 on two."""
    form = Form(1, max_nodes=2, sizes=(1, 2))
    scaled = {2: {"v100": Speed(2.0)}}
    return make_job(job_id, 1, steps, v100=1.0, p100=None, k80=None, form=form, scaled=scaled, **fields)


def test_a_job_grows_where_it_is_when_others_leave() -> None:
    """One GPU is taken for 500 s; until then an elastic job has the other one, and then both."""
    holder = make_running("1", {"a": {"v100": 1}}, steps=500.0, v100=1.0, k80=None, p100=None, unmovable="exempt")
    outlook = outlook_of([holder, elastic("2", 2000.0, restart_cost_s=RESTART_S)])
    one, two = (int(np.flatnonzero(outlook.workers[0] == n)[0]) for n in (1, 2))

    played = Machine(outlook, started(outlook), no_toll(outlook), no_risk(outlook)).play(
        Plans(np.array([[0]]), np.array([[two]]), np.array([[one]]))
    )

    done = 500.0 - RESTART_S
    assert played.end_s[0, 0] == pytest.approx(500.0 + RESTART_S + (2000.0 - done) / 2)
    assert played.now[0, 0] == one


def test_an_elastic_job_leaves_a_way_that_is_far_too_slow() -> None:
    """Until all fast GPUs come free it goes on in the middle way, not where it runs a hundred times as slow. The share
    that a move must gain is of the shorter run time: of the longer one it would be more than the whole meantime."""
    holder = make_running("1", {"a": {"v100": 2}}, steps=2e4, v100=1.0, k80=None, p100=None, unmovable="exempt")
    form, scaled = Form(1, max_nodes=2, sizes=(1, 2)), {2: {"v100": Speed(1.0), "p100": Speed(0.3)}}
    slow = make_job(
        "2", 1, 1e4, v100=0.01, p100=0.01, k80=0.01, restart_cost_s=500.0, form=form, scaled=scaled,
        placement=Placement.of({"c": {"k80": 1}}), state=JobState.RUNNING,
    )  # fmt: skip
    nodes = (Node("a", {"v100": 2}), Node("b", {"p100": 2}), Node("c", {"k80": 2}))

    plan = get("hadar", frontier=0).allocate(Snapshot(NOW, nodes, (holder, slow)))

    assert plan.placement("2").by_type == {"p100": 2}


@settings(deadline=None, max_examples=25)
@given(QUEUES)
def test_the_best_of_all_plans_is_found_in_short_queues(jobs: list[Job]) -> None:
    """By trying them all, without a meantime: never worse than the best by more than a hundredth."""
    outlook = outlook_of(jobs)
    weights, count = np.ones(len(jobs)), len(jobs)
    seconds = started(outlook)
    problem = Problem(
        outlook, seconds, weights, seconds.argmin(axis=1), seconds.min(axis=1), no_toll(outlook), None, 0.0
    )
    nobody = LastPlan(*(np.full(count, -1) for _ in range(3)))

    found = search(problem, nobody, exchanges=True)

    orders = list(itertools.permutations(range(count)))
    best = min(
        np.mean(by_hand(outlook, order, column))
        for order in orders
        for column in itertools.product(range(2), repeat=count)
    )
    assert sorted(found.place) == list(range(count))
    plan = Plans(np.argsort(found.place)[None], found.column[None], found.via[None])
    assert problem.value(Machine(outlook, seconds, no_toll(outlook), no_risk(outlook)).play(plan))[0] <= best * 1.01


@settings(deadline=None, max_examples=25)
@given(QUEUES)
def test_the_plan_is_kept_while_nothing_happens(jobs: list[Job]) -> None:
    """A round after it was carried out, who runs stays where he is."""
    policy, seen = get("hadar"), Snapshot(NOW, NODES, tuple(jobs))
    plan = policy.allocate(seen)

    again = policy.allocate(replace(carry_out(seen, plan), memory=plan.memory, time=NOW + 60.0))

    assert again.placements == plan.placements


def test_at_the_same_instant_nobody_is_moved() -> None:
    """Whoever was placed keeps his place, among nodes that are all alike."""
    nodes, job = (Node("a", {"v100": 1}), Node("b", {"v100": 1})), make_job("1", steps=1e4, restart_cost_s=300.0)
    seen = Snapshot(NOW, nodes, (job,))
    plan = get("hadar").allocate(seen)

    assert get("hadar").allocate(carry_out(seen, plan)).placements == plan.placements


def test_who_cannot_be_moved_has_no_meantime() -> None:
    """It would never leave it."""
    holder = make_running("1", {"a": {"v100": 2}}, steps=1000.0, v100=1.0, k80=None, p100=None, unmovable="exempt")
    for unmovable, placed in ((None, {"k80": 1}), ("saves nothing", {})):
        waiting = make_job("2", 1, 9e3, v100=1.0, p100=None, k80=0.2, restart_cost_s=100.0, unmovable=unmovable)
        assert get("hadar").allocate(Snapshot(NOW, NODES, (holder, waiting))).placement("2").by_type == placed


@pytest.mark.parametrize(("unmovable", "first"), [(None, "2"), ("saves nothing", "1")])
def test_who_cannot_be_moved_is_weighed_by_the_mean_of_what_is_predicted(unmovable: str | None, first: str) -> None:
    """The second is most likely the shorter one, but may well be far longer."""
    alike = {"p100": None, "k80": None, "steps": None, "arrival": NOW - 50, "restart_cost_s": 60.0}
    sure = make_job("1", 2, predicted_steps=20e3, predicted_range=(19e3, 21e3), unmovable=unmovable, **alike)
    wide = make_job("2", 2, predicted_steps=18e3, predicted_range=(2e3, 160e3), unmovable=unmovable, **alike)
    assert set(get("hadar").allocate(Snapshot(NOW, NODES[:1], (sure, wide))).placements) == {first}


@pytest.mark.parametrize(
    ("sizes", "steps", "runs"), [((2, 4), None, "1"), ((), None, "2"), ((2, 4), (36e3, 36e3), "2")],
    ids=["elastic, unknown", "rigid, unknown", "elastic, stated"],
)  # fmt: skip
def test_an_elastic_job_of_unknown_length_is_not_stopped_for_another(sizes: Any, steps: Any, runs: str) -> None:
    """Its first measurement shows that it is half as fast here as was thought; of who waits there is but an estimate,
    that is no worse. So it went on with each that was started."""
    nodes = (Node("a", {"v100": 2}), Node("b", {"p100": 2}))
    holder = make_running("9", {"b": {"p100": 2}}, steps=1e6, p100=10.0, unmovable="exempt")
    form, (mine, its) = Form(2, sizes=sizes), steps or (None, None)
    speeds = {"v100": Speed(5.0, 0.8, measured=True), "p100": Speed(10.0, 0.8)}
    asks = {"form": form, "k80": None, "restart_cost_s": 300.0, "arrival": NOW - 400}
    slow = replace(make_running("1", {"a": {"v100": 2}}, steps=mine, **asks), speeds=speeds, done_steps=10.0)
    waits = make_job("2", steps=its, v100=10.0, p100=4.0, **asks)

    plan = get("hadar").allocate(Snapshot(NOW, nodes, (holder, slow, waits)))

    assert {*plan.placements} == {"9", runs}
