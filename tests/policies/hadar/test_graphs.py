"""Jobs with graphs: those that exchange much stay together, the others go where there is room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.graphs.factors import Fleet
from slurm_hadar.graphs.graph import JobGraph
from slurm_hadar.graphs.network import Network
from slurm_hadar.model import Form, Job, JobState, Node, Placement, Snapshot, Speed
from slurm_hadar.policies import check_plan, get
from slurm_hadar.testing.snapshots import carry_out, snapshots
from tests.graphs.parallel import data_parallel

NODES = tuple(Node(n, {"v100": 4}) for n in "ab")
FLEET = Fleet(Network(outside=1.25e9), {n.name: ("v100", 4) for n in NODES})
HEAVY, LIGHT = data_parallel(4e8, 0.01, 4), data_parallel(1e6, 0.1, 4)
DAY = 86400.0


def job(job_id: str, graph: JobGraph, most_nodes: int = 2, **fields: object) -> Job:
    speeds = {"v100": Speed(1.0, by_nodes=FLEET.factors(graph, "v100", 1.0, most_nodes))}
    form = Form(graph.gpus, max_nodes=most_nodes)
    made = Job(job_id, form, arrival=0.0, total_steps=1e4, speeds=speeds, graph="g.toml", restart_cost_s=30.0)
    return replace(made, **fields)


def held(job_id: str, node: str, gpus: int = 2, steps: float = 1e4) -> Job:
    """A job that runs on half a node and cannot be moved."""
    return Job(
        job_id,
        Form(gpus),
        arrival=0.0,
        total_steps=steps,
        speeds={"v100": Speed(1.0)},
        state=JobState.RUNNING,
        started=0.0,
        placement=Placement.of({node: {"v100": gpus}}),
        unmovable="saves no checkpoint",
    )


def test_the_factors_of_the_two() -> None:
    """Spread over two nodes one is thirty times slower, the other hardly."""
    assert job("1", HEAVY).speeds["v100"].on(2) < 0.04
    assert job("1", LIGHT).speeds["v100"].on(2) > 0.98
    spread = Placement.of({"a": {"v100": 2}, "b": {"v100": 2}})
    assert job("1", HEAVY).rate(spread) == job("1", HEAVY).speeds["v100"].on(2)


@pytest.mark.parametrize("policy", ["hadar", "asrpt"])
def test_a_heavy_job_waits_for_one_node_and_a_light_one_is_spread(policy: str) -> None:
    """Half of each node is free: four GPUs in two pieces."""
    busy = [held("8", "a"), held("9", "b")]
    for graph, placed in ((HEAVY, False), (LIGHT, True)):
        snapshot = Snapshot(100.0, NODES, (*busy, job("1", graph)))
        plan = get(policy).allocate(snapshot)
        assert check_plan(snapshot, plan) == []
        assert ("1" in plan.placements) == placed
        if placed:
            assert plan.placement("1").nodes == ("a", "b")
        else:
            slower = 1.0 / job("1", HEAVY).speeds["v100"].factor(2)
            assert f"{slower:.1f} times slower" in plan.waits["1"].why


@pytest.mark.parametrize("policy", ["hadar", "asrpt"])
def test_a_heavy_job_starts_when_a_node_is_free(policy: str) -> None:
    """In the very next round after the other job has ended."""
    first = Snapshot(100.0, NODES, (held("8", "a"), held("9", "b"), job("1", HEAVY)))
    plan = get(policy).allocate(first)
    later = replace(carry_out(first, plan), time=460.0).with_jobs((held("9", "b"), job("1", HEAVY)))
    assert get(policy).allocate(later).placement("1").nodes == ("a",)


@pytest.mark.parametrize("policy", ["hadar", "asrpt"])
def test_both_at_once_share_the_cluster_as_suits_them(policy: str) -> None:
    """A whole node and two halves: the heavy job, which has less to do, gets the node, the light one the halves."""
    nodes = tuple(Node(n, {"v100": 4}) for n in "abc")
    jobs = (held("8", "a"), held("9", "b"), job("1", LIGHT, total_steps=2e4), job("2", HEAVY))
    plan = get(policy).allocate(Snapshot(100.0, nodes, jobs))
    assert plan.placement("2").nodes == ("c",)
    assert plan.placement("1").nodes == ("a", "b")


def test_hadar_moves_a_heavy_job_together_when_it_pays() -> None:
    """A job that Slurm itself started in two halves is worth its restart; one that hardly loses by it stays."""
    spread = Placement.of({"a": {"v100": 2}, "b": {"v100": 2}})
    for graph, nodes in ((HEAVY, 1), (LIGHT, 2)):
        running = job("1", graph, state=JobState.RUNNING, started=0.0, placement=spread)
        plan = get("hadar").allocate(Snapshot(100.0, NODES, (running,)))
        assert len(plan.placement("1").nodes) == nodes


def test_hadar_uses_halves_for_the_meantime_where_they_earn_a_restart() -> None:
    """Three times slower is worth it while a day of work is before the job; thirty times slower is not, for minutes."""
    medium = data_parallel(4e7, 0.02, 4)
    assert 0.2 < job("1", medium).speeds["v100"].on(2) < 0.5
    busy = (held("8", "a", steps=DAY), held("9", "b", steps=DAY))
    plan = get("hadar").allocate(Snapshot(100.0, NODES, (*busy, job("1", medium))))
    assert plan.placement("1").nodes == ("a", "b")
    stuck = job("1", medium, unmovable="saves no checkpoint", total_steps=1000.0)
    short = (held("8", "a", steps=60.0), held("9", "b", steps=60.0))
    assert "1" not in get("hadar").allocate(Snapshot(100.0, NODES, (*short, stuck))).placements


def test_one_node_is_all_that_counts_for_a_job_that_wants_no_more() -> None:
    """Its factors beyond say nothing: the same plan as without a graph."""
    plain = job("1", HEAVY, most_nodes=1)
    without = replace(plain, speeds={"v100": Speed(1.0)})
    for policy in ("hadar", "asrpt"):
        plans = [get(policy).allocate(Snapshot(100.0, NODES, (one,))) for one in (plain, without)]
        assert plans[0].placements == plans[1].placements


def test_asrpt_goes_by_alpha_max() -> None:
    """A job that two nodes would slow down little, and four GPUs apart much, counts as sensitive: it waits for one
    node if what is free is worse than epsilon allows, and only then."""
    speed = Speed(1.0, by_nodes=(1.0, 0.85, 0.85, 0.85, 0.3))
    made = job("1", HEAVY, speeds={"v100": speed})
    busy = (held("8", "a"), held("9", "b"))
    snapshot = Snapshot(100.0, NODES, (*busy, made))
    assert "1" not in get("asrpt", kappa=2.0).allocate(snapshot).placements
    assert "1" in get("asrpt", kappa=4.0).allocate(snapshot).placements
    assert "1" in get("asrpt", kappa=2.0, epsilon=0.2).allocate(snapshot).placements


def test_prices_of_one_round_know_what_being_spread_costs() -> None:
    """FIND_ALLOC of the paper's round weighs the run time on as many nodes as the gang is on."""
    busy = (held("8", "a"), held("9", "b"))
    light, heavy = (
        get("hadar", prices="round").allocate(Snapshot(100.0, NODES, (*busy, job("1", g)))) for g in (LIGHT, HEAVY)
    )
    assert light.payoffs["1"] > 5 * max(0.0, heavy.payoffs.get("1", 0.0))


