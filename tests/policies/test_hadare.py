"""HadarE: which copies run where."""

from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.errors import ConfigError
from slurm_hadar.model import Fork, Form, JobState, Node, Placement, Speed, Tier
from slurm_hadar.policies import check_plan, get
from slurm_hadar.policies.hadar.lookahead.plan import look_ahead_weighed
from slurm_hadar.policies.hadar.lookahead.rules import Rules
from slurm_hadar.testing.snapshots import carry_out

NODES = (
    Node("a", {"v100": 1}),
    Node("b", {"v100": 1}),
    Node("c", {"p100": 1}),
    Node("d", {"p100": 1}),
    Node("e", {"k80": 1}),
)
LONG = 1e5


@pytest.fixture
def copies(job: Any) -> Any:
    """Five copies of a forked job; with ``rates`` as its speeds."""

    def make(parent: Any = "7", count: Any = 5, fork: Any = Fork.AUTO, rates: Any = None, **fields: Any) -> Any:
        fields.setdefault("steps", LONG)
        base = replace(job(parent, form=fields.pop("form", Form(1)), **fields), array_id=parent, fork=fork)
        base = replace(base, speeds=rates or base.speeds)
        return [replace(base, job_id=f"{parent}_{k}") for k in range(count)]

    return make


def started(copy: Any, node: Any, gpu_type: Any, count: Any = 1, **fields: Any) -> Any:
    return replace(copy, state=JobState.RUNNING, placement=Placement.of({node: {gpu_type: count}}), **fields)


def decide(state: Any, *, steady: Any = True, **params: Any) -> Any:
    """A plan that keeps the contract, and that is repeated once it is carried out."""
    policy = get("hadare", **params)
    plan = policy.allocate(state)
    assert check_plan(state, plan) == []
    assert not steady or policy.allocate(carry_out(state, plan)).placements == plan.placements
    return plan


def nodes_of(plan: Any, parent: Any) -> Any:
    return sorted(n for j, p in plan.placements.items() if j.split("_")[0] == parent for n in p.nodes)


@pytest.mark.parametrize("params", [{}, {"objective": "ttd"}, {"fork": "idle"}, {"fork": "spread"}], ids=str)
def test_a_lone_job_has_a_copy_on_every_node(copies: Any, snapshot: Any, params: Any) -> None:
    assert nodes_of(decide(snapshot(copies(), NODES), **params), "7") == list("abcde")


def test_a_forked_job_keeps_no_other_from_waiting_for_a_faster_gpu(copies: Any, job: Any, snapshot: Any) -> None:
    """A job that cannot be moved once it runs waits for a V100 that comes free soon, as under Hadar."""
    soon = [
        started(job(str(i), form=Form(1), steps=1000.0), n, "v100", unmovable="no checkpoints")
        for i, n in ((1, "a"), (2, "b"))
    ]
    stuck = job("3", form=Form(1), steps=LONG, unmovable="no checkpoints")
    for queue in ([*soon, stuck], [*soon, stuck, *copies(steps=10 * LONG, fork=Fork.IDLE)]):
        assert "3" not in decide(snapshot(queue, NODES)).placements


def test_without_forked_jobs_it_is_hadar(job: Any, snapshot: Any) -> None:
    state = snapshot([job(str(i), steps=1e4 * (i + 1)) for i in range(8)], NODES)
    ours, hadars = get("hadare").allocate(state), get("hadar", frontier=0.1).allocate(state)
    assert replace(ours, policy="hadar") == hadars


def test_with_jobs_enough_idle_is_hadars_plan(copies: Any, job: Any, snapshot: Any) -> None:
    """As many parents as nodes: each node has a parent of its own, the one that Hadar's prices would put there."""
    steps = {str(i): LONG * (1 + 0.1 * i) for i in range(1, 6)}
    forked = snapshot([c for parent, s in steps.items() for c in copies(parent, steps=s)], NODES)
    plain = snapshot([job(i, steps=s, form=Form(1)) for i, s in steps.items()], NODES)
    hadars, _ = look_ahead_weighed(Rules("jct", 0.1, 0.0, "none", 0.05, 3600.0, 0.0), plain, "hadar")
    plan = decide(forked, fork="idle")
    assert {j.split("_")[0]: p for j, p in plan.placements.items()} == dict(hadars.placements)


def test_forked_jobs_have_all_nodes_one_after_the_other(copies: Any, snapshot: Any) -> None:
    """As many parents as nodes; copies add up, so nobody gains by sharing."""
    steps = {str(i): LONG * (1 + 0.5 * i) for i in range(5, 0, -1)}
    state = snapshot([c for parent, s in steps.items() for c in copies(parent, steps=s)], NODES)
    for first in map(str, range(1, 6)):
        plan = decide(state)
        assert nodes_of(plan, first) == list("abcde")
        over = {f"{first}_{k}" for k in range(5)}
        state = carry_out(state, plan)
        state = replace(state, time=state.time + 360, jobs=tuple(j for j in state.jobs if j.job_id not in over))


