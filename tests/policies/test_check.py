"""The check that stands between a plan and Slurm."""

from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.model import EMPTY, Form, JobState, Node, Partition, Placement, Plan, Tier, Wait
from slurm_hadar.policies import check_plan

V2 = Placement.of({"a": {"v100": 2}})
P2 = Placement.of({"b": {"p100": 2}})


def placed(**placements: Any) -> Any:
    return Plan("x", {k[1:]: v for k, v in placements.items()})


def test_a_good_plan_passes(job: Any, snapshot: Any) -> None:
    """Two jobs side by side and one that is told why it waits."""
    plan = Plan("x", {"1": V2, "2": P2}, {"3": Wait(Tier.POLICY, "later")})
    assert check_plan(snapshot([job("1", 2), job("2", 2), job("3")]), plan) == []


@pytest.mark.parametrize(
    ("placement", "fields", "message"),
    [
        (V2, {"pinned": "typed request"}, "must not be steered"),
        (V2, {"state": JobState.COMPLETING}, "is placed although it is completing"),
        (V2, {"state": JobState.DONE}, "must not be steered"),
        (EMPTY, {}, "placed on nothing"),
        (V2, {"form": Form(3)}, "gang needs exactly 3"),
        (V2, {"form": Form(2, types=frozenset({"k80"}))}, "not among those the job accepts"),
        (V2, {"v100": None}, "no speed above zero"),
        (V2, {"partition": "right"}, "not in partition right"),
        (Placement.of({"z": {"v100": 2}}), {}, "does not exist"),
        (Placement.of({"d": {"v100": 2}}), {}, "not available"),
        (Placement.of({"a": {"k80": 2}}), {}, "2 k80 in use where 0"),
    ],
)
def test_each_violation_is_named(job: Any, snapshot: Any, placement: Any, fields: Any, message: str) -> None:
    """One line says which job breaks which rule."""
    nodes = (Node("a", {"v100": 2}), Node("b", {"p100": 2}), Node("d", {"v100": 2}, available=False))
    queue = snapshot([job("1", 2, **fields)], nodes, partitions=(Partition("right", ("b",)),))
    assert any(message in line for line in check_plan(queue, placed(_1=placement)))


def test_capacity_is_counted_over_all_jobs(job: Any, running: Any, snapshot: Any) -> None:
    """Two jobs on the same GPUs, or one on GPUs that others hold, are too many."""
    assert any(
        "4 v100 in use where 2" in p for p in check_plan(snapshot([job("1", 2), job("2", 2)]), placed(_1=V2, _2=V2))
    )
    leaving = replace(running("2", {"a": {"v100": 1}}), state=JobState.COMPLETING)
    plan = Plan("x", {"1": V2}, {"2": Wait(Tier.TRANSIENT, "leaves")})
    assert any("3 v100 in use where 2" in p for p in check_plan(snapshot([job("1", 2), leaving]), plan))
    taken = (Node("a", {"v100": 2}, taken={"v100": 1}),)
    assert any("2 v100 in use where 1" in p for p in check_plan(snapshot([job("1", 2)], taken), placed(_1=V2)))


def test_unmovable_jobs_must_stay(running: Any, snapshot: Any) -> None:
    """Stopping or moving a running job that must not be preempted is a violation; leaving it is not."""
    fixed = running("1", {"a": {"v100": 2}}, unmovable="saves no checkpoint")
    assert check_plan(snapshot([fixed]), placed(_1=V2)) == []
    assert any("must keep" in p for p in check_plan(snapshot([fixed]), placed(_1=P2)))
    stopped = Plan("x", {}, {"1": Wait(Tier.POLICY, "out")})
    assert any("must keep" in p for p in check_plan(snapshot([fixed]), stopped))


def test_a_running_job_may_stay_on_a_draining_node(running: Any, snapshot: Any) -> None:
    """Draining lets jobs finish."""
    nodes = (Node("a", {"v100": 2}, available=False, state="draining"),)
    assert check_plan(snapshot([running("1", {"a": {"v100": 2}})], nodes), placed(_1=V2)) == []


def test_silence_is_a_violation(job: Any, snapshot: Any) -> None:
    """A job with neither placement nor reason, and one with both, are named."""
    queue = snapshot([job("1", 2)])
    assert any("neither runs nor" in p for p in check_plan(queue, Plan("x")))
    both = Plan("x", {"1": V2}, {"1": Wait(Tier.POLICY, "?")})
    assert any("both" in p for p in check_plan(queue, both))
    assert any("not in the snapshot" in p for p in check_plan(queue, placed(_1=V2, _7=P2)))
