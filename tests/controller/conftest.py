"""A controller over a Slurm in memory (``bench``), and one over a real private Slurm (``live``)."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.cluster import PrivateCluster, emulation
from slurm_hadar.comment import read
from slurm_hadar.config import Config, load
from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.controller.agents.reports import JobNews, ReportBook
from slurm_hadar.controller.journal import Journal
from slurm_hadar.controller.loop import Controller
from slurm_hadar.controller.parts import Parts
from slurm_hadar.controller.setup import steer
from slurm_hadar.model import Placement, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies import registry
from slurm_hadar.policies.base import Policy
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.testing.fake_slurm import FakeSlurm

ROOT = Path(__file__).resolve().parents[2]
FAST = ("controller.mode=act", "controller.round_s=2", "guard.min_run_s=0", "jobs.start_timeout_s=3",
        "jobs.ack_timeout_s=1", "jobs.end_timeout_s=3", "jobs.restart_cost_s=1")  # fmt: skip
# a job that is to be stopped may have begun this very second
LIVE = ("controller.mode=act", "controller.round_s=30", "controller.event_round_s=0", "guard.min_run_s=0",
        "guard.max_stretch=0", "jobs.start_timeout_s=60", "jobs.ack_timeout_s=30", "jobs.end_timeout_s=60",
        "jobs.restart_cost_s=1", "slurm.timeout_s=20", "slurm.retries=0", "slurm.backend=cli",
        "predict.retrain_s=0")  # fmt: skip
SAVES = "hadar:model=resnet18,batch=64,steps=20000,ckpt=yes"
# Runs until the test says so; a requeue ends it, and it starts over.
SLEEPER = 'echo "run ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST"\nuntil [ -e go ]; do sleep 0.2; done\n'


class Bench:
    """A cluster in memory, its controller, and what they share."""

    def __init__(self, nodes: dict[str, tuple[str, int]], settings: tuple[str, ...], journal: Journal) -> None:
        self.slurm = FakeSlurm(nodes)
        self.settings = settings
        self.journal = journal
        self.book = ReportBook()
        self.controller = self.new_controller()

    def config(self, *settings: str) -> Config:
        return load(None, [*FAST, *self.settings, *settings])

    def new_controller(
        self, *settings: str, policy: Any = None, channel: Any = None, once: bool = False
    ) -> Controller[Any]:
        """Another controller on the same cluster and memory, as after a restart."""
        config = self.config(*settings)
        chosen = policy or registry.get(config.policy.name, **config.policy.params)
        return steer(chosen, config, Parts(self.slurm, self.journal, self.book, channel, once=once))


@pytest.fixture
def bench() -> Callable[..., Bench]:
    """Make a Bench: ``bench({"v100-1": ("v100", 2)}, "section.key=value")``."""

    def make(nodes: dict[str, tuple[str, int]] | None = None, *settings: str) -> Bench:
        return Bench(nodes or {"v100-1": ("v100", 2), "k80-1": ("k80", 2)}, settings, Journal(":memory:"))

    return make


class Told(Policy):
    """Places jobs where ``where`` says, keeps those that must stay, and lets everything else wait."""

    name = "told"

    def __init__(self) -> None:
        self.where: dict[str, Placement] = {}

    def allocate(self, snapshot: Snapshot) -> Plan:
        placed = {j.job_id: self.where.get(j.job_id) for j in snapshot.steerable_jobs}
        placed |= {j.job_id: j.placement for j in snapshot.steerable_jobs if not j.movable}
        waits = {j: Wait(Tier.POLICY, "told to wait") for j, p in placed.items() if not p}
        return Plan(self.name, {j: p for j, p in placed.items() if p}, waits)


class Live:
    """Jobs and controllers on a real cluster. ``told`` is the policy of :meth:`controller`."""

    def __init__(self, cluster: PrivateCluster, folder: Path) -> None:
        self.cluster = cluster
        self.work, self.state = folder / "work", folder / "state"
        for made in (self.work, self.state):
            made.mkdir()
        self.work.chmod(0o777)
        self.backend = CliBackend(env=cluster.env)
        self.journal = Journal(self.state / "journal.db")
        self.book = ReportBook()
        self.told = Told()
        self._channels: list[Channel] = []
        self._processes: list[subprocess.Popen[str]] = []
        self._speeds = cluster.conf.with_name(emulation.FILE)
        self._speeds_before = self._speeds.read_text()

    # Jobs

    def news(self, job: str) -> JobNews | None:
        """What the job has said, if its comment vouches for it by now: what a round would know."""
        self.book.expect({j.job_id: read(j.comment)[0].key for j in self.backend.read_jobs()})
        return self.book.get(job)

    def submit(self, *options: str, comment: str = SAVES, script: str = SLEEPER, **run: Any) -> str:
        """sbatch; returns the job's id. Requeueable, output in ``work/ID.out``."""
        common = ["--parsable", "--requeue", "--open-mode=append", f"--chdir={self.work}", "--output=%j.out"]
        argv = ["sbatch", *common, *([f"--comment={comment}"] if comment else []), *options]
        run.setdefault("cwd", self.work)
        return self.cluster.run(argv, input="#!/bin/bash\n" + script, **run).stdout.strip()

    def pace(self, **steps_per_s: float) -> None:
        """Trainings that start from now on are slowed to these rates, by GPU type."""
        content = {**json.loads(self._speeds_before), "speeds": {}, "fastest_steps_per_s": 1.0, "default": steps_per_s}
        self._speeds.write_text(json.dumps(content))

    def hurry(self) -> None:
        """Trainings that start from now on are not slowed down: what is left of them is of no interest."""
        self.pace(**{gpu: 1e5 for node in self.cluster.nodes for gpu in node.gpus})

    def finish(self) -> None:
        """Let all sleepers come to their end."""
        (self.work / "go").touch()

    def show(self, job: str) -> str:
        """What scontrol shows of the job, word for word; the time it has run, which changes by itself, left out."""
        text = self.cluster.run(["scontrol", "-d", "show", "job", job]).stdout
        return re.sub(r"RunTime=\S+|(LastSchedEval|Scheduler)=\S+", "", text)

    def field(self, job: str, name: str) -> str:
        """The first value of one field that scontrol shows."""
        found = re.search(rf"\b{name}=(\S*)", self.show(job))
        return found[1] if found else ""

    def as_submitted(self, job: str) -> str:
        """:meth:`show` without what Slurm's own scheduler writes while a job waits: its reason, and when it thinks the
        job will start."""
        return re.sub(r"(Reason|StartTime|EndTime|SchedNodeList|AccrueTime)=\S+", "", self.show(job))

    def state_of(self, job: str) -> str:
        return self.field(job, "JobState")

    def gpus(self, job: str) -> dict[str, tuple[str, frozenset[int]]]:
        """{node: (type, indices)} of the GPUs that Slurm has given the job."""
        found = {}
        for nodes, gpu, indices in re.findall(
            r" Nodes=(\S+) CPU_IDs=\S+ Mem=\d+ GRES=gpu:(\w+):\d+\(IDX:([^)]*)\)", self.show(job)
        ):
            for node in self.cluster.run(["scontrol", "show", "hostnames", nodes]).stdout.split():
                found[node] = (gpu, _numbers(indices))
        return found

    def holds(self, job: str, placement: dict[str, int]) -> bool:
        """Whether the job has exactly these numbers of GPUs on exactly these nodes, of each node's own type."""
        held = self.gpus(job)
        return {n: len(i) for n, (_, i) in held.items()} == placement and all(
            n.startswith(t) for n, (t, _) in held.items()
        )

    def lose_node(self, node: str, whole: bool = True, how: signal.Signals = signal.SIGKILL) -> None:
        """A node dies, or freezes (SIGSTOP): its slurmd and slurmstepds, and (``whole``) all that jobs have started
        there; else these live on, as on a node that Slurm does not reach any more. Slurm is not told of it."""
        log = str(self.cluster.directory / "log" / f"slurmd-{node}.log")
        self.cluster.stop_slurmd(node)
        for pid in (int(p.name) for p in Path("/proc").iterdir() if p.name.isdecimal()):
            with contextlib.suppress(OSError):
                names = Path(f"/proc/{pid}/environ").read_text(errors="replace").split("\0")
                job = {f"SLURM_CONF={self.cluster.conf}", f"SLURMD_NODENAME={node}"} <= set(names)
                if (whole and job) or log in {str(file.readlink()) for file in Path(f"/proc/{pid}/fd").iterdir()}:
                    os.kill(pid, how)

    def tell_of_loss(self, node: str) -> None:
        """Slurm need not find it out."""
        self.cluster.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=died"])

    def start_again(self, job: str) -> bool:
        """Whether a job that Slurm has requeued runs once more; it need not wait for that as long as Slurm would. Only
        not at once: a node that ends a job revokes its credential, and in the same second the next run's too."""
        if self.state_of(job) == "PENDING":
            begin = datetime.fromisoformat(self.field(job, "EligibleTime"))
            if begin > datetime.now() + timedelta(seconds=5):
                self.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now+3"], check=False)
        return self.state_of(job) == "RUNNING" and self.field(job, "Restarts") != "0"

    # Controllers

    def config(self, *settings: str) -> Config:
        return load(None, [*LIVE, f"controller.state_dir={self.state}", *settings])

    def place(self, **where: dict[str, int]) -> None:
        """Tell the policy: ``place(j7={"v100-1": 2})``. What was told before is forgotten."""
        types = {n.name: next(iter(n.gpus)) for n in self.cluster.nodes}
        self.told.where = {
            job.removeprefix("j"): Placement.of({n: {types[n]: count} for n, count in counts.items()})
            for job, counts in where.items()
        }

    def controller(
        self, *settings: str, policy: Policy | None = None, channel: bool = False, backend: CliBackend | None = None
    ) -> Controller[Any]:
        """A controller in this process, with the memory of the one before."""
        config, listening = self.config(*settings), None
        if channel:
            file = self.cluster.conf.with_name("hadar-channel.json")
            listening = Channel(self.book, self.state, "tcp://127.0.0.1:*", "127.0.0.1", file, 65536)
            self._channels.append(listening)
        return steer(policy or self.told, config, Parts(backend or self.backend, self.journal, self.book, listening))

    def hadar(self, *arguments: str, settings: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
        """The command line, as a user would type it."""
        argv = self.argv(arguments, settings)
        return subprocess.run(
            argv, env=self.environment(env), capture_output=True, text=True, timeout=120, check=False, cwd=self.work
        )

    def daemon(self, *arguments: str, settings: tuple[str, ...] = (), **env: str) -> subprocess.Popen[str]:
        """``hadar run`` in the background; its log goes to ``work/controller.log``."""
        with (self.work / "controller.log").open("a") as log:
            process = subprocess.Popen(
                self.argv(("run", *arguments), settings),
                env=self.environment(env),
                stdout=log,
                stderr=log,
                text=True,
                cwd=self.work,
            )
        self._processes.append(process)
        return process

    def argv(self, arguments: tuple[str, ...], settings: tuple[str, ...]) -> list[str]:
        every = (*LIVE, f"controller.state_dir={self.state}", *settings)
        options = [a for s in every for a in ("--set", s)]
        words = 2 if arguments[0] == "config" else 1  # the test's own options come later and prevail
        return [sys.executable, "-m", "slurm_hadar.cli.main", *arguments[:words], *options, *arguments[words:]]

    def environment(self, more: dict[str, str]) -> dict[str, str]:
        path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
        return {**self.cluster.env, "PYTHONPATH": path, **more}

    def close(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for channel in self._channels:
            channel.close()
        # also what a controller that was killed has left: later tests' jobs on the cluster would report to nobody
        self.cluster.conf.with_name("hadar-channel.json").unlink(missing_ok=True)
        if self._speeds.exists():  # else the cluster is down already
            self._speeds.write_text(self._speeds_before)
        self.journal.close()


def _numbers(text: str) -> frozenset[int]:
    """The numbers of an index list such as ``0-1,3``."""
    ranges = (part.partition("-") for part in text.split(","))
    return frozenset(n for low, _, high in ranges for n in range(int(low), int(high or low) + 1))


@pytest.fixture
def make_live(short_tmp: Path) -> Iterator[Callable[[PrivateCluster], Live]]:
    """Jobs and controllers on a cluster of the test's own choice."""
    made: list[Live] = []

    def make(cluster: PrivateCluster) -> Live:
        folder = short_tmp / f"live{len(made)}"
        folder.mkdir()
        made.append(Live(cluster, folder))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def live(make_live: Callable[[PrivateCluster], Live], slurm_cluster: PrivateCluster) -> Live:
    """Jobs and controllers on the shared cluster."""
    return make_live(slurm_cluster)
