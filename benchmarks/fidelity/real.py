"""One trace on a private Slurm cluster, steered by ``hadar run``; and what came of each job."""

from __future__ import annotations

import getpass
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.fidelity.scene import Scene
from slurm_hadar.cluster import ClusterSpec, PrivateCluster, up
from slurm_hadar.cluster.daemon import controller_beside, hold_new_jobs
from slurm_hadar.config import load
from slurm_hadar.controller.journal import JobRecord, Journal
from slurm_hadar.controller.state_dir import JOURNAL
from slurm_hadar.errors import ClusterError
from slurm_hadar.simulator.traces.model import Trace, TraceJob
from slurm_hadar.throughput.store import ThroughputStore
from slurm_hadar.throughput.table import workload

__all__ = ["RealJob", "RealRun", "run_for_real"]

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.2

# One note per line: what, and when. The worker adds when it starts, and when its steps begin and at which step.
SCRIPT = """#!/bin/bash
#SBATCH --requeue
#SBATCH --open-mode=append
echo "script $(date +%s.%N) $SLURM_JOB_NODELIST" >> {notes}
hadar-srun -N1 -n1 -- {python} -m benchmarks.fidelity.worker --steps {steps} --workers {workers} --load {load} \\
    --notes {notes}
code=$?
echo "end $(date +%s.%N) $code" >> {notes}
exit $code
"""


@dataclass
class RealJob:
    """What happened to one job, in epoch seconds.

    ``scripts`` and ``workers`` are the starts of its batch script and of the program in it, ``steps`` the moments at
    which it began to make steps; ``ordered`` (when, what) the rounds that started, moved or stopped it.
    """

    trace: TraceJob
    job_id: str
    submit: float
    end: float | None = None
    moves: int = 0
    scripts: list[float] = field(default_factory=list)
    workers: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    ordered: list[tuple[float, str]] = field(default_factory=list)

    @property
    def jct_s(self) -> float:
        return (self.end or 0.0) - self.submit

    @property
    def started_by_slurm(self) -> bool:
        """Whether it was no round that started it first."""
        return not self.ordered or self.ordered[0][0] > self.scripts[0]

    @property
    def start_s(self) -> float:
        """What its first start cost: from the round that started it, or else from its script, to its first step."""
        return self.steps[0] - (self.scripts[0] if self.started_by_slurm else self.ordered[0][0])

    def move_costs(self) -> list[float]:
        """From the begin of each round that moved it to its next step."""
        ends = [*(when for when, _ in self.ordered[1:]), float("inf")]
        return [
            next(s for s in self.steps if s > when) - when
            for (when, what), end in zip(self.ordered, ends, strict=False)
            if what == "move" and any(when < s < end for s in self.steps)
        ]


@dataclass
class RealRun:
    """``zero`` is the trace's zero, a whole second, and ``first_round`` a round in the second after it. ``rounds`` are
    the controller's own records."""

    policy: str
    zero: float
    first_round: float
    jobs: list[RealJob]
    rounds: list[dict[str, Any]]

    @property
    def first_submit(self) -> float:
        return min(j.submit for j in self.jobs)

    @property
    def last_end(self) -> float:
        return max(j.end or 0.0 for j in self.jobs)

    def self_start_s(self) -> float:
        """From submission to the batch script, mean of the jobs that Slurm started before a round did."""
        taken = [j.scripts[0] - j.submit for j in self.jobs if j.started_by_slurm]
        return statistics.fmean(taken) if taken else 0.0

    def start_s(self) -> float:
        """What a first start costs, mean."""
        return statistics.fmean(j.start_s for j in self.jobs)

    def report_s(self) -> float:
        """From the batch script to the program in it, beside which the agent reports; mean of all starts."""
        return statistics.fmean(w - s for j in self.jobs for s, w in zip(j.scripts, j.workers, strict=False))

    def restart_s(self) -> float | None:
        """What a move costs, mean; None if no job was moved."""
        costs = [c for j in self.jobs for c in j.move_costs()]
        return statistics.fmean(costs) if costs else None


def run_for_real(scene: Scene, policy: str, config: Path, out: Path, longest_s: float) -> RealRun:
    """Run the scene's jobs on a fresh cluster; ``out`` keeps log and journal of the controller and the jobs' own notes.

    Raises ClusterError if a job fails, or if not all have ended after ``longest_s`` seconds.
    """
    state, work = out / "state", out / "work"
    for folder in (state, work):
        folder.mkdir(parents=True)
    _teach(state, scene.trace)
    with tempfile.TemporaryDirectory(prefix="hadar-fid-") as short:
        name = f"fidelity-{policy}-{os.getpid()}"
        rate, lease_s = scene.fastest_steps_per_s, scene.lease_s
        spec = ClusterSpec(scene.nodes, name, Path(short) / "c", fastest_steps_per_s=rate, plugins=lease_s > 0)
        with up(spec) as cluster, _controller(cluster, policy, config, state) as controller:
            if lease_s:
                hold_new_jobs(cluster.env, lease_s)
            first_round = controller.next_round(after_s=2.0)
            zero = math.floor(first_round)
            jobs = _play(cluster, controller, scene, zero, work, longest_s)
    _complete(jobs, state, work)
    return RealRun(policy, zero, first_round, jobs, controller.rounds())


