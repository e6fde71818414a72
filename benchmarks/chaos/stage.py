"""Where an episode is played: a private cluster, small disks, a controller that is started again when it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.campaigns.daemon import SHIM, Daemon
from benchmarks.chaos.post import Proxy
from slurm_hadar.cluster import ClusterSpec, PrivateCluster, up
from slurm_hadar.slurm.backend.cli import CliBackend

__all__ = ["NODES", "Stage"]

NODES = "v100:2x2,k80:2x2"
ROOT = Path(__file__).resolve().parents[2]
FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
DISK_BYTES = 48 << 20
SETTINGS = (
    "controller.mode=act", "controller.round_s=3", "controller.event_round_s=1", "guard.min_run_s=10",
    "guard.max_moves_per_job=6", "jobs.start_timeout_s=5", "jobs.ack_timeout_s=5", "jobs.end_timeout_s=12",
    "jobs.restart_cost_s=3", "slurm.timeout_s=6", "slurm.retries=0", "slurm.backend=cli", "predict.retrain_s=0",
)  # fmt: skip
# libfaketime makes Python's own sleep fail, so in Python the clock is replaced from within, by a sitecustomize.py that
# only the controller of an episode has.
CLOCK = """
import time
_real = time.time
def _ahead():
    try:
        with open({file!r}) as file:
            return float(file.read())
    except (OSError, ValueError):
        return 0.0
time.time = lambda: _real() + _ahead()
time.time_ns = lambda: int(time.time() * 1e9)
"""
# A third party's policy that gives each job another place every few seconds: all the writes there are, all the time.
SHUFFLE = """
import random
from slurm_hadar.model import Placement, Plan, Tier, Wait
from slurm_hadar.policies.base import Policy

class Shuffle(Policy):
    name = "shuffle"
    def allocate(self, snapshot):
        rng = random.Random(int(snapshot.time) // 20)
        free, placed = snapshot.capacity(), {}
        jobs = sorted(snapshot.steerable_jobs, key=lambda j: j.job_id)
        for job in (j for j in jobs if j.running and not j.movable):
            placed[job.job_id] = job.placement
            for node, gpu, n in job.placement.items():
                free[node][gpu] = free.get(node, {}).get(gpu, 0) - n
        for job in rng.sample(jobs, len(jobs)):
            rooms = [(n, t) for n, types in sorted(free.items()) for t, c in types.items()
                     if c >= job.form.workers and job.form.admits_node(n) and job.form.admits_type(t)]
            if job.job_id not in placed and rooms and rng.random() < 0.9:
                node, gpu = rng.choice(rooms)
                free[node][gpu] -= job.form.workers
                placed[job.job_id] = Placement.of({node: {gpu: job.form.workers}})
        waits = {j.job_id: Wait(Tier.POLICY, "shuffled away") for j in jobs if j.job_id not in placed}
        return Plan(self.name, placed, waits)
"""


class Stage:
    """One cluster with all that an episode needs. A context manager: everything is gone afterwards."""

    def __init__(self, folder: Path, policy: str, nodes: str = NODES, settings: tuple[str, ...] = ()) -> None:
        self.folder, self.policy = folder, policy
        self.state, self.work, self.out = folder / "state", folder / "work", folder / "out"
        self.shims, self.sent, self.site, self.clock = (folder / n for n in ("shims", "sent", "site", "clock"))
        for made in (self.state, self.work, self.out, self.shims, self.sent, self.site, self.clock):
            made.mkdir()
        self.real_disks = _mount(self.state) and _mount(self.work)
        self.faketime = self.clock / "ahead" if FAKETIME.exists() else None
        extra = ("SlurmdTimeout=10", "MessageTimeout=5")
        self.cluster: PrivateCluster = up(
            ClusterSpec(name="chaos", nodes=nodes, directory=folder / "c", extra_conf=extra, kill_wait_s=2)
        )
        self.backend = CliBackend(5.0, 0, self.cluster.env)
        self.real_channel = self.state.parent / "channel.json"
        self.proxy = Proxy(self.real_channel, self.cluster.conf.with_name("hadar-channel.json"))
        self._write_shims()
        self._write_plugin()
        self.daemon = self._daemon(settings)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *exc: object) -> None:
        with contextlib.suppress(Exception):
            self.daemon.stop()
        self.proxy.close()
        try:
            self.cluster.down()
        finally:
            for disk in (self.state, self.work):
                if os.path.ismount(disk):
                    subprocess.run(["umount", "-l", str(disk)], check=False)

    # Controller

    def environment(self) -> dict[str, str]:
        """A user's shell on the cluster, with our Python and hadar-srun."""
        path = os.pathsep.join([str(ROOT / "wrappers"), str(Path(sys.executable).parent), self.cluster.env["PATH"]])
        clean = {k: v for k, v in self.cluster.env.items() if not k.startswith("HADAR")}
        python = os.pathsep.join([str(ROOT), str(self.site)])
        return {**clean, "PATH": path, "HADAR_PYTHON": sys.executable, "PYTHONPATH": python, "OMP_NUM_THREADS": "1"}

    def controller_command(self, *options: str, state: Path | None = None) -> list[str]:
        chosen = (
            f"controller.state_dir={state or self.state}",
            f"channel.file={self.real_channel}",
            f"policy.name={self.policy}",
        )
        sets = [word for s in (*SETTINGS, *self._settings, *chosen) for word in ("--set", s)]
        return [sys.executable, "-m", "slurm_hadar.cli.main", "run", *options, *sets]

    def controller_environment(self) -> dict[str, str]:
        env = self.environment()
        env["PATH"] = os.pathsep.join([str(self.shims), env["PATH"]])
        if self.faketime is not None:
            self.faketime.write_text("+0\n")
            (self.clock / "sitecustomize.py").write_text(CLOCK.format(file=str(self.faketime)))
            env["PYTHONPATH"] = os.pathsep.join([str(self.clock), env["PYTHONPATH"]])
        return env

    def _daemon(self, settings: tuple[str, ...]) -> Daemon:
        self._settings = settings
        return Daemon(self.controller_command(), self.controller_environment(), self.folder / "controller.log")

    def _write_shims(self) -> None:
        for name in ("scontrol", "scancel"):
            real = self.cluster.install.programs.get(name) or shutil.which(name)
            clock = f"export LD_PRELOAD={FAKETIME} FAKETIME_TIMESTAMP_FILE={self.faketime} FAKETIME_NO_CACHE=1"
            text = SHIM.format(name=name, real=real, folder=self.sent, clock=clock if self.faketime else "")
            (self.shims / name).write_text(text)
            (self.shims / name).chmod(0o755)

    def _write_plugin(self) -> None:
        meta = self.site / "shuffle-1.0.dist-info"
        meta.mkdir()
        (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: shuffle\nVersion: 1.0\n")
        (meta / "entry_points.txt").write_text("[slurm_hadar.policies]\nshuffle = chaos_shuffle:Shuffle\n")
        (self.site / "chaos_shuffle.py").write_text(SHUFFLE)

    @property
    def log(self) -> str:
        path = self.folder / "controller.log"
        return path.read_text(errors="replace") if path.exists() else ""


def _mount(folder: Path) -> bool:
    """Make the folder a small disk of its own, where this may be done; else it stays on the large one."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=755", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
