"""Where an episode is played: a private Slurm with accounting, limits, licences and a reservation, several users, and a
controller with an operator's rights or with those of a plain user."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from pathlib import Path

from benchmarks.attack.people import HONEST, HOSTILE, OPERATOR, ROOT, as_user, python_of
from benchmarks.campaigns.daemon import SHIM, Daemon
from slurm_hadar.cluster import ClusterSpec, PrivateCluster, up
from slurm_hadar.errors import ChannelError
from slurm_hadar.messages import ChannelInfo
from slurm_hadar.slurm.backend.cli import CliBackend

__all__ = ["LICENCES", "NODES", "QOS_GPUS", "REGIMES", "ROUND_S", "Stage"]

NODES = "v100:2x2,k80:2x2"
REGIMES = ("operator", "plain")
ROUND_S = 3.0
QOS_GPUS, QOS_JOBS, ACCOUNT_GPUS, LICENCES = 1, 2, 1, 1
SETTINGS = (
    "controller.mode=act", f"controller.round_s={ROUND_S:g}", "controller.event_round_s=1", "guard.min_run_s=10",
    "guard.max_moves_per_job=6", "jobs.start_timeout_s=5", "jobs.ack_timeout_s=5", "jobs.end_timeout_s=12",
    "jobs.restart_cost_s=3", "slurm.timeout_s=20", "slurm.retries=0", "slurm.backend=cli", "predict.retrain_s=0",
)  # fmt: skip
LIMITS = (
    ("add", "qos", "one", "set", f"MaxTRESPerUser=gres/gpu={QOS_GPUS}"),
    ("add", "qos", "few", "set", f"MaxJobsPU={QOS_JOBS}"),
    ("add", "account", "lab"),
    ("add", "account", "small", f"GrpTRES=gres/gpu={ACCOUNT_GPUS}"),
    *(("add", "user", u, "account=lab", "QOS=normal,one,few") for u in ("root", *HONEST, *HOSTILE, OPERATOR)),
    *(("add", "user", user, "account=small", "QOS=normal,one,few") for user in HOSTILE),
    ("modify", "user", OPERATOR, "set", "adminlevel=Operator"),
)


class Stage:
    """One cluster with all that an episode needs. A context manager: everything is gone afterwards.

    ``regime`` says whose rights the controller has: ``operator`` (may change everybody's jobs) or ``plain`` (a user's,
    for its own jobs). ``steered`` are the users whose honest jobs it can steer. ``as_itself`` is False where the
    interpreter cannot be run by that user: then only its calls to Slurm are that user's.
    """

    def __init__(self, folder: Path, regime: str, policy: str, plugins: bool) -> None:
        self.folder, self.regime, self.policy = folder, regime, policy
        self.user = OPERATOR if regime == "operator" else HONEST[0]
        self.steered = HONEST if regime == "operator" else HONEST[:1]
        self.state, self.out, self.sent, self.shims = (folder / n for n in ("state", "out", "sent", "shims"))
        for made in (self.state, self.out, self.sent, self.shims):
            made.mkdir()
            made.chmod(0o777)
        self.work = {user: _home(folder / f"home-{user}", user) for user in (*HONEST, *HOSTILE)}
        extra = ("AccountingStorageEnforce=associations,limits,qos", f"Licenses=tool:{LICENCES}", "MessageTimeout=20")
        self.cluster: PrivateCluster = up(
            ClusterSpec(
                name="attack",
                nodes=NODES,
                directory=folder / "c",
                accounting=True,
                plugins=plugins,
                partitions=True,
                kill_wait_s=2,
                extra_conf=extra,
            )
        )
        try:
            self._prepare()
        except BaseException:
            self.cluster.down()
            raise

    def _prepare(self) -> None:
        for words in LIMITS:
            self.cluster.run(["sacctmgr", "-i", *words])
        self.cluster.run(
            [
                "scontrol",
                "create",
                "reservation",
                "ReservationName=later",
                f"Users={HOSTILE[0]}",
                "Nodes=k80-2",
                "StartTime=now+1hour",
                "Duration=60",
            ]
        )
        self.backend = CliBackend(20.0, 0, self.cluster.env)
        self.channel = self.out / "channel.json"
        own = python_of(self.user)
        self.as_itself = own is not None
        self._write_shims()
        self.daemon = Daemon(self._command(own), self._environment(own), self.folder / "controller.log")

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(Exception):
            self.daemon.stop()
        self.cluster.down()

    def _command(self, own: tuple[str, str] | None) -> list[str]:
        chosen = [*SETTINGS, f"controller.state_dir={self.state}", f"channel.file={self.channel}",
                  f"policy.name={self.policy}"]  # fmt: skip
        if self.regime == "plain":
            chosen.append(f'controller.users=["{self.user}"]')
        sets = [word for s in chosen for word in ("--set", s)]
        become = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"] if own else []
        return [*become, own[0] if own else sys.executable, "-m", "slurm_hadar.cli.main", "run", *sets]

    def _environment(self, own: tuple[str, str] | None) -> dict[str, str]:
        path = os.pathsep.join([str(self.shims), self.cluster.env["PATH"]])
        python = own[1] if own else str(ROOT)
        return {**self.cluster.env, "PATH": path, "PYTHONPATH": python, "PYTHONDONTWRITEBYTECODE": "1",
                "HOME": str(self.out), "OMP_NUM_THREADS": "1"}  # fmt: skip

    def _write_shims(self) -> None:
        """What stands before Slurm's commands on the controller's path: keeps what is sent, and lends the user's name
        where the controller could not take it on itself."""
        for name in ("scontrol", "scancel", "squeue", "sinfo"):
            real = self.cluster.install.programs.get(name) or shutil.which(name) or name
            real = real if self.as_itself else f"runuser -u {self.user} -- {real}"
            text = f'#!/bin/sh\nexec {real} "$@"\n'
            if name in ("scontrol", "scancel"):
                text = SHIM.format(name=name, real=real, folder=self.sent, clock="")
            (self.shims / name).write_text(text)
            (self.shims / name).chmod(0o755)

    # What users do

    def run_as(self, user: str, *argv: str, given: str | None = None) -> tuple[int, str, str]:
        """(exit code, output, complaints) of one command of Slurm's."""
        done = as_user(self.cluster, user, argv, given=given, cwd=self.work.get(user, "/"))
        return done.returncode, done.stdout, done.stderr

    def sbatch(self, user: str, script: str, *options: str) -> str:
        """Submit; the job's id, empty where Slurm refused."""
        where = self.work[user]
        argv = ["sbatch", "--parsable", "--open-mode=append", f"--chdir={where}", "--output=%j.out", *options]
        code, out, _ = self.run_as(user, *argv, given="#!/bin/bash\n" + script)
        found = re.match(r"\d+", out)
        return found[0] if code == 0 and found else ""

    def channel_info(self) -> ChannelInfo | None:
        """Where the controller listens; None if it does not."""
        try:
            info = ChannelInfo.from_json(self.channel.read_bytes())
        except (OSError, ChannelError):
            return None
        return info if info.listens else None

    def agent(self, user: str) -> str:
        """How a script of ``user`` starts hadar-srun; empty if that user cannot run it."""
        own = python_of(user)
        if own is None:
            return ""
        names = {"HADAR_PYTHON": own[0], "PYTHONPATH": own[1], "HADAR_CHANNEL": str(self.channel),
                 "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}  # fmt: skip
        exports = "\n".join(f"export {k}={v}" for k, v in names.items())
        return f"{exports}\n{ROOT}/wrappers/hadar-srun --"

    @property
    def log(self) -> str:
        path = self.folder / "controller.log"
        return path.read_text(errors="replace") if path.exists() else ""


def _home(folder: Path, user: str) -> Path:
    """A user's own directory, which others may read, with a pipe where a graph file could be."""
    folder.mkdir()
    os.mkfifo(folder / "pipe.toml")
    for made in (folder, folder / "pipe.toml"):
        shutil.chown(made, user, user)
        made.chmod(0o755)
    return folder
