"""Jobs with graphs under a controller of a real Slurm: together or spread as their traffic wants it."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_hadar.graphs.network import Network
from slurm_hadar.policies import registry

pytestmark = pytest.mark.slurm
DEADLINE_S = 120
HEAVY = "[[stage]]\ncompute_s = 0.01\nparameter_bytes = 4e8\nreplicas = 2\n"
LIGHT = HEAVY.replace("4e8", "4e3")


@pytest.mark.parametrize("policy", ["hadar", pytest.param("asrpt", marks=pytest.mark.thorough)])
def test_a_heavy_job_waits_for_a_node_and_a_light_one_is_spread(live: Any, poll: Any, policy: str) -> None:
    """Three of the four GPUs of both v100 nodes are taken by jobs that cannot be moved: two are left, one on each."""
    elsewhere = [f"{gpu}-{i}" for gpu in ("p100", "k80") for i in (1, 2)]
    full = [live.submit("--gres=gpu:4", f"--nodelist={node}", comment="", script="sleep 600\n") for node in elsewhere]
    poll(lambda: all(live.state_of(f) == "RUNNING" for f in full), deadline_s=DEADLINE_S)
    blockers = [live.submit("--gres=gpu:3", comment="hadar:steps=20000,lose=no") for _ in range(2)]
    poll(lambda: all(live.state_of(b) == "RUNNING" for b in blockers), deadline_s=DEADLINE_S)
    (live.work / "heavy.toml").write_text(HEAVY)
    (live.work / "light.toml").write_text(LIGHT)
    controller = live.controller("network.outside_bytes_s=1e8", policy=registry.get(policy))

    def submit(graph: str) -> str:
        comment = f"hadar:graph={graph},types=v100,nodes=1-2,steps=20000,ckpt=yes"
        return live.submit("--gres=gpu:2", "-N1", comment=comment, script="sleep 600\n")

    heavy = submit("heavy.toml")
    result = controller.run_round()
    assert result.record.failed == 0
    assert live.state_of(heavy) == "PENDING"
    assert result.seen.snapshot.job[heavy].graph.startswith("heavy.toml#")
    light, broken = submit("light.toml"), submit("none.toml")
    controller.run_round()
    poll(lambda: live.holds(light, {"v100-1": 1, "v100-2": 1}), deadline_s=DEADLINE_S)
    assert live.state_of(heavy) == "PENDING"
    assert "graph        goes on without it: graph file" in live.hadar("explain", broken).stdout

    (node,) = live.gpus(blockers[0])
    live.cluster.run(["scancel", blockers[0], broken])
    poll(lambda: not live.gpus(blockers[0]), deadline_s=DEADLINE_S)
    controller.run_round()
    poll(lambda: live.holds(heavy, {node: 2}), deadline_s=DEADLINE_S)


def test_the_controller_leaves_its_network_for_the_jobs(live: Any) -> None:
    """Beside its channel file, as the configuration has it."""
    done = live.hadar(
        "run", "--once", settings=("network.types.v100.inside_bytes_s=2e11", "network.oversubscription=2")
    )
    assert done.returncode == 0, done.stderr
    left = Network.from_json(live.cluster.conf.with_name(Network.FILE).read_text())
    assert (left.links("v100"), left.oversubscription) == ((2e11, 12.5e9), 2.0)
