"""``hadar submit`` and ``hadar logs``, with Slurm's commands played by scripts."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_hadar.cli.jobs.submit import submit
from slurm_hadar.testing.fake_slurm import FakeSlurm

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def slurm(tmp_path: Path) -> Path:
    """A folder for scripts named as Slurm's commands."""
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


@pytest.fixture
def hadar(slurm: Path, monkeypatch: pytest.MonkeyPatch, call: Run) -> Run:
    monkeypatch.setenv("PATH", f"{slurm}:{os.environ['PATH']}")
    monkeypatch.setenv("HADAR_CONFIG", "")
    return call


def script(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.mark.parametrize(
    ("options", "added"),
    [
        (["--gres=gpu:2"], ["--requeue", "--open-mode=append", "--comment=hadar:", "--job-name=train.py"]),
        (["--comment", "hadar:model=x", "--no-requeue", "--open-mode=truncate", "-J", "x"], []),
        (["--comment=hadar:model=x,batch=4", "--job-name=x"], ["--requeue", "--open-mode=append"]),
    ],
)
def test_what_a_movable_job_needs_is_added(slurm: Path, hadar: Run, options: list[str], added: list[str]) -> None:
    script(slurm, "sbatch", f'printf "%s\\n" "$@" > {slurm}/words; echo "4711;cluster"; echo "sbatch: a note" >&2')

    done = hadar("submit", *options, "--", "python", "train.py", "--name", "a b")

    assert done.returncode == 0, done.stderr
    words = (slurm / "words").read_text().splitlines()
    assert words[:-1] == ["--parsable", *options, *added]
    assert words[-1].startswith("--wrap=") and words[-1].endswith("hadar-srun -- python train.py --name 'a b'")
    assert done.stdout.startswith("job 4711 is submitted\n") and "hadar logs -f 4711" in done.stdout
    assert done.stderr == "sbatch: a note\n"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "say what is to be run after --"),
        (("--gres=gpu:1", "--"), 2, "say what is to be run after --"),
        (("--comment=mine", "--", "x"), 1, "is not for the scheduler; begin it with hadar:"),
        (("--comment=hadar:batch=0", "--", "x"), 1, "batch=0"),
        (("--", "x"), 1, "hadar: Batch job submission failed: no"),
    ],
)
def test_refusals_are_one_line(slurm: Path, hadar: Run, words: tuple[str, ...], code: int, said: str) -> None:
    script(slurm, "sbatch", 'echo "sbatch: error: Batch job submission failed: no" >&2; exit 1')

    done = hadar("submit", *words)

    assert (done.returncode, said in done.stderr, "Traceback" in done.stderr) == (code, True, False)