@st.composite
def with_factors(draw: st.DrawFn) -> Snapshot:
    """Any snapshot, in which most jobs have factors, falling or not."""
    snapshot = draw(snapshots())
    factors = st.just(()) | st.lists(st.floats(0.02, 1.0), min_size=1, max_size=5).map(lambda f: (1.0, *f))

    def known(one: Job) -> Job:
        return replace(one, speeds={t: replace(s, by_nodes=draw(factors)) for t, s in one.speeds.items()}, graph="g")

    return snapshot.with_jobs([known(one) for one in snapshot.jobs])


@pytest.mark.parametrize(
    ("policy", "params"),
    [
        ("hadar", {}),
        ("hadar", {"objective": "ttd"}),
        ("hadar", {"prices": "round"}),
        ("asrpt", {}),
        ("hadare", {}),
        ("asrpt", {"reserve": 2}),
        ("srtf", {}),
        ("tiresias", {}),
        ("gavel_ttd", {}),
    ],
)
@given(snapshot=with_factors(), data=st.data())
def test_whatever_the_factors_the_contract_is_kept(
    policy: str, params: dict[str, Any], snapshot: Snapshot, data: Any
) -> None:
    """A plan that can be carried out, a reason for each that waits, the same for any order of the jobs; and once it is
    carried out it is planned again, so that nobody is moved to and fro."""
    chosen = get(policy, **params)
    plan = chosen.allocate(snapshot)
    assert check_plan(snapshot, plan) == []
    for one in snapshot.steerable_jobs:
        assert (one.job_id in plan.placements) != (one.job_id in plan.waits)
    assert chosen.allocate(snapshot.with_jobs(data.draw(st.permutations(snapshot.jobs)))) == plan
    if not policy.startswith("gavel"):
        assert chosen.allocate(carry_out(snapshot, plan)).placements == plan.placements
