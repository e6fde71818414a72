"""A controller on a real Slurm whose nodes and daemons fail at the worst moments, or that grants few rights."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from slurm_hadar.cluster import PrivateCluster
from slurm_hadar.controller.answers.view import queue_view
from slurm_hadar.policies import registry
from slurm_hadar.slurm.backend.cli import CliBackend

pytestmark = pytest.mark.slurm
Make = Callable[..., PrivateCluster]
SAVES = "hadar:model=resnet18,batch=64,steps=20000,ckpt=yes"


def after_reading(live: Any, action: Callable[[], object]) -> None:
    """Let something happen once, between the next reading and what the controller then does."""
    read = live.backend.read

    def read_then_act() -> Any:
        state = read()
        live.backend.read = read
        action()
        return state

    live.backend.read = read_then_act


def rounds_until(controller: Any, condition: Callable[[], object], poll: Any, deadline_s: float = 120.0) -> None:
    """Rounds one after the other until the condition holds."""

    def round_() -> object:
        controller.run_round()
        return condition()

    poll(round_, deadline_s, 0.3)


def test_slurmctld_away_in_the_middle_of_a_round(make_cluster: Make, make_live: Any, poll: Any) -> None:
    """Crashed between reading and writing: the round is skipped and says so; when it is back, rounds go on."""
    live = make_live(make_cluster("v100:1x2,k80:1x2"))
    blocker = live.submit("--gres=gpu:2", "-N2", comment="", script="sleep 600")
    poll(lambda: live.state_of(blocker) == "RUNNING")
    job = live.submit("--gres=gpu:2")
    impatient = CliBackend(2.0, 0, live.cluster.env)
    controller = live.controller("slurm.timeout_s=2", backend=impatient)
    assert controller.run_round().record.leases == 1
    live.cluster.run(["scancel", blocker])
    poll(lambda: live.state_of(blocker) == "CANCELLED")
    live.cluster.stop_slurmctld()
    live.cluster.start_slurmctld()  # its state is saved now: what follows is about us, not about Slurm's own losses
    live.cluster.wait_idle(60)
    live.backend = impatient
    after_reading(live, live.cluster.kill_slurmctld)
    live.place(**{f"j{job}": {"k80-1": 2}})

    skipped = controller.run_round()
    again = controller.run_round()
    live.cluster.start_slurmctld()
    live.cluster.wait_idle(60)
    live.backend = CliBackend(env=live.cluster.env)
    rounds_until(controller, lambda: live.holds(job, {"k80-1": 2}), poll)

    assert skipped.plan is None and again.plan is None
    assert skipped.record.note.startswith("skipped: ") and "\n" not in skipped.record.note
    live.finish()
    poll(lambda: live.state_of(job) == "COMPLETED", 60)


def test_a_node_drained_between_reading_and_writing(make_cluster: Make, make_live: Any, poll: Any) -> None:
    """The job cannot start where it was placed; the next round sees why and starts it elsewhere."""
    live = make_live(make_cluster("v100:1x2,k80:1x2"))
    live.cluster.run(["scontrol", "update", "NodeName=k80-1,v100-1", "State=DRAIN", "Reason=wait"])
    job = live.submit("--gres=gpu:2")
    live.cluster.run(["scontrol", "update", "NodeName=k80-1,v100-1", "State=RESUME"])
    live.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now+300"])
    live.journal.save_jobs([])
    controller = live.controller("jobs.start_timeout_s=2", policy=registry.get("hadar"))
    live.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
    drain = ["scontrol", "update", "NodeName=v100-1", "State=DRAIN", "Reason=just now"]
    after_reading(live, lambda: live.cluster.run(drain))

    first = controller.run_round()

    if live.state_of(job) == "PENDING":  # else Slurm had started it before the node was drained, and it may go on
        assert [w.outcome for w in first.outcome.log][-1] in ("slow", "undone")
        rounds_until(controller, lambda: live.holds(job, {"k80-1": 2}), poll)
    assert live.state_of(job) == "RUNNING"


def test_a_slurmd_that_dies_under_a_placement(make_cluster: Make, make_live: Any, poll: Any) -> None:
    """Slurm finds out late and requeues the job; the controller then starts it on a node that works."""
    live = make_live(make_cluster("v100:1x2,k80:1x2", extra_conf=("SlurmdTimeout=5",)))
    blocker = live.submit("--gres=gpu:2", "-N2", comment="", script="sleep 600")
    poll(lambda: live.state_of(blocker) == "RUNNING")
    job = live.submit("--gres=gpu:2")
    controller = live.controller("jobs.start_timeout_s=2", policy=registry.get("hadar"))
    controller.run_round()
    live.cluster.run(["scancel", blocker])
    live.cluster.wait_idle(60)
    after_reading(live, lambda: live.cluster.stop_slurmd("v100-1"))

    controller.run_round()
    # after a launch that failed Slurm shows the job without its GPUs: the node tells
    rounds_until(controller, lambda: live.cluster.node_states()[1].gpus_used == {"k80": 2}, poll, 180)
    assert (live.state_of(job), live.field(job, "NodeList")) == ("RUNNING", "k80-1")

    live.finish()
    poll(lambda: live.state_of(job) == "COMPLETED", 60)


def test_a_placement_that_slurm_will_not_do_is_undone(live: Any, poll: Any) -> None:
    """Its owner excludes a node after the round has looked: placed on it, the job gets its own shape back, is not left
    held, and goes elsewhere."""
    blocker = live.submit("--gres=gpu:4", "-N6", comment="", script="sleep 600")
    poll(lambda: live.state_of(blocker) == "RUNNING")
    job = live.submit("--gres=gpu:2", comment=SAVES + ",nodes=1-2")
    controller = live.controller("jobs.start_timeout_s=5")
    controller.run_round()
    live.cluster.run(["scancel", blocker])
    live.cluster.wait_idle(60)
    live.place(**{f"j{job}": {"v100-1": 1, "v100-2": 1}})
    after_reading(live, lambda: live.cluster.run(["scontrol", "update", f"JobId={job}", "ExcNodeList=v100-1"]))

    result = controller.run_round()

    outcomes = [w.outcome for w in result.outcome.log if w.job_id == job]
    assert outcomes[:3] == ["ok", "ineffective", "undone"], result.outcome.log
    found = next(j for j in live.backend.read_jobs() if j.job_id == job)
    assert (found.req_nodes, found.num_nodes, found.gpus[0].count, found.held) == ((), 1, 2, False)
    assert set(live.journal.load_jobs()[job].avoid) == {"v100-1", "v100-2"}
    live.place(**{f"j{job}": {"k80-1": 2}})
    assert controller.run_round().record.failed == 0
    assert live.holds(job, {"k80-1": 2})


def test_modes_by_partition(make_cluster: Make, make_live: Any, poll: Any) -> None:
    """Jobs are steered in the partition that is in mode act, and not touched in the other."""
    live = make_live(make_cluster("v100:1x2,k80:1x2", partitions=True))
    full = [live.submit("--gres=gpu:2", "-p", p, comment="", script="sleep 600") for p in ("v100", "k80")]
    poll(lambda: all(live.state_of(j) == "RUNNING" for j in full))
    ours, theirs = (live.submit("--gres=gpu:1", "-p", p) for p in ("v100", "k80"))
    both = live.submit("--gres=gpu:1", "-p", "k80,v100")
    before = [live.as_submitted(j) for j in (theirs, both)]
    controller = live.controller("controller.mode=observe", "partitions.v100.mode=act")

    result = controller.run_round()

    assert {w.job_id for w in result.outcome.log} == {ours} and result.record.leases == 1
    assert [live.as_submitted(j) for j in (theirs, both)] == before
    assert live.journal.wait(theirs)["why"] == "partition k80 is in mode observe"
    live.cluster.run(["scancel", *full])
    poll(lambda: live.state_of(theirs) == "RUNNING", 60)
    assert live.state_of(ours) == "PENDING"
    live.place(**{f"j{ours}": {"v100-1": 1}})
    controller.run_round()
    assert live.holds(ours, {"v100-1": 1})


def test_with_the_plugins_a_typed_job_can_be_moved(make_cluster: Make, make_live: Any, poll: Any) -> None:
    """job_submit.lua makes a typed request steerable, and Slurm's variables in the moved job are the right ones."""
    live = make_live(make_cluster("v100:1x2,k80:1x2", plugins=True))
    script = 'env | grep ^SLURM_GPUS; srun hostname -s >/dev/null; echo "run on $SLURM_JOB_NODELIST"\n'
    job = live.submit("--gpus=k80:2", script=script + "until [ -e go ]; do sleep 0.2; done\n")
    fixed = live.submit("--gpus=k80:1", comment="")
    live.cluster.run(["scancel", fixed])
    poll(lambda: live.state_of(job) == "RUNNING")
    controller = live.controller()

    for node in ("v100-1", "k80-1"):
        live.place(**{f"j{job}": {node: 2}})
        result = controller.run_round()
        assert result.record.failed == 0 and live.holds(job, {node: 2}), result.outcome.log

    said = live.work / f"{job}.out"
    poll(lambda: said.read_text().endswith("run on k80-1\n"), 60)
    # from 26.05 on Slurm keeps variables that were emptied
    assert "run on v100-1" in said.read_text() and not re.search(r"SLURM_GPUS=\S", said.read_text())
    live.finish()
    poll(lambda: live.state_of(job) == "COMPLETED", 60)