@pytest.mark.parametrize(("comment", "warned"), [("hadar:mem=80g", True), ("hadar:mem=16g", False)])
def test_a_job_that_no_gpu_here_is_for(comment: str, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm knows nothing of it: nobody says that such a job waits."""
    here = FakeSlurm({"v100-1": ("v100", 2), "k80-1": ("k80", 2)})
    monkeypatch.setattr("slurm_hadar.cli.jobs.submit.CliBackend", lambda *_, **__: here)
    monkeypatch.setattr("slurm_hadar.cli.jobs.submit.sbatch", lambda *_: here.submit(comment=comment))

    done = CliRunner().invoke(submit, ["--gres=gpu:1", f"--comment={comment}", "--", "true"])

    assert done.exit_code == 0 and ("warning: " in done.output) is warned
    assert ("v100 has 16 GB, and the job says mem=80g; the scheduler starts it nowhere" in done.output) is warned
    assert ("Slurm, which knows nothing of types= and mem=, may start it" in done.output) is warned
    assert "waits for ever" not in done.output


def shows(slurm: Path, log: Path, *states: str) -> None:
    """scontrol, which shows the job in these states, one call after the other."""
    for number, state in enumerate(states):
        name = "JobId=7 JobName=x\n   StdOut=/etc/passwd\n y"
        (slurm / f"{number}").write_text(f"{name}\n   JobState={state} Reason=None\n   StdOut={log}\n   Power=\n")
    last = len(states) - 1
    script(
        slurm,
        "scontrol",
        f"n=$(cat {slurm}/n 2>/dev/null || echo 0); cat {slurm}/$n; "
        f"[ $n -lt {last} ] && echo $((n+1)) > {slurm}/n; exit 0",
    )


@pytest.mark.parametrize(
    ("sbatch", "code", "out", "err"),
    [
        ("echo 'sbatch: Job 4711 to start at 2026-11-28' >&2", 0, "", "sbatch: Job 4711 to start at 2026-11-28\n"),
        ("echo 9; exit 3", 1, "", "hadar: job 9 was submitted, waited for (--wait), and ended with exit code 3\n"),
    ],
    ids=["--test-only", "--wait"],
)
def test_a_job_that_is_not_just_submitted(slurm: Path, hadar: Run, sbatch: str, code: int, out: str, err: str) -> None:
    script(slurm, "sbatch", sbatch)

    done = hadar("submit", "--gres=gpu:1", "--", "true")

    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


def test_a_job_is_followed_to_its_end(slurm: Path, hadar: Run, tmp_path: Path) -> None:
    """Its own file, whatever its name says."""
    log = tmp_path / "slurm-7.out"
    log.write_text("step 1\n")
    shows(slurm, log, "RUNNING", "COMPLETED")

    done = hadar("logs", "-f", "7")

    assert (done.returncode, done.stdout) == (0, "step 1\n"), done.stderr


def test_where_a_job_has_its_errors_is_said(slurm: Path, hadar: Run, tmp_path: Path) -> None:
    """Why it failed stands there, not in its output."""
    (tmp_path / "out").write_text("step 1\n")
    (tmp_path / "err").write_text("ValueError\n")
    script(slurm, "scontrol", f'printf "   JobState=FAILED\\n   StdErr={tmp_path}/err\\n   StdOut={tmp_path}/out\\n"')

    done = hadar("logs", "7")

    assert (done.returncode, done.stdout) == (0, "step 1\n")
    assert done.stderr == f"hadar: what it wrote to stderr is in {tmp_path}/err\n"


@pytest.mark.parametrize(
    ("job", "scontrol", "said"),
    [
        ("x", "exit 1", "'x' is no job id"),
        ("7", 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1', "does not know job 7 (any more)"),
        ("7", 'printf "JobId=7\\n   JobState=PENDING\\n"', "is no batch job, or an array"),
        (
            "7",
            r'printf "JobId=7 ArrayJobId=7 ArrayTaskId=2-3,5 JobName=x\n   JobState=PENDING\n   StdOut=/a\n\n'
            r'JobId=8 ArrayJobId=7 ArrayTaskId=0 JobName=x\n   JobState=RUNNING\n   StdOut=/b\n"',
            "job 7 has several parts, each with its own output: 7_[2-3,5], 7_0; name one",
        ),
        (
            "7",
            r'printf "JobId=7 HetJobId=7 HetJobOffset=0 JobName=x\n   JobState=PENDING\n   StdOut=/a\n\n'
            r'JobId=8 HetJobId=7 HetJobOffset=1 JobName=x\n   JobState=PENDING\n   StdOut=/b\n"',
            "7+0, 7+1; name one",
        ),
        ("7", 'printf "   JobState=PENDING\\n   StdOut=/nowhere/a.out\\n"', "has written nothing yet"),
    ],
)
def test_what_cannot_be_shown_is_said(slurm: Path, hadar: Run, job: str, scontrol: str, said: str) -> None:
    script(slurm, "scontrol", scontrol)

    done = hadar("logs", job)

    assert done.returncode in (1, 2) and said in done.stderr and "Traceback" not in done.stderr
