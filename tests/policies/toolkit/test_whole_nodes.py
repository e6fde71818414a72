"""Jobs that have their nodes to themselves hold, and free, all GPUs there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.model import Form, Job, JobState, Needs, Node, Placement, Plan, Snapshot, Speed
from slurm_hadar.policies import registry
from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.check import check_plan
from slurm_hadar.policies.toolkit.admission import refusals

TYPES = {"v1": "v100", "v2": "v100", "k1": "k80", "k2": "k80"}
ALONE = Needs(exclusive=True)


def job(name: str, form: Form, **fields: Any) -> Job:
    speeds = {"v100": Speed(4.0), "k80": Speed(3.0)}
    return Job(name, **{"form": form, "speeds": speeds, "needs": ALONE, "total_steps": 40_000.0, **fields})


def on(node: str, **fields: Any) -> Job:
    """A long job on one GPU of a node that it was given whole."""
    at, whole = (Placement.of({node: {TYPES[node]: n}}) for n in (1, 4))
    running = {"state": JobState.RUNNING, "started": 10.0, "placement": at, "whole": whole, "restart_cost_s": 1.0}
    return job(f"on-{node}", Form(1), **{**running, "total_steps": 4_000_000.0, **fields})


def cluster(*jobs: Job, **gpus: int) -> Snapshot:
    nodes = tuple(Node(name, {t: gpus.get(name, 4)}, cpus=16) for name, t in TYPES.items())
    return Snapshot(1000.0, nodes, jobs)


GANG = job("gang", Form(4, min_nodes=2, max_nodes=2), arrival=900.0, total_steps=400.0)


@pytest.mark.parametrize("policy", ["hadar", "hadare", "srtf", "tiresias"])
def test_who_has_a_node_to_itself_gives_way_to_a_gang(policy: str) -> None:
    """Four jobs on one GPU each keep four nodes; the short gang has two of these, on the GPUs that it asks for."""
    snapshot = cluster(*(on(node, attained_s=1e6) for node in TYPES), GANG)

    plan = registry.get(policy).allocate(snapshot)

    assert check_plan(snapshot, plan) == [] and refusals(snapshot, plan) == []
    taken = plan.placement("gang")
    assert {n for _, _, n in taken.items()} == {2} and len(taken.nodes) == 2
    stay = {f"on-{node}" for node in TYPES if node not in taken.nodes}
    assert plan.placements == {"gang": taken, **{j: snapshot.job[j].placement for j in stay}}


@pytest.mark.parametrize("policy", ["hadar", "srtf", "fifo", "asrpt"])
def test_who_keeps_its_node_keeps_all_of_it(policy: str) -> None:
    """Nobody is planned beside it, and what is said is who holds the GPUs."""
    snapshot = cluster(*(on(node, unmovable="stays") for node in TYPES), GANG, job("one", Form(1), needs=Needs(1.0)))

    plan = registry.get(policy).allocate(snapshot)

    assert plan.placements == {f"on-{node}": snapshot.job[f"on-{node}"].placement for node in TYPES}
    assert all("on-k1 (stays)" in plan.waits[name].why for name in ("gang", "one"))


def test_a_plan_with_a_job_beside_it_breaks_the_contract() -> None:
    snapshot = cluster(on("v1"), job("one", Form(1), needs=Needs(1.0)))
    beside = {"on-v1": snapshot.job["on-v1"].placement, "one": Placement.of({"v1": {"v100": 1}})}

    assert "v1: 5 v100 in use where 4 may be handed out" in check_plan(snapshot, Plan("x", beside))


class Looks(Policy):
    """Keeps what it was shown, and starts everything where there is room for it."""

    name = "looks"

    def allocate(self, snapshot: Snapshot) -> Plan:
        self.shown = snapshot.job
        one = self.shown["waits"]
        where = Placement.of({"k1": {"k80": one.form.workers}})
        return Plan(self.name, {"waits": where, "on-v1": self.shown["on-v1"].placement})


@pytest.mark.parametrize(("largest", "width"), [(4, 4), (8, 4)])
def test_what_a_policy_is_shown(largest: int, width: int) -> None:
    """A gang of all GPUs of the node, at the speed that it has; of unlike nodes the smallest counts."""
    waits = job("waits", Form(1))
    policy, snapshot = Looks(), cluster(on("v1", attained_s=5.0), waits, k1=largest, k2=8)

    plan = policy.allocate(replace(snapshot, quotas=()))

    runs = policy.shown["on-v1"]
    assert (runs.form.workers, runs.placement.workers, runs.attained_s) == (4, 4, 20.0)
    assert runs.rate(runs.placement) == 4.0 and policy.shown["waits"].form.workers == width
    assert plan.placement("on-v1") == snapshot.job["on-v1"].placement
    assert plan.placement("waits") == Placement.of({"k1": {"k80": 1}})


def test_where_a_job_has_only_what_it_asks_for_nothing_is_added() -> None:
    """As with --exclusive=user, of which Slurm gives others of its user the rest; and one that may have more nodes."""
    alone = replace(on("v1"), whole=Placement())
    policy = Looks()

    policy.allocate(cluster(alone, job("waits", Form(2, max_nodes=2))))

    assert (policy.shown["on-v1"], policy.shown["waits"].form.workers) == (alone, 2)


@pytest.mark.parametrize("policy", ["hadar", "srtf", "fifo", "asrpt"])
def test_on_a_node_of_several_types_it_takes_those_of_one(policy: str) -> None:
    """All of them are its own, and one gang has one type."""
    nodes = (Node("m1", {"v100": 2, "k80": 2}, cpus=16),)

    plan = registry.get(policy).allocate(Snapshot(1000.0, nodes, (job("one", Form(1)), job("two", Form(1)))))

    (placement,) = plan.placements.values()
    assert placement.workers == 1
