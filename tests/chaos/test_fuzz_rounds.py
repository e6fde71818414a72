"""A few hundred whole rounds with hostile queues; ``make fuzz`` plays many more."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from benchmarks.fuzz.rounds import faked_time, play
from benchmarks.fuzz.scene import Scene, prepare_folders
from slurm_hadar.slurm.state import Write

OTHERS = ("fifo+hadare+tiresias", "gavel_las+asrpt+srtf")


@pytest.mark.parametrize("policies", ["hadar", *(pytest.param(p, marks=pytest.mark.thorough) for p in OTHERS)])
def test_no_round_fails(policies: str) -> None:
    """Whatever jobs, reports and the journal say, a round ends, keeps its rules, and starts who can start."""
    tally = play(360, 1, tuple(policies.split("+")))

    assert tally.examples == {} and tally.rounds == 360 and sum(tally.faults.values()) > 300


def test_time_is_faked() -> None:
    """Nobody sleeps, and afterwards all is as before."""
    before = time.time
    began = time.monotonic()

    with faked_time() as clock:
        clock.sleep(3600.0)
        ahead_s = time.monotonic()

    assert ahead_s == 3600.0 and time.time is before and time.monotonic() - began < 60.0


def test_an_order_that_goes_too_far_is_found(tmp_path: Path) -> None:
    """An update of a job that is held counts as a problem."""
    with faked_time() as clock:
        scene = Scene(random.Random(1), "fifo", prepare_folders(tmp_path), clock.sleep)
        job = scene.slurm.submit(1)
        scene.slurm.hold(job)
        scene.slurm.read()
        scene.slurm.write([Write("update", (job,), (("StartTime", "now"),))])
        scene.close()

    assert scene.slurm.problems == ["update of a job that is held (JobHeldUser)"]
