"""Jobs that are not to be steered any more, of which Slurm refuses to change anything."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_hadar.controller.journal import Purpose
from slurm_hadar.model import Partition, Placement
from tests.controller.scripted import MODEL, Scripted


@pytest.fixture
def placed(bench: Any) -> tuple[Any, str]:
    """A job that waits for the node that it was given, and that its owner holds."""
    b = bench({"v100-1": ("v100", 2)}, "jobs.start_timeout_s=1")
    job, policy = b.slurm.submit(1, MODEL), Scripted()
    b.controller = b.new_controller(policy=policy)
    b.slurm.stuck[job] = "Resources"
    policy.where = {job: Placement.of({"v100-1": {"v100": 1}})}
    b.controller.run_round()
    assert b.slurm.jobs[job].req_nodes == ("v100-1",)
    policy.where = {}
    del b.slurm.stuck[job]
    b.slurm.hold(job)
    return b, job


def test_a_job_that_slurm_refuses_to_change_is_left_alone(placed: Any) -> None:
    """Asked for ever, its refusals would keep everybody else's jobs from being started, too."""
    b, job = placed
    b.slurm.refuse[job] = "Requested operation is presently disabled"
    rounds = [b.controller.run_round() for _ in range(25)]
    assert [len(r.outcome.log) for r in rounds] == [1, 1, 1, *[0] * 22]
    assert {r.record.note for r in rounds} == {""}
    assert "it is left to Slurm for another" in rounds[-1].seen.snapshot.job[job].pinned


def test_a_job_that_fails_otherwise_gets_every_node_back(placed: Any) -> None:
    b, job = placed
    b.controller.isolated.put(job, "a policy", ValueError("its own"))
    assert [w.purpose for w in b.controller.run_round().outcome.log] == [Purpose.GIVE_BACK]
    assert not b.slurm.jobs[job].req_nodes


def test_nothing_is_told_of_a_job_in_an_inactive_partition(placed: Any) -> None:
    """Slurm refuses that, and starts none there."""
    b, job = placed
    b.slurm.partitions = (Partition("all", ("v100-1",), up=False, inactive=True),)
    assert not b.controller.run_round().outcome.log
    b.slurm.partitions = ()
    assert b.controller.run_round().outcome.log and not b.slurm.jobs[job].req_nodes
