"""A controller on a real Slurm that switches nodes off when nobody needs them, as clusters in clouds do.

Slurm is told by hand when to switch a node off (SuspendTime is long), so that nothing here hangs on the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.cluster import PrivateCluster
from slurm_hadar.cluster.processes import MARK

pytestmark = pytest.mark.slurm
Make = Callable[..., PrivateCluster]

# What a site's programs do by its cloud's API or by IPMI. ``-b``: to Slurm it is the node that has booted; without it
# slurmctld waits on for the boot.
_SUSPEND = 'for node in $(scontrol show hostnames "$1"); do kill -9 "$(cat {run}/slurmd-$node.pid)"; done'
# Since 24.11 slurmctld ends the process group of a program that has ended: a boot has a session of its own by then.
_RESUME = """for node in $(scontrol show hostnames "$1"); do
  rm -f {folder}/boots-$node
  NODE=$node setsid bash -c 'touch {folder}/boots-$NODE
    until [ -e {folder}/up-$NODE ]; do sleep 0.2; done; exec {slurmd} -D -b -N "$NODE"' \
    < /dev/null > {log}/slurmd-$node.err 2>&1 &
  until [ -e {folder}/boots-$node ]; do sleep 0.1; done
done"""


class PowerSaving:
    """The cluster, and what happens to its nodes. ``resume_s``: what Slurm gives a node to come up."""

    def __init__(
        self, folder: Path, make: Callable[..., PrivateCluster], nodes: str, cloud: str, resume_s: int
    ) -> None:
        self._folder = folder
        programs = {name: folder / name for name in ("suspend", "resume")}
        for path in programs.values():  # slurmctld looks for them when it starts
            path.touch(0o755)
        self.cluster = make(
            nodes,
            extra_conf=(
                f"SuspendProgram={programs['suspend']}", f"ResumeProgram={programs['resume']}", "SuspendTime=86400",
                "SuspendTimeout=2", f"ResumeTimeout={resume_s}", "SuspendRate=0", "ResumeRate=0", "PrivateData=cloud",
            ),
        )  # fmt: skip
        self._write(programs["suspend"], _SUSPEND)
        self._write(programs["resume"], _RESUME)
        self._make_cloud_node(cloud)

    def _write(self, program: Path, body: str) -> None:
        cluster = self.cluster
        exports = {"PATH": cluster.env["PATH"], MARK: cluster.directory, **cluster.exports}
        lines = ["#!/bin/bash", *(f"export {name}='{value}'" for name, value in exports.items())]
        folders = {"run": cluster.directory / "run", "log": cluster.directory / "log", "folder": self._folder}
        text = body.format(**folders, slurmd=cluster.install.program("slurmd"))
        program.write_text("\n".join([*lines, text.replace("scontrol", cluster.install.program("scontrol"))]) + "\n")

    def _make_cloud_node(self, name: str) -> None:
        cluster = self.cluster
        cluster.stop_slurmctld()
        lines = cluster.conf.read_text().splitlines()
        there = f"NodeName={name} "
        lines = [line.replace("State=UNKNOWN", "State=CLOUD") if line.startswith(there) else line for line in lines]
        cluster.conf.write_text("\n".join(lines) + "\n")
        cluster.start_slurmctld()

    def state(self, node: str) -> str:
        return next(n.state for n in self.cluster.node_states() if n.name == node)

    def switch_off(self, poll: Any, *nodes: str) -> None:
        names = ",".join(nodes)
        self.cluster.run(["scontrol", "update", f"NodeName={names}", "State=POWER_DOWN_FORCE", "Reason=saving"])
        poll(lambda: all("POWERED_DOWN" in self.state(node) for node in nodes), 60)

    def let_come_up(self, node: str) -> None:
        """A node that Slurm switches on boots until then."""
        (self._folder / f"up-{node}").touch()


@pytest.fixture
def power_saving(short_tmp: Path, make_cluster: Make) -> Callable[..., PowerSaving]:
    def make(nodes: str, cloud: str, resume_s: int = 90) -> PowerSaving:
        return PowerSaving(short_tmp, make_cluster, nodes, cloud, resume_s)

    return make


def a_job_that_is_put_off(power: PowerSaving, live: Any, controller: Any, poll: Any) -> str:
    """Else Slurm itself would switch a node on for it, at once."""
    everything = live.submit("--gres=gpu:2", f"-N{len(power.cluster.nodes)}", comment="", script="sleep 600")
    poll(lambda: live.state_of(everything) == "RUNNING")
    job: str = live.submit("--gres=gpu:2")
    assert controller.run_round().record.leases == 1
    live.cluster.run(["scancel", everything])
    poll(lambda: all(n.state.startswith("IDLE") for n in power.cluster.node_states()))
    return job


def start_of(live: Any, job: str) -> float:
    return datetime.fromisoformat(live.field(job, "StartTime")).timestamp()


def test_started_on_a_node_that_is_switched_off(power_saving: Any, make_live: Any, poll: Any) -> None:
    """Slurm switches it on for the job. Until it is up the job counts as starting, and is left where it is though the
    plan is another by now; what passes until then is no part of what it has run, and expected of other nodes."""
    power = power_saving("v100:2x2", cloud="v100-2")
    live = make_live(power.cluster)
    controller = live.controller()
    job = a_job_that_is_put_off(power, live, controller, poll)
    power.switch_off(poll, "v100-1", "v100-2")
    live.place(**{f"j{job}": {"v100-2": 2}})

    started = controller.run_round().record
    live.place(**{f"j{job}": {"v100-1": 2}})
    booting = controller.run_round()
    given = start_of(live, job)
    shown = live.hadar("queue")

    assert (started.starts, started.failed) == (1, 0)
    assert live.state_of(job) == "CONFIGURING" and live.field(job, "NodeList") == "v100-2"
    assert (booting.record.moves, booting.seen.snapshot.job[job].started) == (0, None)
    assert "starting" in shown.stdout and "its nodes are being made ready for it since " in shown.stdout

    live.place(**{f"j{job}": {"v100-2": 2}})
    power.let_come_up("v100-2")
    poll(lambda: live.state_of(job) == "RUNNING", 90)
    up = controller.run_round()
    nodes = controller.run_round().seen.snapshot.node

    assert up.seen.records[job].run_since == start_of(live, job) > given
    assert nodes["v100-1"].boot_s == start_of(live, job) - given
    assert nodes["v100-2"].boot_s == 0
    live.finish()
    poll(lambda: live.state_of(job) == "COMPLETED", 60)


@pytest.mark.thorough
def test_a_node_that_does_not_come_up(power_saving: Any, make_live: Any, poll: Any) -> None:
    """Slurm gives it up and puts the job back: that is told, none of it counts as run, and the job goes elsewhere."""
    power = power_saving("v100:2x2", cloud="v100-2", resume_s=5)
    live = make_live(power.cluster)
    controller = live.controller()
    job = a_job_that_is_put_off(power, live, controller, poll)
    power.switch_off(poll, "v100-1")
    live.place(**{f"j{job}": {"v100-1": 2}})
    assert controller.run_round().record.starts == 1
    poll(lambda: live.state_of(job) == "PENDING", 60)
    live.place(**{f"j{job}": {"v100-2": 2}})

    elsewhere = controller.run_round()

    assert live.holds(job, {"v100-2": 2}) and elsewhere.record.failed == 0
    assert "v100-1 did not come up" in live.hadar("history", job).stdout
    assert elsewhere.seen.records[job].attained_s == 0
    live.finish()
    poll(lambda: live.state_of(job) == "COMPLETED", 60)
