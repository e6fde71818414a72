"""Jobs that share their nodes with their own user's only, or with those of their MCS label."""

from __future__ import annotations

import pytest

from slurm_hadar.model import Form, Job, JobState, Needs, Node, Placement, Snapshot, Speed, Tenant
from slurm_hadar.policies import registry
from slurm_hadar.policies.check import check_plan
from slurm_hadar.policies.toolkit.admission import refusals

POLICIES = ["hadar", "hadare", "asrpt", "gavel_las", "tiresias", "allox", "srtf", "fifo"]
BY_USER = Needs(by_user=True)


def job(name: str, user: str, needs: Needs = BY_USER, **fields: object) -> Job:
    speeds = {"v100": Speed(4.0), "k80": Speed(4.0)}
    return Job(name, Form(1), user=user, needs=needs, speeds=speeds, total_steps=2400.0, arrival=1.0, **fields)


def on(name: str, user: str, node: str, needs: Needs = BY_USER, **fields: object) -> Job:
    at = Placement.of({node: {"v100" if node == "n1" else "k80": 1}})
    return job(name, user, needs, state=JobState.RUNNING, placement=at, **fields)


def cluster(*jobs: Job, tenants: tuple[Tenant, ...] = ()) -> Snapshot:
    """A node of four v100, where these tenants have one GPU, and one of four k80."""
    taken = {"v100": 1} if tenants else {}
    return Snapshot(1000.0, (Node("n1", {"v100": 4}, taken, tenants=frozenset(tenants)), Node("n2", {"k80": 4})), jobs)


def nodes_of(policy: str, snapshot: Snapshot) -> dict[str, set[str]]:
    """{node: users there} of what the policy plans, which must be what Slurm would carry out."""
    plan = registry.get(policy).allocate(snapshot)
    assert check_plan(snapshot, plan) == [] and refusals(snapshot, plan) == []
    found: dict[str, set[str]] = {}
    for job_id, placement in plan.placements.items():
        for node in placement.nodes:
            found.setdefault(node, set()).add(snapshot.job[job_id].user)
    return found


@pytest.mark.parametrize("policy", POLICIES)
def test_a_user_shares_a_node_with_nobody_else(policy: str) -> None:
    """Eight jobs of one user fill both nodes; of two users, where one has a node, his jobs fill it in the same round,
    or all run."""
    snapshot = cluster(*(job(f"a{i}", "alice") for i in range(8)))
    plan = registry.get(policy).allocate(snapshot)
    assert len(plan.placements) == 8 and refusals(snapshot, plan) == []

    mixed = cluster(*(job(f"{user[0]}{i}", user) for i in range(6) for user in ("alice", "bob")))
    plan, users = registry.get(policy).allocate(mixed), nodes_of(policy, mixed)
    assert [len(users[node]) for node in ("n1", "n2")] == [1, 1]
    for node in ("n1", "n2"):
        waits = [j for j in mixed.jobs if {j.user} == users[node] and j.job_id not in plan.placements]
        assert not waits or sum(p.nodes == (node,) for p in plan.placements.values()) == 4


@pytest.mark.parametrize("policy", POLICIES)
def test_where_others_are_only_who_is_welcome_comes(policy: str) -> None:
    """Whether it is the job that minds, or the one that is there and keeps its place."""
    there = on("a0", "alice", "n1", unmovable="stays")
    snapshot = cluster(there, *(job(f"b{i}", "bob", Needs()) for i in range(3)), job("a1", "alice", Needs()))
    assert nodes_of(policy, snapshot)["n1"] == {"alice"}

    plain = Tenant("bob")
    assert "n1" not in nodes_of(policy, cluster(job("a1", "alice"), tenants=(plain,)))
    assert "n1" in nodes_of(policy, cluster(*(job(f"b{i}", "bob") for i in range(7)), tenants=(plain,)))


def test_labels_are_kept_apart_also_from_those_that_do_not_say_so() -> None:
    """As Slurm does with --exclusive=mcs."""
    red, blue = Needs(mcs="red"), Needs(mcs="blue")
    there = on("a0", "alice", "n1", red, unmovable="stays")

    for needs, welcome in ((red, True), (blue, False), (Needs(), False)):
        assert "b1" in registry.get("fifo").allocate(cluster(there, job("b1", "bob", needs))).placements
        where = registry.get("fifo").allocate(cluster(there, job("b1", "bob", needs))).placements["b1"]
        assert ("n1" in where.nodes) is welcome


def test_who_has_no_room_for_others_jobs_is_told_so() -> None:
    """And not that no node is open to it."""
    snapshot = cluster(job("a1", "alice"), tenants=(Tenant("bob"),))
    one = Snapshot(1000.0, snapshot.nodes[:1], snapshot.jobs)
    wait = registry.get("hadar").allocate(one).waits["a1"]

    assert wait.why == "jobs of others are on n1"
    mine = Snapshot(
        1000.0, (Node("n1", {"v100": 4}),), (on("b1", "bob", "n1", unmovable="so"), job("a1", "alice", Needs()))
    )
    assert registry.get("hadar").allocate(mine).waits["a1"].why.startswith("a job that shares its nodes with its own")


def test_who_is_left_alone_stays_a_tenant() -> None:
    runs = on("a0", "alice", "n1")
    alone = cluster(runs, job("b1", "bob", Needs())).without({"a0": "so"})

    assert alone.node["n1"].tenants == {Tenant("alice", True)}
    assert registry.get("fifo").allocate(alone).placements["b1"].nodes == ("n2",)
