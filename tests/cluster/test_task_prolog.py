"""task_prolog.sh: what it tells Slurm to change in a job's environment."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "wrappers" / "task_prolog.sh"


def _run(**environment: str) -> list[str]:
    # an empty PATH proves that it starts no program
    done = subprocess.run(
        ["/bin/sh", str(SCRIPT)], env={"PATH": "", **environment}, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_jobs_without_the_mark_are_left_alone() -> None:
    """Nothing is printed for jobs that are not steered."""
    assert _run(SLURM_NTASKS="4", SLURM_GPUS="4") == []
    assert _run(HADAR_MANAGED="", SLURM_NTASKS="4") == []


@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": ""}, {"SLURM_STEP_ID": "-5"}])  # as job_submit.lua, and 26.05
def test_batch_script_loses_stale_gpu_counts(step: dict[str, str]) -> None:
    """The GPU counts of the request are unset before the batch script; a job without tasks gets no count."""
    lines = _run(HADAR_MANAGED="1", SLURM_GPUS="", **step)

    assert "unset SLURM_GPUS" in lines and "unset SLURM_GPUS_PER_NODE" in lines
    assert not [line for line in lines if "SLURM_NTASKS=" in line or line == "unset SLURM_NTASKS"]


@pytest.mark.parametrize(
    ("per_node", "tasks"), [("2", 2), ("1(x2)", 2), ("2(x3),1", 7), ("4,2(x2),1", 9), ("10(x12)", 120)]
)
def test_task_count_follows_the_allocation(per_node: str, tasks: int) -> None:
    """A job that asked for tasks gets the number its present allocation holds."""
    lines = _run(HADAR_MANAGED="1", SLURM_NTASKS="8", SLURM_TASKS_PER_NODE=per_node)

    assert f"export SLURM_NTASKS={tasks}" in lines and f"export SLURM_NPROCS={tasks}" in lines


@pytest.mark.parametrize("per_node", ["", "x", "2(x", "2,,1", "2(xy)"])
def test_unreadable_allocation_unsets_the_task_count(per_node: str) -> None:
    """What cannot be read leads to srun's own default, never to an error."""
    lines = _run(HADAR_MANAGED="1", SLURM_NTASKS="8", SLURM_TASKS_PER_NODE=per_node)

    assert "unset SLURM_NTASKS" in lines
    assert not [line for line in lines if line.startswith("export")]


def test_a_task_count_that_was_inherited_is_unset() -> None:
    """Of a job with its node for itself Slurm counts the CPUs there, and srun would start as many tasks."""
    lines = _run(HADAR_MANAGED="1", HADAR_NO_TASKS="1", SLURM_NTASKS="1", SLURM_TASKS_PER_NODE="32")

    assert {"unset SLURM_NTASKS", "unset SLURM_NPROCS", "unset HADAR_NO_TASKS"} <= set(lines)
    assert not [line for line in lines if line.startswith("export")]


def test_tasks_of_a_step_keep_what_srun_gave_them() -> None:
    """Inside a step the counts are srun's own and right."""
    assert _run(HADAR_MANAGED="1", SLURM_STEP_ID="0", SLURM_NTASKS="2", SLURM_GPUS="2") == []


def test_channel_file_beside_slurm_conf_is_announced(tmp_path: Path) -> None:
    """HADAR_CHANNEL names the file; one the user set stays."""
    conf = str(tmp_path / "slurm.conf")
    assert not [line for line in _run(HADAR_MANAGED="1", SLURM_CONF=conf) if "HADAR_CHANNEL" in line]
    channel = tmp_path / "hadar-channel.json"
    channel.write_text("{}")

    assert f"export HADAR_CHANNEL={channel}" in _run(HADAR_MANAGED="1", SLURM_CONF=conf)
    own = _run(HADAR_MANAGED="1", SLURM_CONF=conf, HADAR_CHANNEL="/mine")
    assert not [line for line in own if "HADAR_CHANNEL" in line]