def test_who_goes_first_leaves_a_node_that_is_worth_more_to_those_behind(copies: Any, snapshot: Any) -> None:
    flat = {t: Speed(10.0) for t in ("v100", "p100", "k80")}
    steep = {"v100": Speed(1.0), "p100": Speed(1.0), "k80": Speed(40.0)}
    plan = decide(snapshot([*copies("1", rates=flat), *copies("2", steps=2 * LONG, rates=steep)], NODES))
    assert nodes_of(plan, "1") == list("abcd") and nodes_of(plan, "2") == ["e"]


def test_others_are_not_stopped_for_a_speed_that_is_hardly_known(copies: Any, snapshot: Any) -> None:
    """Two nodes on which both run alike: the first has both, if that is true."""

    def taken(error: float) -> list[str]:
        same = {t: Speed(10.0, error=error) for t in ("v100", "p100")}
        nodes = (NODES[0], NODES[2])
        jobs = [*copies("1", count=2, rates=same), *copies("2", count=2, steps=5 * LONG, rates=same)]
        return nodes_of(decide(snapshot(jobs, nodes)), "1")

    assert taken(0.0) == ["a", "c"] and len(taken(1.5)) == 1


def test_two_jobs_share_the_idle_nodes(copies: Any, snapshot: Any) -> None:
    plan = decide(snapshot([*copies("1"), *copies("2")], NODES))
    assert sorted(nodes_of(plan, "1") + nodes_of(plan, "2")) == list("abcde")
    assert len(nodes_of(plan, "1")) in (2, 3)


def test_idle_nodes_go_to_the_shorter_job_which_leaves_them_to_the_longer(copies: Any, snapshot: Any) -> None:
    """Both end sooner on average than if each had copies: the longer one has all nodes afterwards."""
    plan = decide(snapshot([*copies("1", steps=LONG), *copies("2", steps=5 * LONG)], NODES), fork="idle")
    assert len(nodes_of(plan, "1")) == 4 and len(nodes_of(plan, "2")) == 1


def test_what_is_done_within_a_round_leaves_idle_nodes_to_the_longer_job(copies: Any, snapshot: Any) -> None:
    """They would stand idle until the next round."""
    plan = decide(snapshot([*copies("1", steps=1000.0), *copies("2", steps=LONG)], NODES, round_s=900.0), fork="idle")
    assert len(nodes_of(plan, "1")) == 1 and len(nodes_of(plan, "2")) == 4


def test_for_the_total_time_the_longest_gets_most(copies: Any, snapshot: Any) -> None:
    plan = decide(snapshot([*copies("1", steps=LONG), *copies("2", steps=5 * LONG)], NODES), objective="ttd")
    assert nodes_of(plan, "2") and len(nodes_of(plan, "2")) == 4


def test_a_copy_on_idle_gpus_must_earn_its_start(copies: Any, snapshot: Any) -> None:
    """Which takes 30 s. Where 40 s are left, a second one would work for 5 s of the last 35."""
    first, *rest = copies()
    nodes = {}
    for left_s in (120.0, 60.0, 40.0):
        jobs = [replace(c, total_steps=10.0 * left_s) for c in (started(first, "a", "v100"), *rest)]
        plan = decide(snapshot(jobs, NODES))
        nodes[left_s] = nodes_of(plan, "7")
    assert nodes == {120.0: list("abcd"), 60.0: ["a", "b"], 40.0: ["a"]}
    assert plan.waits["7_4"].tier is Tier.POLICY
    assert "too soon" in plan.waits["7_4"].why


def test_a_running_copy_stays_to_the_very_end(copies: Any, snapshot: Any) -> None:
    """A slow copy goes on: what it does until the last consolidation counts, and its node has nothing else to do."""
    first, second, *rest = copies(steps=300.0)
    state = snapshot([started(first, "a", "v100"), started(second, "e", "k80"), *rest], NODES)
    assert nodes_of(decide(state), "7") == ["a", "e"]


def test_a_faster_node_that_falls_free_gets_a_copy_and_nothing_moves(copies: Any, snapshot: Any) -> None:
    first, *rest = copies()
    plan = decide(snapshot([started(first, "e", "k80"), *rest], NODES))
    assert plan.placements["7_0"].nodes == ("e",)
    assert nodes_of(plan, "7") == list("abcde")


def test_of_two_copies_on_one_node_one_goes_elsewhere(copies: Any, snapshot: Any) -> None:
    first, second = copies(count=2)
    nodes = (Node("a", {"v100": 2}), Node("b", {"p100": 1}))
    plan = decide(snapshot([started(first, "a", "v100"), started(second, "a", "v100")], nodes))
    assert nodes_of(plan, "7") == ["a", "b"]


def test_without_a_spare_copy_the_lead_moves(copies: Any, snapshot: Any) -> None:
    (only,) = copies(count=1)
    plan = decide(snapshot([started(only, "e", "k80")], NODES))
    assert plan.placements["7_0"].by_type == {"v100": 1}


