"""With which rights the controller can work: an operator's for everybody's jobs, a user's for their own."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.cluster import PrivateCluster
from slurm_hadar.config import load
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.parts import Parts
from slurm_hadar.controller.setup import steer
from slurm_hadar.model import Placement, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import Policy
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.survey import Survey, survey

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runuser"), reason="only root can become another user"),
]
OTHER = "daemon"
SETTINGS = ("controller.mode=act", "controller.round_s=30", "jobs.start_timeout_s=20", "guard.min_run_s=0")


class FirstOnP100(Policy):
    """Puts the oldest job on p100-1 and lets the others wait."""

    name = "first"

    def allocate(self, snapshot: Snapshot) -> Plan:
        jobs = [j.job_id for j in snapshot.steerable_jobs]
        placed = {j: Placement.of({"p100-1": {"p100": 1}}) for j in jobs[:1]}
        return Plan(self.name, placed, {j: Wait(Tier.POLICY, "not the first") for j in jobs[1:]})


def as_another(cluster: PrivateCluster, folder: Path) -> CliBackend:
    """A backend whose every Slurm command is run by another user; not by nobody, whose name Slurm 26.05 refuses."""
    commands = folder / "bin"
    commands.mkdir()
    for name in ("squeue", "sinfo", "scontrol", "scancel"):
        script = commands / name
        script.write_text(f'#!/bin/sh\nexec runuser -u {OTHER} -- {cluster.install.program(name)} "$@"\n')
        script.chmod(0o755)
    return CliBackend(env={**cluster.env, "PATH": f"{commands}:{cluster.env['PATH']}"})


def a_round(backend: CliBackend) -> Any:
    """One round of a controller with that backend."""
    return steer(FirstOnP100(), load(None, SETTINGS), Parts(backend, Journal(":memory:"))).run_round()


def submit(cluster: PrivateCluster) -> str:
    """A job of root's that waits behind a full v100-1 and p100-1."""
    command = ["sbatch", "--parsable", "--gres=gpu:1", "--requeue", "--comment=hadar:lose=yes", "-o", "/dev/null"]
    return cluster.run([*command, "--wrap", "sleep 600"], check=True).stdout.strip()


def queue_of(cluster: PrivateCluster) -> dict[str, str]:
    """{job: state, node and reason}. Slurm says now Priority and now Resources of one that waits for GPUs."""
    lines = cluster.run(["squeue", "-h", "-o", "%i %T %N %r"], check=True).stdout.splitlines()
    return {line.split()[0]: " ".join(line.split()[1:]).replace("Priority", "Resources") for line in lines}


def test_operator_rights_are_enough(
    make_cluster: Callable[..., PrivateCluster], short_tmp: Path, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user with AdminLevel=Operator, and no more, moves and leases another user's jobs, and the survey sees it."""
    cluster = make_cluster("v100:1x1,p100:1x1", accounting=True)
    cluster.run(["sacctmgr", "-i", "add", "account", "lab"], check=True)
    for user, level in (("root", "Administrator"), (OTHER, "Operator")):
        cluster.run(["sacctmgr", "-i", "add", "user", user, "account=lab", f"adminlevel={level}"], check=True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: pwd.getpwnam(OTHER).pw_uid)
        found = survey(as_another(cluster, _fresh(short_tmp)))
    assert isinstance(found, Survey) and not found.is_slurm_user
    assert found.admin_level == ("Operator", ()) and found.accounting is True
    jobs = [submit(cluster) for _ in range(3)]
    poll(lambda: sum("RUNNING" in text for text in queue_of(cluster).values()) == 2)

    rounds = []

    def goes_well() -> bool:
        rounds.append(a_round(as_another(cluster, _fresh(short_tmp))).record)
        return rounds[-1].failed == 0

    poll(goes_well, 60)
    assert sum(r.starts + r.moves + r.preemptions + r.leases for r in rounds) > 0
    states = queue_of(cluster)
    assert states[jobs[0]].startswith("RUNNING p100-1")
    others = [states[j].split()[0] for j in jobs[1:]]
    # a second round has had time to start one of them on the other node
    assert others == ["PENDING", "PENDING"] or (len(rounds) > 1 and sorted(others) == ["PENDING", "RUNNING"])


def _fresh(base: Path) -> Path:
    folder = base / f"r{len(list(base.iterdir()))}"
    folder.mkdir()
    folder.chmod(0o755)
    return folder


def test_without_rights_nothing_is_changed(
    make_cluster: Callable[..., PrivateCluster], short_tmp: Path, poll: Any
) -> None:
    """Another user's jobs are refused, left as they are, and said to be not ours to change."""
    cluster = make_cluster("v100:1x1,p100:1x1")
    jobs = [submit(cluster) for _ in range(3)]
    # Slurm has looked at the third one, too: until then it shows None as its reason
    looked_at = ["PENDING Resources", "RUNNING p100-1 None", "RUNNING v100-1 None"]
    before = poll(lambda: sorted((found := queue_of(cluster)).values()) == looked_at and found)

    result = a_round(as_another(cluster, _fresh(short_tmp)))

    assert result.outcome.denied.keys() <= set(jobs) and result.outcome.denied
    assert queue_of(cluster) == before
