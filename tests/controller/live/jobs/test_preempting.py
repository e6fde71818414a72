"""A controller on a real Slurm that stops jobs of one partition for those of another."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from slurm_hadar.model import Partition
from slurm_hadar.policies import registry
from tests.controller.live.test_faults import rounds_until

pytestmark = pytest.mark.slurm
QUICK = ("controller.round_s=2", "jobs.start_timeout_s=3", "jobs.end_timeout_s=30")
TIERS = (
    "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE",
    "PartitionName=low Nodes=v100-1,k80-1 State=UP",
    "PartitionName=high Nodes=v100-1,k80-1 PriorityTier=10 PreemptMode=OFF State=UP",
)  # fmt: skip


def test_a_job_of_a_higher_tier_is_left_to_slurm_until_it_runs(
    make_cluster: Callable[..., Any], make_live: Callable[..., Any], poll: Any
) -> None:
    """It was put off before: then Slurm stops one that is not steered for it, and the controller nobody after that."""
    live = make_live(make_cluster("v100:1x2,k80:1x2", kill_wait_s=2, extra_conf=TIERS))
    shown = {p.name: p for p in live.backend.read().partitions}
    nodes = ("k80-1", "v100-1")
    assert shown["low"] == Partition("low", nodes, None, True, 1, True)
    assert shown["high"] == Partition("high", nodes, None, True, 10, False)

    first = [live.submit("--gres=gpu:2", "-p", "high", comment="hadar:") for _ in nodes]
    poll(lambda: all(live.state_of(j) == "RUNNING" for j in first))
    plain = [live.submit("--gres=gpu:2", "-p", "low", comment="", script="sleep 900") for _ in nodes]
    job = live.submit("--gres=gpu:2", "-p", "high", comment="hadar:lose=yes")
    controller = live.controller(*QUICK, policy=registry.get("hadar"))
    assert controller.run_round().seen.snapshot.job[job].pinned is None
    live.cluster.run(["scancel", *first])
    poll(lambda: all(live.state_of(j) == "RUNNING" for j in plain))

    left = controller.run_round().seen.snapshot.job[job].pinned
    assert left is not None and "may stop jobs of partitions with a lower PriorityTier" in left
    rounds_until(controller, functools.partial(live.gpus, job), poll)
    for _ in range(2):
        assert controller.run_round().seen.snapshot.job[job].pinned is None
    assert live.state_of(job) == "RUNNING" and live.field(job, "Restarts") == "0"
    assert sorted(live.field(j, "Restarts") for j in plain) == ["0", "1"]