def test_copies_make_way_for_jobs_that_arrive(copies: Any, job: Any, snapshot: Any) -> None:
    state = snapshot(copies(), NODES)
    running = carry_out(state, decide(state))
    new = tuple(job(str(i), form=Form(1), steps=LONG) for i in range(10, 14))
    plan = decide(replace(running, time=running.time + 360, jobs=(*running.jobs, *new)))
    assert {"10", "11", "12", "13"} <= set(plan.placements)
    assert len(nodes_of(plan, "7")) == 1


def test_unmovable_copies_stay(copies: Any, job: Any, snapshot: Any) -> None:
    first, second, *rest = copies(unmovable="started just now")
    state = snapshot([started(first, "e", "k80"), started(second, "a", "v100"), *rest, job("9", form=Form(1))], NODES)
    plan = decide(state)
    assert plan.placements["7_0"].nodes == ("e",) and plan.placements["7_1"].nodes == ("a",)
    assert "9" in plan.placements and len(plan.placements) == 5


def test_spread_takes_the_nodes_of_less_dense_jobs(copies: Any, job: Any, snapshot: Any) -> None:
    others = [job(str(i), form=Form(1), steps=50 * LONG) for i in range(20, 25)]
    jobs = [*copies(fork=Fork.SPREAD), *others]
    assert nodes_of(decide(snapshot(jobs, NODES)), "7") == list("abcde")
    assert len(nodes_of(decide(snapshot(jobs, NODES), fork="idle", steady=False), "7")) == 1


def test_auto_takes_the_nodes_of_others_where_the_parent_is_urgent(copies: Any, job: Any, snapshot: Any) -> None:
    others = [job(str(i), form=Form(1), steps=LONG, weight=0.2) for i in range(20, 30)]
    urgent = decide(snapshot([*copies(weight=20.0), *others], NODES))
    calm = decide(snapshot([*copies(weight=0.2), *others], NODES), steady=False)
    assert len(nodes_of(urgent, "7")) > 1 == len(nodes_of(calm, "7"))
    ousted = next(w for j, w in urgent.waits.items() if "copies of job 7" in w.why)
    assert ousted.tier is Tier.POLICY


def test_auto_lets_a_short_job_go_first_in_the_tail(copies: Any, snapshot: Any) -> None:
    """Two nodes, two parents of which one would be gone long before the other: it gets both at first."""
    jobs = [*copies("1", steps=2e4), *copies("2", steps=40 * LONG)]
    plan = decide(snapshot(jobs, NODES[:2]))
    assert nodes_of(plan, "1") == ["a", "b"] and not nodes_of(plan, "2")
    assert len(nodes_of(decide(snapshot(jobs, NODES[:2]), objective="ttd"), "2")) == 1


def test_an_elastic_copy_takes_what_its_node_has(copies: Any, snapshot: Any) -> None:
    nodes = (Node("a", {"v100": 1}), Node("b", {"v100": 3}), Node("c", {"p100": 2}))
    one = {"v100": Speed(10.0), "p100": Speed(5.0)}
    scaled = {n: {t: Speed(s.steps_per_s * n) for t, s in one.items()} for n in (2, 3)}
    plan = decide(snapshot(copies(form=Form(1, sizes=(1, 2, 3)), scaled=scaled), nodes))
    assert {p.nodes[0]: p.workers for p in plan.placements.values()} == {"a": 1, "b": 3, "c": 2}


def test_parents_share_a_node_with_several_gpus(copies: Any, snapshot: Any) -> None:
    nodes = (Node("a", {"v100": 2}), Node("b", {"v100": 2}))
    plan = decide(snapshot([*copies("1"), *copies("2")], nodes))
    assert nodes_of(plan, "1") == nodes_of(plan, "2") == ["a", "b"]


def test_waiting_copies_name_who_does_the_work(copies: Any, job: Any, snapshot: Any) -> None:
    plan = decide(snapshot([*copies("12"), job("9", form=Form(1), steps=LONG)], NODES[:3]))
    waits = [plan.waits[j].why for j in plan.waits]
    assert all(w.startswith("copy of job 12: its cop") and w.endswith("no idle GPU that it can use") for w in waits)
    assert len(waits) == 3 and all(plan.waits[j].price is not None for j in plan.waits)
    assert set(plan.payoffs) == set(plan.placements)


def test_copies_of_a_job_that_can_run_nowhere_all_say_so(copies: Any, snapshot: Any) -> None:
    plan = decide(snapshot(copies(form=Form(4)), NODES))
    assert not plan.placements
    assert {w.tier for w in plan.waits.values()} == {Tier.CANNOT_RUN}


def test_a_bad_fork_is_refused() -> None:
    with pytest.raises(ConfigError, match="fork='often' must be one of job, idle, spread, auto"):
        get("hadare", fork="often")


def test_a_hundred_parents_fill_a_hundred_nodes(copies: Any, snapshot: Any) -> None:
    nodes = tuple(Node(f"n{i}", {("v100", "p100", "k80")[i % 3]: 4}) for i in range(100))
    jobs = [c for i in range(100) for c in copies(str(i), count=100, steps=LONG * (1 + i))]
    state = snapshot(jobs, nodes)
    plan = get("hadare").allocate(state)
    assert check_plan(state, plan) == []
    assert sum(p.workers for p in plan.placements.values()) == 400
