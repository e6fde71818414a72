"""The controller killed without warning in the middle of its work: no job is lost, held or forgotten."""

from __future__ import annotations

import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.cluster import PrivateCluster
from slurm_hadar.model import JobState

pytestmark = pytest.mark.slurm
POINTS, SEED = 12, 7
LONGEST_DELAY_S = 125  # Slurm itself defers a requeued job by 121 s; our leases here are shorter
# A policy of a third party's, as one would install it: each second another random plan, so that each round starts,
# moves and stops jobs.
PLUGIN = """
import random
from slurm_hadar.model import Placement, Plan, Tier, Wait
from slurm_hadar.policies.base import Policy

class Shuffle(Policy):
    name = "shuffle"
    def allocate(self, snapshot):
        rng = random.Random(int(snapshot.time))
        free, placed = snapshot.capacity(), {}
        jobs = sorted(snapshot.steerable_jobs, key=lambda j: j.job_id)
        for job in rng.sample(jobs, len(jobs)):
            rooms = [(n, t) for n, types in sorted(free.items()) for t, c in types.items() if c >= job.form.workers]
            if rooms and rng.random() < 0.9:
                node, gpu = rng.choice(rooms)
                free[node][gpu] -= job.form.workers
                placed[job.job_id] = Placement.of({node: {gpu: job.form.workers}})
        waits = {j.job_id: Wait(Tier.POLICY, "shuffled away") for j in jobs if j.job_id not in placed}
        return Plan(self.name, placed, waits)
"""
# Stands before each of Slurm's commands and kills the controller at its Nth call: before it, in the middle of a batch
# of writes, or after it.
SHIM = """#!/bin/bash
n=$(($(cat {folder}/count) + 1)); echo $n > {folder}/count
read at how < {folder}/point
if [ "$n" != "$at" ]; then exec {real} "$@"; fi
touch {folder}/struck
case $how in
    before) ;;
    middle) if [ $# = 0 ]; then cat > {folder}/batch; l=$(wc -l < {folder}/batch)
            head -n $(((l + 1) / 2)) {folder}/batch | {real} > /dev/null 2>&1; fi ;;
    after) {real} "$@" > /dev/null 2>&1 ;;
esac
kill -9 $PPID
"""


@pytest.fixture
def plugin(short_tmp: Path) -> str:
    """A folder with the policy plug-in installed in it, for PYTHONPATH."""
    folder = short_tmp / "site"
    (folder / "shuffle-1.0.dist-info").mkdir(parents=True)
    (folder / "shuffle-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: shuffle\nVersion: 1.0\n")
    entry = "[slurm_hadar.policies]\nshuffle = shuffle_policy:Shuffle\n"
    (folder / "shuffle-1.0.dist-info" / "entry_points.txt").write_text(entry)
    (folder / "shuffle_policy.py").write_text(PLUGIN)
    return str(folder)


@pytest.fixture
def trap(short_tmp: Path, live: Any) -> Callable[[str], Path]:
    """Arm the shims: ``trap("5 before")``; returns the file that appears when the controller was killed."""
    folder = short_tmp / "shims"
    folder.mkdir()
    for name in ("squeue", "sinfo", "scontrol"):
        real = live.cluster.install.program(name)
        (folder / name).write_text(SHIM.format(folder=folder, real=real))
        (folder / name).chmod(0o755)

    def arm(point: str) -> Path:
        (folder / "point").write_text(point + "\n")
        (folder / "count").write_text("0\n")
        (folder / "struck").unlink(missing_ok=True)
        return folder / "struck"

    arm("0 never")
    return arm


def points(rng: random.Random) -> list[str]:
    """Where to kill: the first call of a controller asks for the cluster's name, a round begins with the second."""
    return [f"{rng.randint(2, 20)} {rng.choice(['before', 'middle', 'after'])}" for _ in range(POINTS)]


