"""Forked jobs on a real Slurm under a real controller, and what may happen to them in the middle of a period."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.model import JobState
from slurm_hadar.runtime.forks.meeting import Commit, MeetingDirectory
from tests.controller.live.jobs.test_training import environment

pytestmark = [pytest.mark.slurm, pytest.mark.torch]
pytest.importorskip("torch")

DEADLINE_S = 240.0
TEMPLATE = Path(__file__).resolve().parents[4] / "sbatch_templates" / "hadare.sbatch"
STEPS = 1200
GUESSING = 1 / 12
"""Loss over all data of the best constant: the variance of the targets."""
NODES = "v100:1x1,p100:1x1,k80:1x1"
SETTINGS = ("controller.round_s=3", "controller.event_round_s=1", "policy.name=hadare", "jobs.start_timeout_s=5")
# The nodes' steps are as unlike as they are emulated, until the test has seen what it is about.
NAPS = {"v100": 0.05, "p100": 0.055, "k80": 0.17}
TRAINING = f"""
import json, os, sys, time, torch, slurm_hadar
nap_s = {NAPS}[os.environ["SLURMD_NODENAME"].partition("-")[0]]
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 1))
numbers = torch.arange(64.0)
data = torch.utils.data.TensorDataset((numbers / 64).unsqueeze(1).repeat(1, 4), numbers / 64)
optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
loader = torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)
run = slurm_hadar.train(net, optimizer, total_steps=int(sys.argv[1]), loader=loader)
for x, y in run:
    loss = (net(x).squeeze() - y).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if not os.path.exists("hurry"):
        time.sleep(nap_s)
net.eval()
x, y = data.tensors
loss = (net(x).squeeze() - y).square().mean().item()
with open("results-" + os.environ["SLURM_ARRAY_JOB_ID"], "a") as file:
    file.write(json.dumps(dict(copy=run.copy, step=run.step, loss=loss)) + "\\n")
"""


class Forked:
    """A forked job of a live cluster."""

    def __init__(self, live: Any, copies: int, steps: int = STEPS) -> None:
        self.live, self.steps = live, steps
        live.hurry()
        (live.work / "training.py").write_text(TRAINING)
        comment = f"hadar:fork=auto,model=resnet18,batch=64,steps={steps},period=1s"
        script = TEMPLATE.read_text().replace("python train.py", f'"{sys.executable}" training.py {steps}')
        options = (f"--array=0-{copies - 1}", "--cpus-per-task=1", "--mem=100M", "--output=%A_%a.out")
        self.job_id = live.submit(*options, comment=comment, script=script, env=environment())

    @property
    def newest(self) -> Commit | None:
        rooms = list((self.live.work / ".hadar" / self.job_id).glob("fork-*"))
        return MeetingDirectory(rooms[0], 99).newest() if rooms else None

    def works_in(self, copies: int) -> bool:
        """Whether so many copies have steps in the newest consolidation."""
        newest = self.newest
        return newest is not None and sum(1 for n in (newest.offered or {}).values() if n) >= copies

    def tasks(self) -> dict[int, JobState]:
        """States of the copies that Slurm still shows."""
        ours = [j for j in self.live.backend.read_jobs() if j.array_id == self.job_id]
        return {int(j.job_id.rpartition("_")[2]): j.state for j in ours}

    def hurry(self) -> None:
        """What is left of the steps is of no interest."""
        (self.live.work / "hurry").touch()

    def over(self) -> bool:
        return not any(state.active for state in self.tasks().values())

    def process_of(self, copy: int) -> int:
        """The training process of a copy."""
        wanted = {f"HADAR_FORK_COPY={copy}".encode(), f"SLURM_ARRAY_JOB_ID={self.job_id}".encode()}
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environ = set((folder / "environ").read_bytes().split(b"\0"))
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if wanted <= environ and words[1:2] == [b"training.py"]:
                return int(folder.name)
        raise AssertionError(f"copy {copy} has no process")

    def check(self, poll: Callable[..., Any]) -> dict[str, Any]:
        """All tasks are over; the steps are exactly the job's, each counted once; one copy ended the script."""
        poll(self.over, DEADLINE_S)
        newest = self.newest
        assert newest is not None and (newest.step, newest.to_do) == (self.steps, ())
        lines = (self.live.work / f"results-{self.job_id}").read_text().splitlines()
        assert len(lines) == 1, lines
        result = json.loads(lines[0])
        assert result["step"] == self.steps and result["copy"] == newest.closer
        assert result["loss"] < GUESSING / 2, "the model has learnt what there is"
        return result


