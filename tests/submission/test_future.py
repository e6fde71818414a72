"""``slurm_hadar.submit``: functions as jobs, on a Slurm played by scripts; runs are made by the tests, one by one."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import slurm_hadar
from slurm_hadar.errors import CheckpointError, CommentError, HadarError, JobFailed, SlurmError, SlurmUnavailable
from slurm_hadar.submission import future, run
from slurm_hadar.submission.files import read_file, write_file
from slurm_hadar.submission.sbatch import as_options

ROOT = Path(__file__).resolve().parents[2]


class Slurm:
    """sbatch writes down what it gets; squeue and sacct say what the test wants."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._script("sbatch", f'printf "%s\\n" "$@" > {directory}/words; echo 7')
        self._script("squeue", f"cat {directory}/state")
        self._script("sacct", "exit 1")
        self._script("scancel", f'printf "7 CANCELLED\\n" > {directory}/state')
        self.state("PENDING")

    def _script(self, name: str, text: str) -> None:
        path = self.directory / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def state(self, word: str) -> None:
        (self.directory / "state").write_text(f"7 {word}\n" if word else "")

    @property
    def words(self) -> list[str]:
        return (self.directory / "words").read_text().splitlines()

    def refuse(self, why: str, command: str = "sbatch") -> None:
        self._script(command, f'echo "{command}: {why}" >&2; exit 1')

    def run(self, job: slurm_hadar.Job, restart: int = 0, task: int = 0) -> int:
        """One run of the job's command, as hadar-srun would start it; its output goes where Slurm puts it."""
        env = {**os.environ, "PYTHONPATH": str(ROOT), "SLURM_RESTART_COUNT": str(restart), "SLURM_PROCID": str(task)}
        command = [sys.executable, "-m", "slurm_hadar.submission.run", str(job.folder)]
        with (job.folder / "stdout").open("a") as out, (job.folder / "stderr").open("a") as err:
            code = subprocess.run(command, env=env, stdout=out, stderr=err, timeout=300).returncode
        self.state("FAILED" if code else "COMPLETED")
        return code


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(future, "_ASK_S", 0.0)
    monkeypatch.setattr(future, "_FILES_S", 0.5)
    return Slurm(tmp_path)


def add(a: int, b: int) -> int:
    print("adding")
    return a + b


def fail() -> None:
    raise ValueError("no")


class OddError(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("not to be pickled")


def fail_oddly() -> None:
    raise OddError("strange")


def unpicklable() -> object:
    return threading.Lock()


def by_run() -> str:
    return os.environ["SLURM_RESTART_COUNT"] + os.environ["SLURM_PROCID"]


def leave() -> None:
    sys.exit(0)


def test_a_result_comes_back(slurm: Slurm) -> None:
    """And what sbatch is told makes the job movable, with what the scheduler may know."""
    job = slurm_hadar.submit(
        add,
        1,
        2,
        gpus=2,
        steps=9,
        model="m",
        comment={"types": ["v100", "k80"], "lose": True},
        time="1:00",
        cpus_per_task=3,
        exclusive=True,
    )

    assert (job.job_id, job.state, job.done(), job.stdout()) == ("7", "PENDING", False, "")
    with pytest.raises(TimeoutError, match=r"job 7 is PENDING after 0\.01 s"):
        job.result(0.01)
    assert {
        "--gres=gpu:2",
        "--time=1:00",
        "--cpus-per-task=3",
        "--exclusive",
        "--requeue",
        "--open-mode=append",
        "--job-name=add",
        "--comment=hadar:steps=9,model=m,types=v100+k80,lose=yes",
    } <= set(slurm.words)
    assert (
        slurm.words[-1].endswith(f"-m slurm_hadar.submission.run {job.folder}") and "hadar-srun -- " in slurm.words[-1]
    )
    assert slurm.run(job) == 0
    assert (job.result(), job.exception(), job.done(), job.stdout()) == (3, None, True, "adding\n")
    assert slurm_hadar.Job("7", job.folder).result() == 3


def test_a_result_needs_no_accounts(slurm: Slurm) -> None:
    """Where Slurm has forgotten the job, and the daemon that keeps its accounts is away."""
    job = slurm_hadar.submit(add, 1, 2)
    slurm.run(job)
    slurm.state("")
    slurm._script("sacct", "echo 'sacct: error: Connection refused' >&2; exit 1")  # noqa: SLF001

    assert job.result(20) == 3


def test_a_slurm_that_is_restarted_is_waited_for(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job, states = slurm_hadar.submit(add, 1, 2), iter([SlurmUnavailable("Slurm is away")] * 3)
    slurm.run(job)
    asked = future._SLURM.state  # noqa: SLF001

    def state(job_id: str) -> str:
        if (away := next(states, None)) is not None:
            raise away
        return asked(job_id)

    monkeypatch.setattr(future._SLURM, "state", state)  # noqa: SLF001

    assert job.result(20) == 3
    assert capfd.readouterr().err == f"hadar: Slurm is away; still waiting for job {job.job_id}\n"


def test_lambdas_and_closures_travel(slurm: Slurm) -> None:
    three = 3
    job = slurm_hadar.submit(lambda: three + 1, gpus=0)
    slurm.run(job)

    assert job.result() == 4 and not any(word.startswith("--gres") for word in slurm.words)


def test_what_is_raised_in_the_job_is_raised_here(slurm: Slurm) -> None:
    """With the text of its traceback; where the exception itself cannot travel, that text alone."""
    job = slurm_hadar.submit(fail)
    assert slurm.run(job) == 1
    with pytest.raises(ValueError, match="no") as caught:
        job.result()
    assert isinstance(caught.value.__cause__, JobFailed) and 'raise ValueError("no")' in str(caught.value.__cause__)
    assert isinstance(job.exception(), ValueError) and "ValueError: no" in job.stderr()
    for function, words in ((fail_oddly, "strange"), (unpicklable, "cannot be pickled")):
        job = slurm_hadar.submit(function)
        slurm.run(job)
        with pytest.raises(HadarError, match=words):
            job.result()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("CANCELLED", "was cancelled"),
        ("TIMEOUT", "reached its time limit"),
        ("OUT_OF_MEMORY", "not enough memory"),
        ("NODE_FAIL", "lost its node"),
        ("FAILED", "failed before the function"),
        ("PREEMPTED", "ended as PREEMPTED"),
        ("COMPLETED", "left no result"),
        ("", "not known to Slurm any more"),
    ],
)
def test_a_job_that_ended_otherwise_says_how(slurm: Slurm, state: str, words: str) -> None:
    job = slurm_hadar.submit(add, 1, 2)
    (job.folder / "stderr").write_text("Killed\n")
    slurm.state(state)

    with pytest.raises(JobFailed, match=words) as caught:
        job.result()
    assert caught.value.state == (state or "GONE") and "Killed" in str(caught.value)


