"""When a command that has failed puts its job back, and when not; squeue and scontrol are played by scripts."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_hadar.runtime.launch import retry

ROOT = Path(__file__).resolve().parents[3]
# the agent, which here does not wait a whole second for an end from outside
AGENT = (
    "import sys; from slurm_hadar.runtime.launch import retry; retry._HEAR_S = 0.3; "
    "from slurm_hadar.runtime.agent import main; sys.exit(main())"
)


@pytest.fixture
def env(job_env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """A task of a job that asks for two retries, and a Slurm that takes it back."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, text in (("squeue", "echo RUNNING"), ("scontrol", f'echo "$@" >> {tmp_path}/told; kill $PPID')):
        (bin_ / name).write_text(f"#!/bin/sh\n{text}\n")
        (bin_ / name).chmod(0o755)
    job_env |= {"PATH": f"{bin_}:{job_env['PATH']}", "HADAR_RETRY": "2", "HADAR_JOB_ID": "77", "HADAR_UNHEARD": "1"}
    return job_env


def agent(env: dict[str, str], script: str, run: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AGENT, "--", "sh", "-c", script]
    run_env = {**env, "SLURM_RESTART_COUNT": str(run)}
    return subprocess.run(command, env=run_env, capture_output=True, text=True, timeout=300)


def told(tmp_path: Path) -> list[str]:
    return (tmp_path / "told").read_text().splitlines() if (tmp_path / "told").exists() else []


def test_so_often_and_no_more(env: dict[str, str], tmp_path: Path) -> None:
    """Counted in the job's own directory, told in its output; the exit code stays the command's."""
    for run, words in enumerate(("retry 1 of 2", "retry 2 of 2", "retry=2 in the job's comment is used up")):
        done = agent(env, "exit 3", run)
        assert done.returncode == 3 and words in done.stderr, done.stderr
        assert retry.failure_before({**env, "SLURM_RESTART_COUNT": str(run + 1)}) == 3
    assert told(tmp_path) == ["requeue incomplete 77"] * 2


def test_what_its_owner_wants_squeue_to_show_is_no_matter(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "squeue").write_text('#!/bin/sh\n[ -n "$SQUEUE_PARTITION" ] || echo RUNNING\n')
    agent(env | {"SQUEUE_PARTITION": "gpu"}, "exit 3")
    assert told(tmp_path) == ["requeue incomplete 77"]


@pytest.mark.parametrize(
    "script",
    ["exit 0", "exit 137", "exit 143", "kill -TERM $PPID; sleep 5; exit 1", "kill -KILL $$"],
    ids=["well", "killed for memory", "told to end", "the agent told to end", "killed"],
)
def test_what_ends_from_outside_is_not_retried(env: dict[str, str], tmp_path: Path, script: str) -> None:
    agent(env, script)

    assert told(tmp_path) == []


def test_a_heterogeneous_job_is_put_back_as_a_whole(env: dict[str, str], tmp_path: Path) -> None:
    """Of one with two parts squeue has a line for each."""
    (tmp_path / "bin" / "squeue").write_text("#!/bin/sh\necho RUNNING; echo RUNNING\n")

    assert "retry 1 of 2" in agent(env, "exit 3").stderr and told(tmp_path) == ["requeue incomplete 77"]


@pytest.mark.parametrize("shown", ["echo CANCELLED", "echo COMPLETING", "echo RUNNING; echo CANCELLED", "exit 1", ":"])
def test_a_job_that_does_not_run_is_not_put_back(env: dict[str, str], tmp_path: Path, shown: str) -> None:
    """A cancellation may reach the command first."""
    (tmp_path / "bin" / "squeue").write_text(f"#!/bin/sh\n{shown}\n")

    assert agent(env, "exit 3").returncode == 3 and told(tmp_path) == []


def test_a_refusal_is_told(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin" / "scontrol").write_text(
        "#!/bin/sh\necho Requested operation is presently disabled >&2; exit 1\n"
    )

    done = agent(env, "exit 3")

    assert done.returncode == 3 and "not retried: Slurm does not put the job back: Requested operation" in done.stderr


def test_one_of_several_tasks_gets_the_number(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", env["PATH"])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        assert (retry.claim(3, env), retry.claim(3, env), retry.claim(0, env)) == (1, 0, 0)
        assert retry.claim(3, {**env, "SLURM_RESTART_COUNT": "1"}) == 2
        assert retry.claim(3, {k: v for k, v in env.items() if k != "HADAR_RETRY"}) == 0
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_failure_that_cannot_be_noted_is_passed_on(env: dict[str, str], tmp_path: Path) -> None:
    """On a full disk, say: the exit code is the command's, nothing is counted, and the job is not put back."""
    full = (
        "import errno, os\n"
        "def write(descriptor, data, real=os.write):\n"
        "    if data == b'37\\n': raise OSError(errno.ENOSPC, 'No space left on device')\n"
        "    return real(descriptor, data)\n"
        "os.write = write\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", full + AGENT, "--", "sh", "-c", "exit 37"],
        env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert done.returncode == 37 and "failures cannot be counted" in done.stderr and "Traceback" not in done.stderr
    assert told(tmp_path) == [] and not list(tmp_path.rglob("failed-*"))
