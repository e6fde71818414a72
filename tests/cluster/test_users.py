"""Who may run a private cluster, and as whom its jobs run."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from slurm_hadar.cluster import PrivateCluster

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("runuser"), reason="only root can become another user"),
]
REPOSITORY = Path(__file__).resolve().parents[2]
_CODE = """
import json, sys
from slurm_hadar.cluster import ClusterSpec, down, processes, up
from slurm_hadar.cluster.place import default_directory
cluster = up(ClusterSpec(nodes="v100:2x1", name=sys.argv[1]))
said = cluster.run(["srun", "-N2", "--gres=gpu:1", "id", "-u"]).stdout.split()
where = str(cluster.directory)
step = [p for p in processes.of_cluster(cluster.directory) if p.name == "slurmstepd"]  # ends a moment after srun
assert not processes.wait_gone(step, 30), step
ended = down(name=sys.argv[1])
print(json.dumps([said, where, ended, cluster.directory.exists()]))
"""


def _python_for_all() -> str | None:
    """An interpreter that other users may run too, which one below /root is not."""
    for name in ("/usr/bin/python3.13", "/usr/bin/python3.12", "/usr/bin/python3.11", "/usr/local/bin/python3"):
        if Path(name).exists():
            return name
    return None


def test_normal_user_without_home_or_terminal(short_tmp: Path) -> None:
    """A user with neither HOME nor a terminal runs a cluster; its jobs run as that user; nothing is left."""
    python = _python_for_all()
    if python is None:
        pytest.skip("no Python that other users may run")
    shutil.copytree(REPOSITORY / "slurm_hadar", short_tmp / "slurm_hadar", ignore=shutil.ignore_patterns("__pycache__"))
    clean = ["env", "-i", "PATH=/usr/bin:/bin", f"PYTHONPATH={short_tmp}", "PYTHONDONTWRITEBYTECODE=1"]
    name = f"t{os.getpid()}"

    done = subprocess.run(
        ["setsid", "-w", "runuser", "-u", "nobody", "--", *clean, python, "-c", _CODE, name],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd="/",
        check=False,
        timeout=180,
    )

    assert done.returncode == 0, done.stderr
    nobody = subprocess.run(["id", "-u", "nobody"], capture_output=True, text=True, check=True).stdout.strip()
    base = Path(f"/tmp/slurm_hadar-{nobody}")
    where = f"{base}/clusters/{name}"
    for folder in (base / "clusters", base):
        with contextlib.suppress(OSError):
            folder.rmdir()  # unless that user has clusters of their own
    assert done.stdout.strip() == f'[["{nobody}", "{nobody}"], "{where}", 4, false]'


def test_jobs_of_others_run_as_themselves_in_roots_cluster(make_cluster: Callable[..., PrivateCluster]) -> None:
    """In a cluster of root's, another user's job has that user's rights."""
    cluster = make_cluster("v100:1x1")
    srun = [cluster.install.program("srun"), "id", "-un"]

    said = subprocess.run(
        ["runuser", "-u", "nobody", "--", "env", f"SLURM_CONF={cluster.conf}", *srun],
        env=cluster.env,
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    ).stdout

    assert said.strip() == "nobody"
