"""Unix users of a private cluster: who is honest, who is not, and how to do something as one of them."""

from __future__ import annotations

import os
import pwd
import shutil
import site
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from slurm_hadar.cluster import PrivateCluster

__all__ = ["HONEST", "HOSTILE", "OPERATOR", "ROOT", "as_user", "may_act_as_others", "python_of"]

ROOT = Path(__file__).resolve().parents[2]
# System users that every Debian has. Not nobody, whose name newer releases of Slurm refuse.
HONEST, HOSTILE, OPERATOR = ("daemon", "bin"), ("games", "man"), "mail"


def may_act_as_others() -> bool:
    """Whether this process can become those users."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    return os.geteuid() == 0 and bool(shutil.which("runuser")) and {*HONEST, *HOSTILE, OPERATOR} <= names


def as_user(
    cluster: PrivateCluster,
    user: str,
    argv: Sequence[str],
    *,
    given: str | None = None,
    cwd: Path | str = "/",
    timeout_s: float = 30.0,
) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm's as ``user``; its failure is for the caller to judge, also that it overran (124)."""
    program = cluster.install.programs.get(argv[0], argv[0])
    command = [*_become(user), program, *argv[1:]]
    try:
        return subprocess.run(
            command,
            env=cluster.env,
            cwd=cwd,
            input=given,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            stdin=subprocess.DEVNULL if given is None else None,
            check=False,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"no answer within {timeout_s:g} s")


def _become(user: str) -> list[str]:
    return [shutil.which("runuser") or "runuser", "-u", user, "--"]


@cache
def python_of(user: str) -> tuple[str, str] | None:
    """An interpreter and a PYTHONPATH by which ``user`` can run our commands; None where there are none, as where this
    one is below a home directory and the system has no other of its version."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    path = os.pathsep.join([str(ROOT), *site.getsitepackages()])
    for python in (sys.executable, f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        tried = subprocess.run(
            [*_become(user), python, "-c", "import slurm_hadar.cli.main, zmq, scipy"],
            env={"PATH": os.defpath, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            capture_output=True,
            check=False,
        )
        if tried.returncode == 0:
            return python, path
    return None
