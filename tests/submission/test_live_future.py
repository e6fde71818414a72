"""Functions as jobs of a real Slurm: requeued, cancelled, and run again after their own failure."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import slurm_hadar
from slurm_hadar.errors import JobFailed

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).resolve().parents[2]
SMALL = {"mem": "100M", "cpus_per_task": 1}


@pytest.fixture
def folder(slurm_cluster: Any, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of submission that the jobs see, in this process's own environment."""
    for name, value in slurm_cluster.env.items():
        monkeypatch.setenv(name, value)
    python = Path(sys.executable).parent
    monkeypatch.setenv("PATH", f"{ROOT / 'wrappers'}:{python}:{slurm_cluster.env['PATH']}")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{Path(__file__).parent}")
    monkeypatch.setenv("HADAR_PYTHON", sys.executable)
    return short_tmp


def wait(seconds: float) -> str:
    """Tells which run it is in; only the last one gets to its end."""
    run = os.environ.get("SLURM_RESTART_COUNT", "0")
    Path(f"began-{run}").touch()
    time.sleep(seconds if run == "0" else 0.0)
    return f"run {run}"


def fail_once() -> str:
    run = os.environ.get("SLURM_RESTART_COUNT", "0")
    if run == "0":
        raise RuntimeError("first")
    return f"run {run}"


def start_again(slurm_cluster: Any, job: slurm_hadar.Job) -> None:
    """Sooner than Slurm would, but not in the second in which the last run was ended: slurmctld would take the late
    word of that one's end for the new one's."""
    slurm_cluster.run(["scontrol", "update", f"JobId={job.job_id}", "StartTime=now+2"])


def test_a_requeued_function_is_called_anew(folder: Path, slurm_cluster: Any, poll: Callable[..., Any]) -> None:
    job = slurm_hadar.submit(wait, 300.0, folder=folder, chdir=folder, **SMALL)
    poll((folder / "began-0").exists, deadline_s=60)
    slurm_cluster.run(["scontrol", "requeue", job.job_id])
    poll(lambda: job.state == "PENDING", deadline_s=60)
    start_again(slurm_cluster, job)

    assert job.result(120) == "run 1" and job.state == "COMPLETED"


def test_a_cancelled_function_says_so(folder: Path, poll: Callable[..., Any]) -> None:
    job = slurm_hadar.submit(wait, 300.0, folder=folder, chdir=folder, **SMALL)
    poll((folder / "began-0").exists, deadline_s=60)
    job.cancel()

    with pytest.raises(JobFailed, match="was cancelled"):
        job.result(60)


@pytest.mark.parametrize("retry", [None, 1])
def test_a_function_that_fails_is_called_again_where_asked_for(
    folder: Path, slurm_cluster: Any, poll: Callable[..., Any], retry: int | None
) -> None:
    """Without a controller about; the job never shows as failed in between."""
    job = slurm_hadar.submit(fail_once, folder=folder, chdir=folder, comment={"retry": retry}, **SMALL)
    if retry is None:
        assert isinstance(job.exception(60), RuntimeError)
        return
    poll(lambda: "retry 1 of 1" in job.stderr() and job.state == "PENDING", deadline_s=60)
    start_again(slurm_cluster, job)

    assert job.result(120) == "run 1"
    assert "since the run before failed with exit code 1" in job.stderr()