def test_killed_anywhere_in_a_round(
    live: Any, plugin: str, trap: Callable[[str], Path], short_tmp: Path, poll: Any
) -> None:
    """Killed at twelve points between two of its commands or within one; each time all jobs are there and none is
    held, and the next controller goes on. At the end all of them complete."""
    jobs = [live.submit(f"--gres=gpu:{1 + i % 2}") for i in range(8)]
    struck = []
    for point in points(random.Random(SEED)):
        flag = trap(point)
        process = live.daemon(
            "--policy",
            "shuffle",
            "--mode",
            "act",
            "--round",
            "1",
            PYTHONPATH=_path(plugin),
            PATH=f"{short_tmp}/shims:{live.cluster.env['PATH']}",
        )
        poll(lambda p=process: p.poll() is not None, 120)
        struck.append((process.returncode, flag.exists()))
        _check_unharmed(live, jobs)
    assert struck == [(-signal.SIGKILL, True)] * POINTS, (live.work / "controller.log").read_text()[-2000:]

    trap("0 never")
    assert sum(j.restarts for j in _ours(live, jobs)) > POINTS // 2  # it was killed while it moved jobs, not in peace
    process = live.daemon("--policy", "fifo", "--mode", "act", "--round", "1")
    poll(lambda: all(j.state is JobState.RUNNING for j in _ours(live, jobs)), 150)
    poll(lambda: "(act, fifo)" in (live.work / "controller.log").read_text(), 60)
    live.finish()
    poll(lambda: all(j.state is JobState.DONE for j in _ours(live, jobs)), 60)
    process.terminate()
    assert process.wait(300) == 0
    assert "Traceback" not in (live.work / "controller.log").read_text()


def _path(plugin: str) -> str:
    root = Path(__file__).resolve().parents[3]
    return f"{plugin}:{root}"


def _ours(live: Any, jobs: list[str]) -> list[Any]:
    return [j for j in live.backend.read_jobs() if j.job_id in jobs]


def _check_unharmed(live: Any, jobs: list[str]) -> None:
    """All in the queue, none held, none deferred for longer than a lease or than Slurm defers requeued jobs."""
    found = _ours(live, jobs)
    assert {j.job_id for j in found} == set(jobs) and all(j.state.active for j in found), found
    for job in found:
        if job.state is JobState.PENDING:
            assert not job.held and (job.eligible or 0) - time.time() < LONGEST_DELAY_S, job


@pytest.mark.thorough
def test_killed_and_never_started_again(
    make_cluster: Callable[..., PrivateCluster], make_live: Any, plugin: str, poll: Any
) -> None:
    """After a kill in the midst of it all and no new controller, all waiting jobs start by themselves: where GPUs are
    free, or, if one was placed just then and another job was quicker, when its node has some (docs/faults.md)."""
    live = make_live(make_cluster("v100:1x4,k80:1x4"))
    jobs = [live.submit("--gres=gpu:1") for _ in range(8)]
    daemon = live.daemon("--policy", "shuffle", "--mode", "act", "--round", "1", PYTHONPATH=_path(plugin))
    log = live.work / "controller.log"
    poll(lambda: len(re.findall(r"round \d+ \(act", log.read_text())) >= 2, 60)
    daemon.kill()
    daemon.wait()

    assert len(_ours(live, jobs)) == 8
    poll(lambda: all(j.state is JobState.RUNNING or _waits_for_its_node(live, j) for j in _ours(live, jobs)), 200)

    live.finish()
    poll(lambda: all(j.state is JobState.DONE for j in _ours(live, jobs)), 60)


def _waits_for_its_node(live: Any, job: Any) -> bool:
    """Whether the job may start at once, on nodes of which all GPUs are in use."""
    full = {n.name for n in live.cluster.node_states() if n.gpus_used == n.gpus}
    may_start = job.state is JobState.PENDING and not job.held and (job.eligible or 0) <= time.time()
    return may_start and bool(job.req_nodes) and full.issuperset(job.req_nodes)
