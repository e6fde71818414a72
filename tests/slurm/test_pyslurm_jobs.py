"""What the commands tell the pyslurm backend of a job, and how often they are asked: no pyslurm is needed for that."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.slurm.backend import pyslurm
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.backend.pyslurm import PyslurmBackend
from slurm_hadar.slurm.state import Fittings, SlurmJob
from slurm_hadar.testing.fake_slurm import FakeSlurm

NAMES = (
    "array_id", "array_task", "waiting", "het_id", "het_offset", "user", "account", "qos", "partition", "nodes",
    "req_nodes", "features", "max_nodes", "time_limit", "eligible", "start", "end", "dependency", "work_dir", "name",
    "comment", "uid", "memory", "sharing", "licenses", "reservation", "exc_nodes", "deadline", "sched_nodes", "reason",
    "throttle",
)  # fmt: skip
RECORD: dict[str, Any] = {
    **dict.fromkeys(NAMES), "id": 1, "state": "PENDING", "gres": {"gpu": 1}, "num_nodes": 1, "num_tasks": 1,
    "num_cpus": 1, "submit": 1000.0, "requeue": True, "restarts": 0, "batch": True, "priority": 1, "by_gpu": False,
}  # fmt: skip


def test_what_a_job_asks_is_asked_of_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each job, and once more when its CPUs are counted by GPUs, as after Slurm has tried it."""
    fake, asked = FakeSlurm({"v100-1": ("v100", 4)}), list[int]()
    shown = replace(fake.jobs[fake.submit(1)], asks=Fittings((("nic", 1),)), by_user=True, tasks_per_node=2)

    def each_job(_self: CliBackend) -> Iterator[SlurmJob]:
        asked.append(1)
        return iter((shown,))

    record = {**RECORD, "sharing": "user"}
    monkeypatch.setattr(CliBackend, "each_job", each_job)
    monkeypatch.setattr("slurm_hadar.slurm.backend.pyslurm._Worker.jobs", lambda _self: [record])
    backend = PyslurmBackend(env={})

    for _ in range(2):
        (job,) = backend.each_job()
        assert (job.asks, job.cpus_per_gpu, job.tasks_per_node, len(asked)) == (shown.asks, 0, 2, 1)
        assert job.by_user and not job.exclusive
    record["by_gpu"], shown = True, replace(shown, cpus_per_gpu=3)
    for _ in range(2):
        (job,) = backend.each_job()
        assert (job.asks, job.cpus_per_gpu, len(asked)) == (shown.asks, 3, 2)


def test_what_lies_in_the_working_directory_is_not_run(tmp_path: Path) -> None:
    """Root may ask in a user's folder."""
    for name in ("json", "pyslurm", "slurm_hadar"):
        (tmp_path / f"{name}.py").write_text("open('was here', 'w')")
    subprocess.run(pyslurm._WORKER, cwd=tmp_path, input=b"", capture_output=True, check=False)  # noqa: SLF001
    assert not (tmp_path / "was here").exists()
