"""A step within a step is told of in one line, before Slurm lets it wait for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_hadar.runtime.launch import nested


@pytest.mark.parametrize(
    ("options", "command", "told"),
    [
        ([], ["srun", "python", "a b.py"], "leave it out: hadar-srun -- python 'a b.py'"),
        (["-n", "2"], ["/usr/bin/hadar-srun", "x"], "hadar-srun is srun already"),
        ([], ["srun"], "hadar-srun -- command"),
        (["--overlap"], ["srun", "x"], None),
        ([], ["srun", "--overlap", "x"], None),
        ([], ["python", "srun"], None),
    ],
)
def test_twice(options: list[str], command: list[str], told: str | None) -> None:
    said = nested.twice(options, command)
    assert (said is None) is (told is None) and (told or "") in (said or "")


@pytest.mark.parametrize(
    ("environ", "options", "told"),
    [
        ({"SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"}, [], True),
        ({"SLURM_STEP_ID": "4294967290"}, [], False),  # salloc's own interactive step
        ({}, [], False),
        ({"SLURM_STEP_ID": "0"}, ["--overlap"], False),
        ({"SLURM_STEP_ID": "0", "SLURM_OVERLAP": "1"}, [], False),
    ],
)
def test_around(environ: dict[str, str], options: list[str], told: bool) -> None:
    assert (nested.around(options, environ) is not None) is told


@pytest.mark.parametrize(("step", "told"), [("8.batch", False), ("8.0", True)])
def test_a_batch_script_that_was_submitted_from_a_step_is_none(step: str, told: bool) -> None:
    """It has the variables of that step; slurmstepd knows better."""
    code = "import os; from slurm_hadar.runtime.launch import nested; print(nested.around([], os.environ) is not None)"
    script = f'exec -a "slurmstepd: [{step}]   " sh -c \'"$0" -c "$1"; :\' "$0" "$1"'
    words = ["bash", "-c", script, sys.executable, code]

    done = subprocess.run(words, env={**os.environ, "SLURM_STEP_ID": "0"}, capture_output=True, text=True, check=True)

    assert done.stdout == f"{told}\n"


@pytest.mark.parametrize(
    ("script", "environ", "lines"),
    [
        ("srun -n 1 python", {}, 1),
        ("srun --overlap x", {}, 0),
        ("srun x", {"SLURM_OVERLAP": "1"}, 0),
        ("srun x", {"HADAR_STEP_SHARED": "1"}, 0),
    ],
)
def test_an_srun_inside_says_what_it_is(
    job_env: dict[str, str], tmp_path: Path, script: str, environ: dict[str, str], lines: int
) -> None:
    """And then does what it does, with the words that it was given."""
    (tmp_path / "slurm").mkdir()
    (tmp_path / "slurm" / "srun").write_text('#!/bin/sh\necho "real $*"\nexit 5\n')
    (tmp_path / "slurm" / "srun").chmod(0o755)
    env = {**job_env, "PATH": f"{tmp_path / 'slurm'}{os.pathsep}{job_env['PATH']}", **environ}
    command = [sys.executable, "-m", "slurm_hadar.runtime.agent", "--", "sh", "-c", script]

    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)

    assert done.returncode == 5 and done.stdout == f"real {script.removeprefix('srun ')}\n"
    assert done.stderr.count("hadar: this srun is started inside hadar-srun") == lines


def test_where_nothing_can_be_executed_path_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a /tmp that is mounted noexec."""
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path).parent.name != "bin")
    assert nested.watched_path(tmp_path / "none", {"PATH": str(tmp_path)}) is None
    (tmp_path / "task").mkdir()
    assert nested.watched_path(tmp_path / "task", {"PATH": str(tmp_path)}) is None


def test_a_step_without_path_finds_programs_where_the_system_has_them(job_env: dict[str, str]) -> None:
    """As one of a job with ``--export=NONE``."""
    env = {name: value for name, value in job_env.items() if name != "PATH"}
    command = [sys.executable, "-m", "slurm_hadar.runtime.agent", "--", "/bin/sh", "-c", "ls / >/dev/null"]
    assert subprocess.run(command, env=env, check=False, timeout=300).returncode == 0