def test_copies_share_a_job_and_the_rest_is_cancelled(make_live: Any, make_cluster: Any, poll: Any) -> None:
    """One copy per node; those that found no node are cancelled with the job, and the journal says why."""
    live = make_live(make_cluster(nodes=NODES))
    controller = live.daemon("--mode", "act", settings=SETTINGS)
    # copies that start before they can report never do
    poll(live.cluster.conf.with_name("hadar-channel.json").exists, DEADLINE_S)
    job = Forked(live, 5, 3 * STEPS)  # copies may begin long after each other on a busy machine
    poll(lambda: job.works_in(2), DEADLINE_S)
    running = [j for j in live.backend.read_jobs() if j.array_id == job.job_id and j.state is JobState.RUNNING]
    assert len({j.nodes for j in running}) == len(running) >= 2
    _check_what_is_told(live, job, poll)
    job.hurry()
    job.check(poll)
    controller.terminate()
    assert controller.wait(300) == 0
    cancelled = [
        entry
        for i in range(5)
        for entry in live.journal.history(f"{job.job_id}_{i}")
        if entry.get("command") == "cancel"
    ]
    assert cancelled and all("are done" in entry["detail"] for entry in cancelled)
    assert "Traceback" not in (live.work / "controller.log").read_text()


def _check_what_is_told(live: Any, job: Forked, poll: Any) -> None:
    """explain and queue, while the job runs."""
    head = rf"job {job.job_id}: \d+ of {job.steps} steps are in consolidation \d+; [1-3] of 5 copies at work\."

    def explained() -> str:
        told = live.hadar("explain", job.job_id).stdout
        print(told)  # shown if the test fails
        return told if re.match(head, told) and "waits: copy of job" in told and "steps/s" in told else ""

    poll(explained, DEADLINE_S)
    assert f"copy         of job {job.job_id}" in live.hadar("explain", f"{job.job_id}_0").stdout
    shares = {line["done_share"] for line in json.loads(live.hadar("queue", "--json").stdout)}
    assert len(shares) == 1 and 0 < shares.pop() < 1, "all copies show how far the job is"


def test_a_killed_copy(make_live: Any, make_cluster: Any, poll: Any) -> None:
    """kill -9 of its training: the others do its share."""
    live = make_live(make_cluster(nodes=NODES))
    job = Forked(live, 3)
    live.daemon("--mode", "act", settings=SETTINGS)
    poll(lambda: job.works_in(2), DEADLINE_S)
    victim = max(job.newest.shares)
    os.kill(job.process_of(victim), signal.SIGKILL)
    job.hurry()
    result = job.check(poll)
    assert result["copy"] != victim


def test_a_lost_node(make_live: Any, make_cluster: Any, poll: Any) -> None:
    """Slurm puts the copy back into the queue; whether it runs again or is cancelled, the job ends with its steps."""
    live = make_live(make_cluster(nodes=NODES))
    job = Forked(live, 3)
    live.daemon("--mode", "act", settings=SETTINGS)
    poll(lambda: job.works_in(2), DEADLINE_S)
    victim = next(j for j in live.backend.read_jobs() if j.array_id == job.job_id and j.state is JobState.RUNNING)
    (node,) = victim.nodes
    live.cluster.run(["scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test"])
    poll(lambda: live.state_of(victim.job_id) != "RUNNING", DEADLINE_S)
    job.hurry()
    job.check(poll)


@pytest.mark.parametrize("disk", [pytest.param("kept", marks=pytest.mark.thorough), "lost"])
def test_a_killed_controller(make_live: Any, make_cluster: Any, poll: Any, disk: str) -> None:
    """In the middle of a period, with the tracker's database or without: the copies go on, and the next controller
    learns from them how far they are."""
    live = make_live(make_cluster(nodes=NODES))
    job = Forked(live, 5)
    first = live.daemon("--mode", "act", settings=SETTINGS)
    poll(lambda: job.works_in(2), DEADLINE_S)
    first.kill()
    first.wait()
    if disk == "lost":
        for path in live.state.glob("journal.db*"):
            path.unlink()
    done, log = job.newest.number, live.work / "controller.log"
    poll(lambda: job.newest.number > done + 1, DEADLINE_S)
    said = len(log.read_text())
    second = live.daemon("--mode", "act", settings=SETTINGS)
    poll(lambda: len(re.findall(r"round \d+ \(", log.read_text()[said:])) >= 3, DEADLINE_S)
    job.hurry()
    job.check(poll)
    assert second.poll() is None
    assert all(state is not JobState.PENDING for state in job.tasks().values()), "what waited was cancelled"
