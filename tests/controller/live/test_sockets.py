"""A Slurm that hands out whole sockets, or cores of two threads."""

from __future__ import annotations

import re
from typing import Any

import pytest

from slurm_hadar.policies import registry
from tests.controller.live.test_limits import leave

pytestmark = pytest.mark.slurm
QUICK = ("controller.round_s=2", "jobs.start_timeout_s=3", "jobs.end_timeout_s=30")


@pytest.mark.parametrize(
    ("parameters", "layout"),
    [("CR_Socket", "CPUs=32 Sockets=2 CoresPerSocket=16 ThreadsPerCore=1"),
     ("CR_Core", "CPUs=4 Sockets=1 CoresPerSocket=2 ThreadsPerCore=2")],
    ids=["sockets", "threads"],
)  # fmt: skip
def test_all_nodes_are_used_though_cpus_are_gone_before_gpus(
    make_cluster: Any, make_live: Any, poll: Any, parameters: str, layout: str
) -> None:
    """Two jobs of one CPU are all that a node takes: nobody is placed where Slurm has no whole socket or core left."""
    cluster = make_cluster("v100:1x4,k80:1x4", kill_wait_s=2)
    lay_out(cluster, parameters, layout)
    live = make_live(cluster)
    first = [live.submit("--gres=gpu:1") for _ in range(4)]
    poll(lambda: all(live.state_of(job) == "RUNNING" for job in first))
    second = [live.submit("--gres=gpu:1") for _ in range(4)]
    controller = live.controller(*QUICK, policy=registry.get("hadar"))
    poll(lambda: controller.run_round() and all(live.field(job, "Reason") == "BeginTime" for job in second))
    leave(live, poll, *first)
    failed = []

    def round_() -> bool:
        failed.append(controller.run_round().record.failed)
        return all(live.state_of(job) == "RUNNING" for job in second)

    poll(round_, 30)

    assert {node for job in second for node in live.gpus(job)} == {"v100-1", "k80-1"} and not any(failed)


def lay_out(cluster: Any, parameters: str, layout: str) -> None:
    """Give all nodes of the cluster these sockets, cores and threads, and hand them out so."""
    old = r"CPUs=\d+ Boards=1 SocketsPerBoard=\d+ CoresPerSocket=\d+ ThreadsPerCore=1"
    text = re.sub(old, layout, cluster.conf.read_text())
    cluster.stop_slurmctld()
    cluster.conf.write_text(re.sub(r"(?m)^SelectTypeParameters=.*", f"SelectTypeParameters={parameters}", text))
    for node in cluster.nodes:
        cluster.stop_slurmd(node.name)
    cluster.start_slurmctld()
    for node in cluster.nodes:
        cluster.start_slurmd(node.name)
    cluster.wait_idle(30)
