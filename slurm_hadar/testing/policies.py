"""The tests that every policy must pass, as a base class to inherit from.

Example
-------
::

    import pytest
    from slurm_hadar.testing.policies import PolicyContract

    class TestMine(PolicyContract):
        @pytest.fixture
        def policy(self):
            return MyPolicy()
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurm_hadar.model import Form, Job, Mix, Node, Plan, Snapshot, Speed, Tier
from slurm_hadar.policies import Policy, check_plan
from slurm_hadar.testing.snapshots import GPU_TYPES, NOW, carry_out, empty_clusters, snapshots

__all__ = ["PROPERTIES", "PolicyContract"]

# The fixture is a policy, which by contract has no state that could leak from one example into the next. A quarter of
# the profile's examples, since there are many policies.
_contract = settings(
    max_examples=max(5, settings().max_examples // 4),
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
    ],
)


def _job(job_id: str, workers: int = 1, **changes: object) -> Job:
    speeds = {t: Speed(10.0 / (i + 1)) for i, t in enumerate(GPU_TYPES)}
    job = Job(job_id, Form(workers, max_nodes=workers), arrival=NOW - 100 + int(job_id), total_steps=1e4, speeds=speeds)
    return replace(job, **changes)  # type: ignore[arg-type]


def _cluster() -> tuple[Node, ...]:
    return Node("a", {"v100": 4}), Node("b", {"p100": 4}), Node("c", {"k80": 2, "p100": 2})


def _node(name: str, gpus: int, *partitions: str, gpu_type: str = "v100") -> Node:
    return Node(name, {gpu_type: gpus}, partitions=partitions)


def keeps_the_contract(snapshot: Snapshot, plan: Plan) -> None:
    """The plan may be carried out."""
    assert check_plan(snapshot, plan) == []


def exceeds_no_capacity(snapshot: Snapshot, plan: Plan) -> None:
    """No GPU is given twice, and none that others hold or that jobs on their way out still hold."""
    used: Counter[tuple[str, str]] = Counter()
    for job_id, placement in plan.placements.items():
        assert snapshot.job[job_id].steerable
        for node, gpu_type, count in placement.items():
            used[node, gpu_type] += count
    for job in snapshot.steerable_jobs:
        if job.placement and not job.running:
            for node, gpu_type, count in job.placement.items():
                used[node, gpu_type] += count
    for (name, gpu_type), count in used.items():
        there = snapshot.node[name]
        assert count <= there.gpus[gpu_type] - there.taken.get(gpu_type, 0)


def gives_gangs_all_or_nothing(snapshot: Snapshot, plan: Plan) -> None:
    """A job that runs has exactly the workers it asked for, in a shape its form allows."""
    for job_id, placement in plan.placements.items():
        assert placement.workers == snapshot.job[job_id].form.workers
        assert snapshot.job[job_id].form.refusal(placement) is None


def puts_nothing_new_where_it_cannot_run(snapshot: Snapshot, plan: Plan) -> None:
    """No job is newly put on a drained node, on a type it does not accept or on one where it has no speed."""
    for job_id, placement in plan.placements.items():
        job = snapshot.job[job_id]
        if placement == job.placement:
            continue
        for node, gpu_type, _ in placement.items():
            assert snapshot.node[node].available
            assert job.form.admits_type(gpu_type) and job.form.admits_node(node)
            assert job.speeds[gpu_type].steps_per_s > 0


def leaves_unmovable_jobs(snapshot: Snapshot, plan: Plan) -> None:
    """A running job that must not be preempted keeps exactly what it has."""
    for job in snapshot.steerable_jobs:
        if job.running and not job.movable:
            assert plan.placement(job.job_id) == job.placement


def stops_nobody_for_nothing(snapshot: Snapshot, plan: Plan) -> None:
    """A running job loses its GPUs only if somebody else gets at least one of them; a copy of a forked job also where
    another copy goes on."""
    given_to: Counter[tuple[str, str]] = Counter()
    for placement in plan.placements.values():
        for node, gpu_type, count in placement.items():
            given_to[node, gpu_type] += count
    going_on = {snapshot.job[j].parent for j in plan.placements}
    for job in snapshot.steerable_jobs:
        if job.running and job.job_id not in plan.placements and (job.fork is None or job.parent not in going_on):
            assert any(given_to[node, t] for node, t, _ in job.placement.items())


def tells_every_waiting_job_why(snapshot: Snapshot, plan: Plan) -> None:
    """Each active steerable job either runs or has a reason in words, on one line."""
    for job in snapshot.steerable_jobs:
        assert (job.job_id in plan.placements) != (job.job_id in plan.waits)
    for wait in plan.waits.values():
        assert wait.why.strip() and "\n" not in wait.why


#: What holds of every plan. Each raises AssertionError where it does not.
PROPERTIES = (
    keeps_the_contract,
    exceeds_no_capacity,
    gives_gangs_all_or_nothing,
    puts_nothing_new_where_it_cannot_run,
    leaves_unmovable_jobs,
    stops_nobody_for_nothing,
    tells_every_waiting_job_why,
)


class PolicyContract:
    """Inherit, and override the fixture ``policy``.

    Attributes
    ----------
    steady: whether the policy repeats its plan while nothing changes. Set it to False for a policy that shares GPUs by
        turns.
    """

    steady = True

    @pytest.fixture
    def policy(self) -> Policy:
        """The policy under test."""
        raise NotImplementedError("a contract test must override the fixture 'policy'")

    @_contract
    @given(snapshot=snapshots(), other=snapshots(), data=st.data())
    def test_keeps_the_contract(self, policy: Policy, snapshot: Snapshot, other: Snapshot, data: st.DataObject) -> None:
        """Whatever the clusters and the queues, each of :data:`PROPERTIES` holds of both plans. A plan depends on its
        snapshot alone: not on earlier calls nor on the order of jobs; and the snapshot is left as it was.

        To draw a snapshot takes longer than to plan for it, so every property is looked at on every one.
        """
        before = copy.deepcopy(snapshot)
        first = policy.allocate(snapshot)
        second = policy.allocate(other)

        for seen, plan in ((snapshot, first), (other, second)):
            for holds in PROPERTIES:
                holds(seen, plan)
            if self.steady:
                assert policy.allocate(carry_out(seen, plan)).placements == plan.placements, "jobs thrash"
        shuffled = snapshot.with_jobs(data.draw(st.permutations(snapshot.jobs)))
        assert policy.allocate(snapshot) == first
        assert policy.allocate(shuffled) == first
        assert snapshot == before

    @_contract
    @given(nodes=empty_clusters(least=1), count=st.integers(1, 12), data=st.data())
    def test_more_nodes_never_run_fewer_workers(
        self, policy: Policy, nodes: tuple[Node, ...], count: int, data: st.DataObject
    ) -> None:
        """Monotone in capacity, for one-GPU jobs that run on every type: on an empty cluster to which a copy of one of
        its nodes is added, at least as many of them run.

        For gangs the strict form is false of sensible policies: under FIFO a gang of 6 that cannot run on 5 GPUs holds
        up nobody, yet once it could run on 6 it holds up all jobs behind it.
        """
        jobs = tuple(_job(str(i), total_steps=data.draw(st.floats(1e2, 1e6))) for i in range(count))
        more = (*nodes, replace(data.draw(st.sampled_from(nodes)), name="added"))
        few, many = (policy.allocate(Snapshot(NOW, n, jobs)).placements for n in (nodes, more))
        assert sum(p.workers for p in many.values()) >= sum(p.workers for p in few.values())

    def test_empty_queue(self, policy: Policy) -> None:
        """With no jobs there is nothing to place and nothing to explain."""
        plan = policy.allocate(Snapshot(NOW, _cluster(), ()))
        assert not plan.placements and not plan.waits

    def test_empty_cluster(self, policy: Policy) -> None:
        """With no nodes every job waits."""
        plan = policy.allocate(Snapshot(NOW, (), (_job("1"),)))
        assert not plan.placements and set(plan.waits) == {"1"}

    @pytest.mark.parametrize("workers", [1, 2, 3, 4])
    def test_a_lone_job_runs(self, policy: Policy, workers: int) -> None:
        """One job that fits an empty cluster runs at once."""
        plan = policy.allocate(Snapshot(NOW, _cluster(), (_job("1", workers),)))
        assert plan.abstains or set(plan.placements) == {"1"}

    @pytest.mark.parametrize(
        ("nodes", "form"),
        [
            ((_node("a", 4, "gpu", "short"), _node("b", 4, "gpu")), Form(8, max_nodes=2)),
            ((_node("a", 7, "gpu"), _node("b", 6, "gpu")), Form(8, max_nodes=2)),
            ((_node("a", 7, "gpu"), _node("b", 6, "gpu", "short")), Form(8, min_nodes=2, max_nodes=2, uniform=True)),
            ((_node("a", 2, "gpu"), _node("b", 2, "gpu", gpu_type="p100")), Form(4, max_nodes=2, mix=Mix.GATED)),
        ],
        ids=["partitions", "sizes", "both", "types"],
    )
    def test_a_lone_gang_runs_on_unlike_nodes(self, policy: Policy, nodes: tuple[Node, ...], form: Form) -> None:
        """Nodes of unlike sizes, and those of several partitions, may have one gang together."""
        plan = policy.allocate(Snapshot(NOW, nodes, (_job("1", form=form, partition="gpu"),)))
        assert plan.abstains or set(plan.placements) == {"1"}, plan.waits

    @pytest.mark.parametrize(
        "impossible",
        [
            _job("1", 64),
            _job("1", form=Form(5, max_nodes=1)),
            _job("1", form=Form(1, types=frozenset({"a100"}))),
            _job("1", form=Form(1, nodes=frozenset({"elsewhere"}))),
            _job("1", form=Form(3, min_nodes=2, max_nodes=2)),
            _job("1", speeds={}),
        ],
        ids=["larger-than-cluster", "larger-than-node", "type", "node", "split", "no-speed"],
    )
    def test_an_impossible_job_harms_nobody(self, policy: Policy, impossible: Job) -> None:
        """A job that can never run here is told so and keeps nobody else from running."""
        plan = policy.allocate(Snapshot(NOW, _cluster(), (impossible, _job("2", 2))))
        if plan.abstains:
            return
        assert plan.waits["1"].tier is Tier.CANNOT_RUN
        assert set(plan.placements) == {"2"}
