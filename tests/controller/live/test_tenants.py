"""Jobs that share their nodes with their own user's only, on a real Slurm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from slurm_hadar.cluster import PrivateCluster
from slurm_hadar.controller.answers.view import queue_view
from slurm_hadar.policies import registry
from tests.controller.live.test_faults import rounds_until
from tests.controller.live.test_limits import OWNER, PLAIN, QUICK, submit_as

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runuser"), reason="only root can become another user"),
]


@pytest.fixture(scope="module")
def cluster(make_module_cluster: Callable[..., PrivateCluster]) -> PrivateCluster:
    own = "PartitionName=own Nodes=ALL ExclusiveUser=YES MaxTime=INFINITE State=UP"
    return make_module_cluster("v100:1x4,k80:1x2", kill_wait_s=2, extra_conf=(own,))


@pytest.fixture
def live(cluster: PrivateCluster, make_live: Callable[[PrivateCluster], Any], empty: Callable[..., Any]) -> Any:
    """Jobs and controllers on the cluster of these tests, which has nothing in its queue."""
    return make_live(empty(cluster))


@pytest.mark.parametrize("wish", [("-p", "own"), ("--exclusive=user",)], ids=["partition", "job"])
def test_a_users_jobs_fill_a_node_that_others_may_not_enter(live: Any, poll: Any, wish: tuple[str, ...]) -> None:
    """Jobs that were put off start beside each other, at once; another user's waits until the node is empty."""
    other = live.submit("--gres=gpu:2", "-w", "k80-1")  # another user's, left to Slurm
    first = [submit_as(live, OWNER, PLAIN, "--gres=gpu:1", *wish) for _ in range(4)]
    poll(lambda: all(live.state_of(job) == "RUNNING" for job in (other, *first)))
    second = [submit_as(live, OWNER, PLAIN, "--gres=gpu:1", *wish) for _ in range(3)]
    controller = live.controller(*QUICK, policy=registry.get("fifo"))
    poll(lambda: controller.run_round() and all(live.field(job, "Reason") == "BeginTime" for job in second))
    live.cluster.run(["scancel", *first], check=True)

    rounds_until(controller, lambda: all(live.state_of(job) == "RUNNING" for job in second), poll, 40)

    assert {node for job in second for node in live.gpus(job)} == {"v100-1"}
    plain = live.submit("--gres=gpu:1")
    result = controller.run_round()
    assert result.record.failed == 0 and live.state_of(plain) == "PENDING"
    why = next(line.why for line in queue_view(live.backend, live.config())[0] if line.job_id == plain)
    assert "is free, but" not in why
    live.cluster.run(["scancel", *second], check=True)
    rounds_until(controller, lambda: live.state_of(plain) == "RUNNING", poll, 40)
