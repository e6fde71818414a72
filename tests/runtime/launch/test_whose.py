"""What a job finds that is another one's: its environment, its directory, its token."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from slurm_hadar import messages
from slurm_hadar.runtime import launcher
from tests.runtime.launch.batch import WRAPPER, Fakes, run, with_channel


def test_a_job_that_another_ones_program_has_submitted_has_nothing_of_it(
    fakes: Fakes, env: dict[str, str], tmp_path: Path
) -> None:
    """It inherits the environment of that one's step; what its user has set stays."""
    parent = {**env, "HADAR_MODEL": "mine"}
    run(parent, "--", "true")
    inherited = {**fakes.calls("srun")[0]["env"], "SLURM_JOB_ID": "78", "SLURM_STEP_ID": "0"}

    done = run(inherited, "--", "true")

    seen = fakes.calls("srun")[1]["env"]
    assert done.stderr == "" and "SLURM_STEP_ID" not in seen
    assert (seen["HADAR_JOB_ID"], seen["HADAR_JOB_DIR"]) == ("78", str(tmp_path / ".hadar" / "78"))
    assert seen["HADAR_SET"].startswith("78:HADAR_JOB_DIR HADAR_JOB_ID HADAR_MASTER_ADDR")
    assert seen["HADAR_MODEL"] == "mine" and "HADAR_MODEL" not in seen["HADAR_SET"]
    own = {**parent, "HADAR_JOB_DIR": str(tmp_path / "named")}
    run(own, "--", "true")
    run({**fakes.calls("srun")[2]["env"], "SLURM_JOB_ID": "78"}, "--", "true")
    assert fakes.calls("srun")[3]["env"]["HADAR_JOB_DIR"] == str(tmp_path / "named" / "78")


def test_an_earlier_jobs_directory_is_set_aside(fakes: Fakes, env: dict[str, str], tmp_path: Path) -> None:
    """A first start never resumes what an earlier job with the same id left; the job's own steps and restarts do."""
    checkpoints = tmp_path / ".hadar" / "77" / "checkpoints"
    checkpoints.mkdir(parents=True)
    (checkpoints / "foreign").touch()

    first = run(env, "--", "true")
    assert "was an earlier job's with the same id; moved to 77.before-" in first.stderr
    assert not checkpoints.exists() and len(list((tmp_path / ".hadar").glob("77.before-*/checkpoints/foreign"))) == 1

    (tmp_path / ".hadar" / "77" / "mine").touch()
    assert "earlier job" not in run(env, "--", "true").stderr
    fakes.install(submit="2026-11-20T11:11:11", restarts=1)  # Slurm changes the submit time when a job is requeued
    assert "earlier job" not in run({**env, "SLURM_RESTART_COUNT": "1"}, "--", "true").stderr
    assert (tmp_path / ".hadar" / "77" / "mine").exists()

    fakes.install(submit="2026-11-20T11:11:11")
    assert "earlier job" in run(env, "--", "true").stderr


@pytest.mark.parametrize(
    ("text", "age_s", "ours"), [("", 0, True), ("", 10**8, False), ("cut sho", 0, False)], ids=["empty", "old", "other"]
)
@pytest.mark.usefixtures("fakes")
def test_a_mark_that_a_full_disk_left_empty(
    env: dict[str, str], tmp_path: Path, text: str, age_s: int, ours: bool
) -> None:
    """Made after the job was submitted it is the job's own, whose first run Slurm has forgotten."""
    run(env, "--", "true")
    directory = tmp_path / ".hadar" / "77"
    kept = (directory / "owner").read_text()
    (directory / "owner").write_text(text)
    os.utime(directory / "owner", (time.time() - age_s,) * 2)
    (directory / "mine").touch()

    assert ("earlier job" not in run(env, "--", "true").stderr) is ours

    assert (directory / "mine").exists() is ours and (directory / "owner").read_text() == kept


def test_a_run_that_slurm_has_given_up_starts_nothing(fakes: Fakes, env: dict[str, str], tmp_path: Path) -> None:
    """A script whose node was lost goes on there; the job's next run, elsewhere, must find its directory as it is."""
    run(env, "--", "true")
    (tmp_path / ".hadar" / "77" / "mine").touch()
    started = len(fakes.calls("srun"))
    fakes.install(submit="2026-11-20T11:11:11", restarts=1)

    done = run(env, "--", "true")

    assert (done.returncode, len(fakes.calls("srun"))) == (143, started) and (
        tmp_path / ".hadar" / "77" / "mine"
    ).exists()
    assert done.stderr == "hadar: run 1 of job 77 is over, Slurm is at run 2: not started\n"

    run({**env, "SLURM_RESTART_COUNT": "2"}, "--", "true")  # a slurmctld that was killed may have lost a count
    assert len(fakes.calls("srun")) == started + 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
def test_where_another_users_directory_stands_the_job_has_one_beside_it(
    fakes: Fakes, env: dict[str, str], tmp_path: Path
) -> None:
    """All of the job's files: token, spool, and where copies meet; a line says so."""
    (tmp_path / ".hadar").mkdir()
    os.chown(tmp_path / ".hadar", 65534, -1)
    with_channel(env)
    env |= {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"}
    fakes.install(comment="hadar:fork=auto")

    done = run(env, "--", "true")

    home = tmp_path / f".hadar-{os.geteuid()}"
    seen = fakes.calls("srun")[0]["env"]
    assert (seen["HADAR_JOB_DIR"], seen["HADAR_SPOOL"]) == (str(home / "70_3"), str(home / "70_3" / "spool.jsonl"))
    assert seen["HADAR_FORK_DIR"].startswith(f"{home}/70/fork-")
    assert f"{tmp_path}/.hadar belongs to user nobody: this job's files go to {home}/70_3" in done.stderr
    assert not list((tmp_path / ".hadar").iterdir())


def test_a_comment_that_names_another_token(fakes: Fakes, env: dict[str, str]) -> None:
    """The job's own is named instead, and the log says that it was another."""
    with_channel(env)
    fakes.install(comment="hadar:key=0123456789abcdef")

    done = run(env, "--", "true")

    assert "the comment named another token (key=0123456789abcdef): it is replaced by this job's, key=" in done.stderr
    assert [c for c in fakes.calls("scontrol") if "update" in c["argv"]]


def test_a_token_that_others_may_have(fakes: Fakes, env: dict[str, str], tmp_path: Path) -> None:
    """Then there are no reports, a line says why, and the command runs."""
    with_channel(env)
    run(env, "--", "true")
    token = tmp_path / ".hadar" / "77" / messages.TOKEN_FILE
    token.chmod(0o644)

    done = run(env, "--", "true")

    assert done.returncode == 0 and "agent" not in " ".join(fakes.calls("srun")[-1]["argv"])
    assert f"no reports: {token} is not this job's token" in done.stderr


def test_files_that_are_called_as_modules_of_python(fakes: Fakes, env: dict[str, str], tmp_path: Path) -> None:
    """A training's own copy.py is no matter, to what starts the ranks as to their agents."""
    for name in ("copy", "queue", "random", "secrets", "socket"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the file of the training')\n")
    command = [str(WRAPPER), "--", "true"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and len(fakes.calls("srun")) == 1, done.stderr
    done = subprocess.run(launcher.agent_command(), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert "usage: " in done.stderr and "the file of the training" not in done.stderr