def test_a_job_that_slurm_could_not_launch_is_released(make_cluster: Make, make_live: Any, poll: Any) -> None:
    """Slurm holds it for good; it is given to another node, and runs there."""
    live = make_live(make_cluster("v100:1x2,k80:1x2"))
    full = live.submit("--gres=gpu:2", "-w", "k80-1", comment="", script="sleep 600")
    poll(lambda: live.state_of(full) == "RUNNING")
    # slurmd cannot make the directory of the job's script
    (live.cluster.directory / "spool" / "v100-1" / "job00002").write_text("in the way")
    job = live.submit("--gres=gpu:1")
    poll(lambda: live.field(job, "Reason") == "launch_failed_requeued_held" and live.field(job, "Priority") == "0", 60)
    live.cluster.run(["scancel", full])
    poll(lambda: live.state_of(full) != "RUNNING")
    live.place(**{f"j{job}": {"k80-1": 1}})

    result = live.controller().run_round()

    assert live.holds(job, {"k80-1": 1}), result.outcome.log
    assert [w.outcome for w in result.outcome.log if w.command == f"release {job}"] == ["ok"]


def test_a_job_that_fails_in_the_moment_of_a_restart_runs_once_more(
    make_cluster: Make, make_live: Any, poll: Any
) -> None:
    """For Slurm it has failed for good; its third run is elsewhere, and comes to its end."""
    live = make_live(make_cluster("v100:1x2,k80:1x2"))
    script = '[ "$SLURM_RESTART_COUNT" = 1 ] && exit 1\nuntil [ -e go ]; do sleep 0.2; done\n'
    job = live.submit("--gres=gpu:1", script=script)
    poll(lambda: live.state_of(job) == "RUNNING")
    first, second = sorted(("v100-1", "k80-1"), key=lambda node: not live.holds(job, {node: 1}))
    controller = live.controller()
    live.place(**{f"j{job}": {second: 1}})
    controller.run_round()
    poll(lambda: live.state_of(job) == "FAILED", 60)
    live.place(**{f"j{job}": {first: 1}})

    result = controller.run_round()

    assert [(w.command, w.outcome) for w in result.outcome.log] == [(f"restart {job}", "ok")]
    assert live.field(job, "Restarts") == "2" and live.state_of(job) == "PENDING"
    result = controller.run_round()
    assert live.holds(job, {first: 1}), result.outcome.log
    live.finish()
    poll(lambda: live.state_of(job) == "COMPLETED", 60)