def _teach(state: Path, trace: Trace) -> None:
    """The controller knows from the start how fast the jobs are, and that they can be moved, as the simulator does:
    such jobs have run here before."""
    journal = Journal(state / JOURNAL)
    store, user, now = ThroughputStore(journal.connection), getpass.getuser(), time.time()
    for job in {(j.model, j.batch, j.workers): j for j in trace.jobs}.values():
        for gpu_type, rate in job.steps_per_s.items():
            store.record(workload(job.model, job.batch), gpu_type, job.workers, rate, now, user=user)
    journal.save_jobs(
        JobRecord(f"{number}", arrival=now, ended=now, final="COMPLETED", user=user, model=model, resumable=True)
        for number, model in enumerate(sorted({j.model for j in trace.jobs}), 900_000_000)
    )
    journal.close()


@dataclass
class _Controller:
    process: subprocess.Popen[bytes]
    state: Path
    round_s: float
    began: float

    def rounds(self) -> list[dict[str, Any]]:
        """Those of the journal so far."""
        journal = Journal(self.state / JOURNAL)
        try:
            return journal.rounds_since(self.began)
        finally:
            journal.close()

    def next_round(self, after_s: float, deadline_s: float = 60.0) -> float:
        """When a round will begin, at least ``after_s`` from now; rounds of an idle cluster come at fixed times."""
        until = time.monotonic() + deadline_s
        while len(rounds := self.rounds()) < 2:
            self.check()
            if time.monotonic() > until:
                raise ClusterError(f"the controller made no two rounds within {deadline_s:g} s; see {self.state}")
            time.sleep(POLL_S)
        moment: float = rounds[-1]["time"]
        while moment < time.time() + after_s:
            moment += self.round_s
        return moment

    def check(self) -> None:
        if self.process.poll() is not None:
            raise ClusterError(f"the controller ended with {self.process.returncode}; see {self.state}")


@contextmanager
def _controller(cluster: PrivateCluster, policy: str, config: Path, state: Path) -> Iterator[_Controller]:
    began = time.time()
    options = ("--policy", policy, "--config", str(config))
    with controller_beside(_env(cluster), state, *options) as process:
        yield _Controller(process, state, load(config).controller.round_s, began)


def _play(
    cluster: PrivateCluster,
    controller: _Controller,
    scene: Scene,
    zero: float,
    work: Path,
    longest_s: float,
) -> list[RealJob]:
    """Submit each job at its time; return when all have noted their end."""
    waiting = list(scene.trace.jobs)
    jobs: list[RealJob] = []
    while waiting or any(not _ended(work, j) for j in jobs):
        controller.check()
        now_s = time.time() - zero
        if now_s > longest_s:
            late = [j.trace.job_id for j in jobs if not _ended(work, j)]
            raise ClusterError(f"not done after {longest_s:g} s: {', '.join(late)}; see {work}")
        while waiting and waiting[0].arrival_s <= time.time() - zero:
            jobs.append(_submit(cluster, waiting.pop(0), work, scene))
        ahead_s = waiting[0].arrival_s - (time.time() - zero) if waiting else POLL_S
        time.sleep(max(0.0, min(POLL_S, ahead_s)))
    return jobs


def _submit(cluster: PrivateCluster, job: TraceJob, work: Path, scene: Scene) -> RealJob:
    script = SCRIPT.format(
        notes=work / f"{job.job_id}.notes",
        python=sys.executable,
        steps=round(job.steps),
        workers=job.workers,
        load=scene.load_s,
    )
    comment = f"hadar:model={job.model},batch={job.batch},steps={round(job.steps)},nodes=1,restart={scene.restart_s:g}"
    command = ["sbatch", "--parsable", f"--job-name={job.job_id}", f"--gres=gpu:{job.workers}", f"-c{job.workers}",
               f"--comment={comment}", f"--chdir={work}", f"--output={work}/{job.job_id}.out"]  # fmt: skip
    submit = time.time()
    job_id = cluster.run(command, input=script, env=_env(cluster), cwd=work).stdout.strip()
    return RealJob(job, job_id, submit)


def _env(cluster: PrivateCluster) -> dict[str, str]:
    """What a shell on this cluster has: the package, this Python and ``hadar-srun``."""
    path = os.pathsep.join([str(ROOT / "wrappers"), str(Path(sys.executable).parent), cluster.env["PATH"]])
    python_path = os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p)
    return {**cluster.env, "PATH": path, "PYTHONPATH": python_path, "HADAR_PYTHON": sys.executable}


def _notes(work: Path, job: RealJob) -> list[list[str]]:
    path = work / f"{job.trace.job_id}.notes"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def _ended(work: Path, job: RealJob) -> bool:
    """Whether its script has come to its end; one that is requeued is killed before."""
    if job.end is None:
        for what, when, *rest in _notes(work, job):
            if what == "end" and rest == ["0"]:
                job.end = float(when)
            elif what == "end" and _failed(rest):
                raise ClusterError(f"job {job.trace.job_id} ended with {rest[0]}; see {work}/{job.trace.job_id}.out")
    return job.end is not None


def _failed(rest: list[str]) -> bool:
    """A signal's exit code is that of a run which was requeued."""
    return int(rest[0]) < 128


def _complete(jobs: list[RealJob], state: Path, work: Path) -> None:
    """Add what notes and journal know."""
    journal = Journal(state / JOURNAL)
    by_id = {j.job_id: j for j in jobs}
    for job in jobs:
        notes = _notes(work, job)
        job.scripts = [float(n[1]) for n in notes if n[0] == "script"]
        job.workers = [float(n[1]) for n in notes if n[0] == "worker"]
        job.steps = [float(n[1]) for n in notes if n[0] == "steps"]
        known = journal.job(job.job_id)
        job.moves = known.moves if known else 0
    for decision in journal.decisions_since(0.0):
        if decision["kind"] in ("start", "move", "preempt") and decision["job_id"] in by_id:
            by_id[decision["job_id"]].ordered.append((decision["time"], decision["kind"]))
    journal.close()
