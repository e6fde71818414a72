"""The doctor at a real Slurm: well where all is well, and what is broken is found."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.cluster import PrivateCluster

pytestmark = pytest.mark.slurm
# what a private cluster is by design: no accounts, nothing bound to its GPUs, jobs in order of submission
BY_DESIGN = {"accounting", "priority", "tasks"}


def doctor(cluster: PrivateCluster, *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code and each check of ``hadar doctor --json``."""
    command = [sys.executable, "-m", "slurm_hadar.cli.main", "doctor", "--json", *arguments]
    env = {**cluster.env, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.stderr == "", done
    return done.returncode, {entry["check"]: entry for entry in json.loads(done.stdout)["checks"]}


def test_well_and_broken(make_cluster: Callable[..., PrivateCluster], tmp_path: Path) -> None:
    """All is well; then a typed job, a strange and a missing job_submit.lua, a lock, a hard KillWait, no slurmctld."""
    cluster = make_cluster("v100:1x2,k80:1x2", plugins=True)
    script = cluster.conf.with_name("job_submit.lua")

    code, found = doctor(cluster, "--set", "controller.mode=act")
    assert code == 0
    assert {n for n, f in found.items() if f["verdict"] not in ("ok", "unknown")} <= BY_DESIGN, found
    unknown = {n for n, f in found.items() if f["verdict"] == "unknown"}
    assert unknown - {"packages"} == {
        "job_comments",
        "accounted_gpus",
        "node_clocks",
        "typed_jobs",
        "work_dirs",
        "comments",
    }
    assert found["job_submit"]["verdict"] == found["clock"]["verdict"] == found["rights"]["verdict"] == "ok"
    assert not (cluster.conf.parent / "hadar").exists()  # it only looks

    options = ["--parsable", "--hold", "--gres=gpu:v100:1", "--comment=hadar:pin=yes", f"--chdir={tmp_path}"]
    cluster.run(["sbatch", *options, "--wrap", "true"])
    script.write_text(script.read_text() + "-- changed\n")
    _, found = doctor(cluster, "--set", "jobs.end_timeout_s=3")
    assert {n: found[n]["verdict"] for n in ("typed_jobs", "job_submit", "kill_wait", "work_dirs")} == {
        "typed_jobs": "warning",
        "job_submit": "warning",
        "kill_wait": "warning",
        "work_dirs": "ok",
    }

    script.unlink()
    _, found = doctor(cluster)
    assert found["job_submit"]["verdict"] == "unknown" and "No such file" in found["job_submit"]["found"]

    cluster.stop_slurmctld()
    code, found = doctor(cluster, "--set", "slurm.timeout_s=20")
    assert code == 1 and found["slurm"]["verdict"] == "problem" and found["rights"]["verdict"] == "unknown"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runuser"), reason="only root can become another user")
def test_wrong_rights_are_a_problem(
    slurm_cluster: PrivateCluster, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user than root may not act for everybody, and is told so; for their own jobs they may."""
    from slurm_hadar.config import load
    from slurm_hadar.doctor.examine import judge
    from slurm_hadar.doctor.host import inspect_host
    from slurm_hadar.slurm.backend.cli import CliBackend
    from slurm_hadar.slurm.survey import Survey, survey

    monkeypatch.setattr(os, "geteuid", lambda: pwd.getpwnam("nobody").pw_uid)
    slurm = survey(CliBackend(timeout_s=60, retries=0, env=slurm_cluster.env))
    assert isinstance(slurm, Survey)

    def rights(*settings: str) -> str:
        config = load(None, ("slurm.backend=cli", f"controller.state_dir={short_tmp}", *settings))
        return next(str(f.verdict) for f in judge(slurm, inspect_host(config, "", slurm)) if f.check == "rights")

    assert rights("controller.mode=act") == "problem" and rights() == "warning"
    assert rights("controller.mode=act", 'controller.users=["nobody"]') == "ok"