@pytest.fixture
def as_nobody(live: Any, short_tmp: Any) -> CliBackend:
    """Slurm's commands with the rights of another user than the one of the jobs and daemons."""
    if os.geteuid() != 0 or not shutil.which("runuser"):
        pytest.skip("only root can become another user")
    for name in ("squeue", "sinfo", "scontrol", "scancel"):
        shim = short_tmp / name
        shim.write_text(f'#!/bin/sh\nexec runuser -u nobody -- {live.cluster.install.program(name)} "$@"\n')
        shim.chmod(0o755)
    return CliBackend(env={**live.cluster.env, "PATH": f"{short_tmp}:{live.cluster.env['PATH']}"})


def submit_as_nobody(live: Any, *options: str) -> str:
    argv = ["runuser", "-u", "nobody", "--", live.cluster.install.program("sbatch"), "--parsable", "--requeue",
            f"--chdir={live.work}", "--output=%j.out", f"--comment={SAVES}", *options]  # fmt: skip
    return live.cluster.run(
        argv, input="#!/bin/bash\nuntil [ -e go ]; do sleep 0.2; done\n", cwd=live.work
    ).stdout.strip()


@pytest.mark.parametrize("scope", [("controller.users=['nobody']",), ()], ids=["own jobs only", "all jobs"])
def test_with_a_users_rights(live: Any, as_nobody: CliBackend, scope: tuple[str, ...], poll: Any) -> None:
    """A user's controller moves that user's jobs; those of others it may not change, and they come to no harm."""
    mine, theirs = submit_as_nobody(live, "--gres=gpu:2"), live.submit("--gres=gpu:2")
    poll(lambda: live.state_of(mine) == live.state_of(theirs) == "RUNNING")
    before = live.show(theirs)
    controller = live.controller(*scope, "guard.max_failed_writes=1", backend=as_nobody)

    for node in ("k80-1", "v100-2"):
        live.place(**{f"j{mine}": {node: 2}, f"j{theirs}": {"p100-2" if node == "k80-1" else "k80-2": 2}})
        result = controller.run_round()
        assert live.holds(mine, {node: 2}) and result.record.note == "", result.outcome.log

    assert live.show(theirs) == before
    why = live.journal.wait(theirs)["why"]
    assert why == (
        f"user {live.cluster.user} is outside this controller's scope"
        if scope
        else "is not this controller's to change (Access/permission denied)"
    )
    lines = {line.job_id: line for line in queue_view(as_nobody, live.config(*scope))[0]}
    assert lines[mine].tier == "" and lines[mine].where == "v100-2(v100:2)"
