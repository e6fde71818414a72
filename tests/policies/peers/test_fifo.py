"""First come, first served."""

from typing import Any

from slurm_hadar.model import Form, Mix, Node, Partition, Placement, Tier
from slurm_hadar.policies import get


def test_first_nodes_whatever_their_speed(job: Any, snapshot: Any) -> None:
    """The first nodes in order are taken, even where later ones are faster."""
    nodes = (Node("slow", {"k80": 2}), Node("fast", {"v100": 2}))
    plan = get("fifo").allocate(snapshot([job("1", 2), job("2", 2)], nodes))
    assert plan.placements["1"] == Placement.of({"slow": {"k80": 2}})
    assert plan.placements["2"] == Placement.of({"fast": {"v100": 2}})


def test_nobody_overtakes(job: Any, running: Any, snapshot: Any) -> None:
    """A job behind one that waits waits too, though it would fit, and is told behind whom."""
    nodes = (Node("a", {"v100": 4}),)
    jobs = [running("1", {"a": {"v100": 2}}), job("2", 4), job("3", 1)]
    plan = get("fifo").allocate(snapshot(jobs, nodes))
    assert set(plan.placements) == {"1"}
    assert plan.waits["2"].tier is Tier.CAPACITY and "1" in plan.waits["2"].why
    assert plan.waits["3"].tier is Tier.POLICY and "behind 2" in plan.waits["3"].why


def test_waiting_closes_only_the_jobs_own_partition(job: Any, snapshot: Any) -> None:
    """A job that waits in one partition holds up nobody in another."""
    nodes = (Node("a", {"v100": 2}), Node("b", {"v100": 2}))
    partitions = (Partition("left", ("a",)), Partition("right", ("b",)))
    jobs = [job("1", 2, partition="left"), job("2", 2, partition="left"), job("3", 1, partition="right")]
    plan = get("fifo").allocate(snapshot(jobs, nodes, partitions=partitions))
    assert set(plan.placements) == {"1", "3"}


def test_running_jobs_stay(job: Any, running: Any, snapshot: Any) -> None:
    """FIFO never preempts, not even for an earlier arrival."""
    late = running("9", {"a": {"v100": 2}}, v100=0.001)
    plan = get("fifo").allocate(snapshot([job("1", 2), late], (Node("a", {"v100": 2}),)))
    assert plan.placements == {"9": late.placement}


def test_drained_nodes_hold_up_nobody(job: Any, snapshot: Any) -> None:
    """A job that only a drained node could run waits for the node, and lets others pass."""
    nodes = (Node("a", {"v100": 4}, available=False, reason="bad fan"), Node("b", {"p100": 2}))
    plan = get("fifo").allocate(snapshot([job("1", 4, form=Form(4)), job("2", 2)], nodes))
    assert set(plan.placements) == {"2"}
    assert plan.waits["1"].tier is Tier.TRANSIENT and "bad fan" in plan.waits["1"].why


def test_uneven_and_mixed_gangs(job: Any, snapshot: Any) -> None:
    """A form that allows uneven shares on mixed types gets them, on the fewest nodes."""
    nodes = (Node("a", {"v100": 1}), Node("b", {"p100": 2, "k80": 1}))
    form = Form(4, max_nodes=2, uniform=False, mix=Mix.GATED)
    plan = get("fifo").allocate(snapshot([job("1", form=form)], nodes))
    assert plan.placements["1"] == Placement.of({"a": {"v100": 1}, "b": {"p100": 2, "k80": 1}})
