"""Policies that do not fork see one copy of each forked job."""

from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.model import Fork, JobState, Node, Placement, Tier
from slurm_hadar.policies import check_plan, get
from slurm_hadar.policies.registry import names
from slurm_hadar.testing.snapshots import carry_out

NODES = (Node("a", {"v100": 1}), Node("b", {"p100": 1}), Node("c", {"k80": 1}))
OTHERS = sorted(set(names()) - {"hadare", "none"})


def copies_of(job: Any, count: Any = 3, **fields: Any) -> Any:
    """Copies of job 7, all pending."""
    base = replace(job("7"), array_id="7", fork=Fork.AUTO, **fields)
    return [replace(base, job_id=f"7_{k}") for k in range(count)]


def runs_on(copy: Any, node: Any, gpu_type: Any, **fields: Any) -> Any:
    return replace(copy, state=JobState.RUNNING, placement=Placement.of({node: {gpu_type: 1}}), **fields)


@pytest.mark.parametrize("name", OTHERS)
def test_the_first_copy_runs_and_the_others_are_told_why(name: Any, job: Any, snapshot: Any) -> None:
    state = snapshot(copies_of(job), NODES)
    plan = get(name).allocate(state)
    assert set(plan.placements) == {"7_0"}
    assert plan.waits["7_2"].tier is Tier.POLICY
    assert plan.waits["7_2"].why == f"copy of job 7; policy {name} runs one copy (7_0); hadare forks"


@pytest.mark.parametrize("name", OTHERS)
def test_a_plan_is_that_of_plain_jobs(name: Any, job: Any, snapshot: Any) -> None:
    """The copies beside it change nothing about what runs where."""
    forked = [job("3"), job("4", steps=5000.0), *copies_of(job), job("8")]
    plain = [*forked[:2], job("7"), forked[-1]]
    policy = get(name)
    alone, beside = policy.allocate(snapshot(plain, NODES)), policy.allocate(snapshot(forked, NODES))
    assert {j.removesuffix("_0"): p for j, p in beside.placements.items()} == alone.placements
    assert {j.removesuffix("_0"): p for j, p in beside.payoffs.items()} == alone.payoffs
    assert beside.memory == alone.memory and beside.prices == alone.prices
    assert {j.removesuffix("_0"): w for j, w in beside.waits.items() if j not in ("7_1", "7_2")} == alone.waits


def test_the_copy_that_runs_stays_the_one(job: Any, snapshot: Any) -> None:
    first, second, third = copies_of(job)
    state = snapshot([first, runs_on(second, "c", "k80"), third], NODES)
    policy = get("fifo")
    plan = policy.allocate(state)
    assert set(plan.placements) == {"7_1"}
    assert policy.allocate(carry_out(state, plan)).placements == plan.placements


def test_of_two_that_run_the_slower_is_stopped(job: Any, snapshot: Any) -> None:
    first, second, third = copies_of(job)
    plan = get("fifo").allocate(snapshot([runs_on(first, "c", "k80"), runs_on(second, "a", "v100"), third], NODES))
    assert set(plan.placements) == {"7_1"}
    assert {"7_0", "7_2"} == set(plan.waits)


def test_copies_that_must_not_be_stopped_all_go_on(job: Any, snapshot: Any) -> None:
    first, second, third = copies_of(job, unmovable="started just now")
    state = snapshot([runs_on(first, "c", "k80"), runs_on(second, "a", "v100"), third], NODES)
    plan = get("fifo").allocate(state)
    assert set(plan.placements) == {"7_0", "7_1"}
    assert check_plan(state, plan) == []


def test_no_other_copy_starts_while_one_is_on_its_way_out(job: Any, snapshot: Any) -> None:
    first, second = copies_of(job, 2)
    leaving = replace(runs_on(first, "a", "v100"), state=JobState.COMPLETING)
    plan = get("fifo").allocate(snapshot([leaving, second], NODES))
    assert not plan.placements and plan.waits["7_1"].why.endswith("runs one copy (7_0); hadare forks")


def test_a_copy_that_runs_goes_on_while_another_is_on_its_way_out(job: Any, snapshot: Any) -> None:
    first, second = copies_of(job, 2)
    leaving = replace(runs_on(first, "a", "v100"), state=JobState.COMPLETING)
    plan = get("fifo").allocate(snapshot([leaving, runs_on(second, "c", "k80")], NODES))
    assert set(plan.placements) == {"7_1"} and set(plan.waits) == {"7_0"}


def test_the_copy_has_what_all_have_attained(job: Any, snapshot: Any) -> None:
    """Who was served by another copy was served."""
    first, second = copies_of(job, 2)
    state = snapshot([first, replace(second, attained_s=1e6), job("9", attained_s=10.0)], NODES[:1])
    assert set(get("tiresias").allocate(state).placements) == {"9"}


def test_none_leaves_copies_to_slurm(job: Any, snapshot: Any) -> None:
    first, second = copies_of(job, 2)
    plan = get("none").allocate(snapshot([runs_on(first, "c", "k80"), runs_on(second, "a", "v100")], NODES))
    assert set(plan.placements) == {"7_0", "7_1"}
