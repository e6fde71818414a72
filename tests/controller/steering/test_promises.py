"""Nodes that Slurm keeps for jobs that are left to it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.controller.steering.promises import Promises
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import SlurmJob
from slurm_hadar.testing.fake_slurm import FakeSlurm

NOW = 1000.0
FAKE = FakeSlurm({"a": ("v100", 4)})
MADE = FAKE.jobs[FAKE.submit(1)]


def job(**fields: Any) -> SlurmJob:
    return replace(MADE, **fields)


def planned(*nodes: str, **fields: Any) -> SlurmJob:
    """A job that is to start on these nodes in ten minutes."""
    return job(**{"job_id": "9", "priority": 100, "start": NOW + 600, "sched_nodes": nodes, **fields})


def closed(one: SlurmJob, *others: SlurmJob) -> dict[str, str]:
    return {node: other.job_id for node, other in Promises(others, NOW).closed(one).items()}


def test_what_ends_before_may_start_there() -> None:
    """No limit, or one that reaches beyond, may not; at the very second it may."""
    kept = {"a": "9", "b": "9"}
    assert closed(job(priority=5), planned("a", "b")) == kept
    assert closed(job(priority=5, time_limit_s=601.0), planned("a", "b")) == kept
    assert closed(job(priority=5, time_limit_s=600.0), planned("a", "b")) == {}


def test_only_for_who_is_ahead_in_the_same_partition() -> None:
    """Neither for who is behind, nor for another partition's jobs. Of equal priorities, as all have with
    priority/basic of newer releases, the earlier submission goes first, then the lower number."""
    assert closed(job(priority=101), planned("a")) == {}
    assert closed(job(priority=100, submit=5.0), planned("a", submit=4.0)) == {"a": "9"}
    assert closed(job(priority=100, submit=5.0), planned("a", submit=6.0)) == {}
    assert closed(job(priority=100, submit=5.0, raw_id=8), planned("a", submit=5.0, raw_id=9)) == {}
    assert closed(job(priority=100, submit=5.0, raw_id=10), planned("a", submit=5.0, raw_id=9)) == {"a": "9"}
    task = job(priority=100, submit=5.0, raw_id=12, array_id="8")
    assert closed(task, planned("a", submit=5.0, raw_id=9)) == {}
    assert closed(job(priority=5, partition="x"), planned("a", partition="y")) == {}
    assert closed(job(priority=5, partition="x,y"), planned("a", partition="y,z")) == {"a": "9"}


def test_only_plans_that_hold() -> None:
    """Not those of jobs that run, are held, are kept back, or whose start has long passed."""
    for other in (
        planned("a", state=JobState.RUNNING), planned("a", priority=0), planned("a", reason="Licenses"),
        planned("a", start=NOW - 121), planned("a", start=None), planned(),
    ):  # fmt: skip
        assert closed(job(priority=-1), other) == {} and not Promises([other], NOW)


def test_where_a_job_runs_it_may_stay() -> None:
    assert closed(job(priority=5, nodes=("a",)), planned("a", "b")) == {"b": "9"}


PLANS = st.builds(
    planned,
    st.sampled_from("abc"),
    job_id=st.sampled_from("123456789"),
    priority=st.integers(1, 5),
    submit=st.sampled_from((1.0, 2.0)),
    raw_id=st.integers(1, 9),
    start=st.floats(NOW, NOW + 10),
)
JOBS = st.builds(
    job,
    priority=st.integers(0, 6),
    submit=st.sampled_from((1.0, 2.0)),
    raw_id=st.integers(1, 9),
    time_limit_s=st.none() | st.floats(0, 12),
)


@given(st.lists(PLANS, max_size=8), st.lists(JOBS, max_size=6))
def test_as_by_looking_at_each_pair(others: list[SlurmJob], jobs: list[SlurmJob]) -> None:
    promises = Promises(others, NOW)
    for one in jobs:
        limit = float("inf") if one.time_limit_s is None else one.time_limit_s
        ahead = [o for o in others if (-o.priority, o.submit, o.raw_id) < (-one.priority, one.submit, one.raw_id)]
        wanted = {o.sched_nodes[0] for o in ahead if (o.start or 0) - NOW < limit}
        assert set(promises.closed(one)) == wanted