def test_the_last_run_counts(slurm: Slurm) -> None:
    """What an earlier run has left, which was put back at its very end, is no result of one that was killed."""
    job = slurm_hadar.submit(by_run)
    slurm.run(job, 0)
    slurm.run(job, 1, task=1)
    slurm.run(job, 1, task=0)
    assert job.result() == "10"
    write_file(job.folder, run.result_name(2, 0), pickle.dumps((run.STARTED, None, "")))
    slurm.state("FAILED")
    assert isinstance(job.exception(), JobFailed)


def test_a_function_that_ends_the_process_has_no_result(slurm: Slurm) -> None:
    job = slurm_hadar.submit(leave)
    slurm.run(job)

    with pytest.raises(JobFailed, match=r"left no result.*sys.exit"):
        job.result()


@pytest.mark.usefixtures("slurm")
def test_cancelling() -> None:
    job = slurm_hadar.submit(add, 1, 2)
    job.cancel()

    assert job.done() and isinstance(job.exception(), JobFailed)


def test_a_job_that_slurm_does_not_end_is_no_cancelled_one(slurm: Slurm) -> None:
    slurm.refuse("error: Kill job error on job id 7: Access/permission denied", "scancel")
    with pytest.raises(SlurmError, match="job 7 cannot be cancelled: Access/permission denied"):
        slurm_hadar.Job("7", slurm.directory).cancel()
    slurm.refuse("fatal: Could not establish a configuration source", "scancel")
    with pytest.raises(SlurmError, match="job 7 cannot be cancelled: scancel: fatal: Could not establish"):
        slurm_hadar.Job("7", slurm.directory).cancel()


def test_what_is_refused(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line each; nothing is left behind."""
    with pytest.raises(CommentError, match="mem=x"):
        slurm_hadar.submit(add, comment={"mem": "x"})
    with pytest.raises(CommentError, match="gpus=-1"):
        slurm_hadar.submit(add, gpus=-1)
    for option in ({"array": "1-3"}, {"wait": True}, {"test_only": True}):
        with pytest.raises(HadarError, match=f"{next(iter(option))} cannot be given"):
            slurm_hadar.submit(add, **option)
    with pytest.raises(HadarError, match="cannot be pickled"):
        slurm_hadar.submit(add, threading.Lock())
    monkeypatch.setattr(future, "pickler", lambda: pickle)
    monkeypatch.setattr(add, "__module__", "__main__")
    with pytest.raises(HadarError, match=r"pip install 'slurm_hadar\[submit\]'"):
        slurm_hadar.submit(add, 1, 2)
    monkeypatch.undo()
    monkeypatch.setenv("PATH", f"{slurm.directory}:{os.environ['PATH']}")
    monkeypatch.chdir(slurm.directory)
    slurm.refuse("error: no such partition")
    with pytest.raises(SlurmError, match="no such partition"):
        slurm_hadar.submit(add, 1, 2)
    assert not list((slurm.directory / ".hadar").glob("call-*"))


def test_only_files_of_ones_own_are_unpickled(slurm: Slurm, tmp_path: Path) -> None:
    """Whoever else could write a pickle could run code as this user."""
    job = slurm_hadar.submit(add, 1, 2)
    assert job.folder.stat().st_mode & 0o777 == 0o700 == job.folder.parent.stat().st_mode & 0o777
    assert (job.folder / "call.pickle").stat().st_mode & 0o777 == 0o600
    slurm.run(job)
    result = job.folder / run.result_name(0, 0)
    result.chmod(0o666)
    with pytest.raises(HadarError, match="not a file of yours alone"):
        job.result()
    other = tmp_path / "other"
    result.rename(other)
    other.chmod(0o600)
    result.symlink_to(other)
    with pytest.raises(OSError, match="symbolic link"):
        read_file(job.folder, result.name)
    result.unlink()
    os.mkfifo(result, 0o600)
    with pytest.raises(HadarError, match="not a file of yours alone"):
        read_file(job.folder, result.name)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")
def test_another_users_folder_is_not_read(slurm: Slurm) -> None:
    job = slurm_hadar.submit(add, 1, 2)
    slurm.run(job)
    os.chown(job.folder, 12345, 12345)

    with pytest.raises((HadarError, CheckpointError), match="belongs to user 12345"):
        job.result()


def test_words_for_sbatch() -> None:
    assert as_options({"cpus_per_task": 4, "exclusive": True, "mem": None, "hold": False}) == [
        "--cpus-per-task=4",
        "--exclusive",
    ]


def test_a_full_disk_keeps_no_part_of_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path, "result-0-0.pickle", b"x")

    assert not list(tmp_path.iterdir())
