"""A mix of forked jobs on a private Slurm cluster of five unequal nodes under ``hadar run``; and what was seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.hadare.families import DATA, FAMILIES, prepare
from slurm_hadar.cluster import ClusterSpec, PrivateCluster, up
from slurm_hadar.cluster.daemon import controller_beside, hold_new_jobs
from slurm_hadar.errors import ClusterError
from slurm_hadar.model import JobState
from slurm_hadar.slurm.backend.cli import CliBackend

__all__ = ["COPIES", "MIXES", "NODES", "MixJob", "MixRun", "Stint", "jobs_of", "run_mix"]

ROOT = Path(__file__).resolve().parents[2]
NODES = "v100:2x1,p100:2x2,k80:1x1"
COPIES = 5
FASTEST_STEPS_PER_S = 10.0
MIXES = (1, 3, 4, 5, 8, 10, 12)
#: Seconds that each job would take alone on its best GPU; a mix takes the first n. One is long, as in every queue.
SIZES_S = (160, 32, 48, 24, 64, 28, 42, 20, 38, 50, 24, 32)
EQUAL_S = 60
SETTINGS = (
    "controller.event_round_s=1.5",
    "guard.min_run_s=12",
    "jobs.restart_cost_s=5",
    "jobs.ack_timeout_s=15",
    "jobs.start_timeout_s=4",
)
ROUND_S = 6.0
LEASE_S = 10
SAMPLE_S = 0.4
LONGEST_S = 900.0
SCRIPT = """#!/bin/bash
#SBATCH --requeue
#SBATCH --open-mode=append
export OMP_NUM_THREADS=1
hadar-srun -N1 -n1 -- {python} -m benchmarks.hadare.train {family} --steps {steps} --seed {seed} --out {out}
"""


@dataclass(frozen=True)
class MixJob:
    """One forked job of a mix."""

    name: str
    family: str
    steps: int
    seed: int


@dataclass
class Stint:
    """One copy on one node, in seconds from the first submission."""

    job: str
    copy: int
    node: str
    start_s: float
    end_s: float


@dataclass
class MixRun:
    """What became of a mix under a policy. ``busy_s`` are node-seconds with a copy until the last job was done."""

    policy: str
    jobs: int
    sizes: str
    ttd_s: float = 0.0
    busy_s: float = 0.0
    early_busy: float = 0.0
    nodes: int = 0
    jct_s: dict[str, float] = field(default_factory=dict)
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    stints: list[Stint] = field(default_factory=list)
    lost_shares: list[float] = field(default_factory=list)

    @property
    def cru(self) -> float:
        return self.busy_s / (self.nodes * self.ttd_s)


def jobs_of(count: int, sizes: str, seed: int) -> list[MixJob]:
    """The first ``count`` jobs, families in turn; ``sizes`` is ``long-tailed`` or ``equal``."""
    names = list(FAMILIES)
    seconds = SIZES_S if sizes == "long-tailed" else (EQUAL_S,) * len(SIZES_S)
    return [
        MixJob(f"{names[i % 4]}-{i}", names[i % 4], int(seconds[i] * FASTEST_STEPS_PER_S), seed * 100 + i)
        for i in range(count)
    ]


def run_mix(policy: str, jobs: list[MixJob], sizes: str, out: Path, say: Callable[[str], None]) -> MixRun:
    """Run the mix on a fresh cluster, which is taken down whatever happens."""
    out.mkdir(parents=True, exist_ok=True)
    prepare(out)
    with tempfile.TemporaryDirectory(prefix="hadare-") as folder:
        spec = ClusterSpec(
            name=f"hadare-{policy}-{os.getpid()}",
            nodes=NODES,
            directory=Path(folder) / "c",
            fastest_steps_per_s=FASTEST_STEPS_PER_S,
            plugins=True,
        )
        settings = (*SETTINGS, f"policy.name={policy}")
        with (
            up(spec) as cluster,
            controller_beside(cluster.env, out, "--round", str(ROUND_S), settings=settings) as process,
        ):
            hold_new_jobs(cluster.env, LEASE_S)
            return _Watch(cluster, MixRun(policy, len(jobs), sizes, nodes=len(cluster.nodes)), out).run(
                jobs, lambda: process.poll() is None, say
            )


class _Watch:
    """Submits the jobs, and samples Slurm until all are done."""

    def __init__(self, cluster: PrivateCluster, run: MixRun, out: Path) -> None:
        self._cluster, self._run, self._out = cluster, run, out
        self._backend = CliBackend(env=cluster.env)
        self._names: dict[str, str] = {}
        self._open: dict[tuple[str, int, str], Stint] = {}

    def run(self, jobs: list[MixJob], alive: Callable[[], bool], say: Callable[[str], None]) -> MixRun:
        began = time.time()
        for job in jobs:
            self._names[self._submit(job)] = job.name
        while len(self._run.jct_s) < len(jobs):
            now_s = time.time() - began
            if not alive() or now_s > LONGEST_S:
                raise ClusterError(f"{self._run.policy}: not all jobs were done after {now_s:.0f} s; see {self._out}")
            self._sample(began)
            time.sleep(SAMPLE_S)
        run = self._run
        run.ttd_s = max(run.jct_s.values())
        self._sample(began)
        self._tally(jobs)
        say(f"{run.policy}: {run.jobs} jobs, TTD {run.ttd_s:.1f} s, CRU {run.cru:.0%}")
        return run

    def _submit(self, job: MixJob) -> str:
        kind = FAMILIES[job.family]
        script = self._out / f"{job.name}.sh"
        script.write_text(
            SCRIPT.format(python=sys.executable, family=job.family, steps=job.steps, seed=job.seed,
                          out=self._out / f"{job.name}.json")
        )  # fmt: skip
        bin_dir = Path(sys.executable).parent
        env = {
            **self._cluster.env,
            "PATH": f"{bin_dir}:{self._cluster.env['PATH']}",
            "PYTHONPATH": str(ROOT),
            DATA: str(self._out),
        }
        comment = f"hadar:fork=auto,model={kind.model},batch={kind.batch},steps={job.steps}"
        command = [
            "sbatch", "--parsable", f"--array=0-{COPIES - 1}", f"--job-name={job.name}", "--gres=gpu:1",
            f"--comment={comment}", f"--output={self._out}/{job.name}-%a.out", f"--chdir={self._out}", str(script),
        ]  # fmt: skip
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, cwd=self._out)
        if done.returncode != 0:
            raise ClusterError(f"sbatch refused {job.name}: {done.stderr.strip()}")
        return done.stdout.strip().split(";")[0]

    def _sample(self, began: float) -> None:
        """Who runs where; a job is done when its result is there and none of its copies is left at work."""
        now_s = time.time() - began
        seen: set[tuple[str, int, str]] = set()
        working: set[str] = set()
        for job in self._backend.read_jobs():
            name = self._names.get(job.array_id or "")
            if name is None or job.state not in (JobState.RUNNING, JobState.COMPLETING):
                continue
            working.add(name)
            key = (name, int(job.job_id.rpartition("_")[2]), job.nodes[0])
            seen.add(key)
            self._open.setdefault(key, Stint(*key, now_s, now_s)).end_s = now_s
        for key in [k for k in self._open if k not in seen]:
            self._run.stints.append(self._open.pop(key))
        for name in self._names.values():
            if name not in self._run.jct_s and name not in working and (self._out / f"{name}.json").exists():
                self._run.jct_s[name] = now_s

    def _tally(self, jobs: list[MixJob]) -> None:
        run = self._run
        run.stints += self._open.values()
        for job in jobs:
            run.results[job.name] = json.loads((self._out / f"{job.name}.json").read_text())
        run.lost_shares = _lost_shares(self._out)
        busy = {node: _covered([s for s in run.stints if s.node == node], run.ttd_s) for node in self._nodes}
        run.busy_s = sum(busy.values())
        until_s = 0.9 * run.ttd_s
        run.early_busy = sum(_covered([s for s in run.stints if s.node == node], until_s) for node in self._nodes) / (
            len(self._nodes) * until_s
        )

    @property
    def _nodes(self) -> list[str]:
        return [n.name for n in self._cluster.nodes]


def _covered(stints: list[Stint], until_s: float) -> float:
    """Seconds until ``until_s`` in which there was at least one of ``stints``."""
    covered, reached = 0.0, 0.0
    for stint in sorted(stints, key=lambda s: s.start_s):
        start, end = max(stint.start_s, reached), min(stint.end_s, until_s)
        if end > start:
            covered += end - start
        reached = max(reached, end)
    return covered


def _lost_shares(out: Path) -> list[float]:
    """What the copies themselves say that consolidations have cost them, as a share of their time."""
    shares = []
    for path in out.glob("*-[0-9].out"):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("hadar: copy ") and "consolidations cost it" in line:
                shares.append(float(line.partition("cost it ")[2].partition("%")[0]) / 100)
    return shares
