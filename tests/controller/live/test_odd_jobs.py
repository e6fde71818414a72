"""Jobs that once ended the controller, or kept it from its rounds: each costs itself its steering, and nothing else."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

pytestmark = pytest.mark.slurm
SAVES = "hadar:model=resnet18,batch=64,steps=20000,ckpt=yes"


@pytest.mark.parametrize("mode", ["observe", "act"])
def test_odd_jobs_cost_themselves_alone(live: Any, poll: Any, mode: str) -> None:
    """A field separator in a GPU request, a period of 400 digits, and a spool file that is a directory or a FIFO:
    rounds go on, an honest job is steered, and queue and explain say what is wrong with the others."""
    separator = live.submit("--hold", "--gres=gpu:v100\x1f:1")
    endless = live.submit("--hold", "--gres=gpu:1", comment=f"hadar:fork=auto,period={'9' * 400}s")
    runs = {live.submit("--gres=gpu:1"): make for make in (os.mkdir, os.mkfifo)}
    honest = live.submit("--hold", "--gres=gpu:1")
    poll(lambda: all(live.state_of(job) == "RUNNING" for job in runs))
    for job, make in runs.items():
        (live.work / ".hadar" / job).mkdir(parents=True)
        make(live.work / ".hadar" / job / "spool.jsonl")
    settings = (f"controller.mode={mode}", "controller.round_s=2", "policy.name=fifo", "channel.enabled=false")
    daemon = live.daemon(settings=settings)
    poll(lambda: len(live.journal.rounds(last=10)) >= 2, 60, 0.2)

    live.cluster.run(["scontrol", "release", honest], check=True)
    seen = len(live.journal.rounds(last=1000))
    poll(lambda: len(live.journal.rounds(last=1000)) >= seen + 3, 60, 0.2)

    assert daemon.poll() is None, (live.work / "controller.log").read_text()
    assert {r["note"] for r in live.journal.rounds(last=1000)} == {""}
    poll(lambda: live.state_of(honest) == "RUNNING", 60)
    lines = {line["job_id"]: line for line in json.loads(live.hadar("queue", "--json", settings=settings).stdout)}
    for job, words in {separator: "GPU", endless: "period="}.items():
        assert lines[job]["tier"] == "pinned" and words in lines[job]["why"], lines[job]
        told = live.hadar("explain", job, settings=settings)
        assert told.returncode == 0 and "is left to Slurm" in told.stdout and words in told.stdout, told
    assert all(lines[job]["state"] == "running" for job in runs)
    daemon.terminate()
    assert daemon.wait(300) == 0
