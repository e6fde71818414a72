"""Commands of Slurm that fail, hang or answer nonsense: the right error in one line, and nothing half done."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm_hadar.cluster import PrivateCluster
from slurm_hadar.errors import SlurmError, SlurmHidden, SlurmParseError, SlurmSilent, SlurmUnavailable
from slurm_hadar.slurm.backend.cli import CliBackend
from slurm_hadar.slurm.state import Write

pytestmark = pytest.mark.slurm

FAKES: dict[str, tuple[str, type[SlurmError], str]] = {
    "garbage": ("head -c 4096 /dev/urandom | tr -d '\\0'", SlurmParseError, "cut short"),
    "an error": ("echo 'squeue: error: who are you' >&2; exit 1", SlurmError, "failed: squeue: error: who are you"),
    "hidden": ("echo 'slurm_load_node: Access/permission denied' >&2; exit 1", SlurmHidden, "denied; PrivateData in"),
    "silent failure": ("exit 3", SlurmError, "no reason given"),
    "away": ("echo 'error: Unable to contact slurm controller' >&2; exit 1", SlurmUnavailable, "does not answer"),
    "hangs": ("echo 'error: retrying' >&2; exec sleep 600", SlurmSilent, r"within 1 s \(error: retrying\)"),
    "fatal": ("echo 'error: no file' >&2; echo 'fatal: no source' >&2; exit 1", SlurmError, "failed: fatal: no source"),
    "cut": ('{real} "$@" | head -c 100', SlurmParseError, "cut short"),
    "killed": ("kill -9 $$", SlurmError, "failed"),
}


@pytest.mark.parametrize("fake", FAKES)
@pytest.mark.parametrize("command", ["squeue", "sinfo"])
def test_commands_that_misbehave(fake: str, command: str, slurm_cluster: PrivateCluster, short_tmp: Path) -> None:
    """Whatever a command does wrong is the right error in one line, never half an answer."""
    slurm_cluster.run(["sbatch", "--hold", "-o", "/dev/null", "--wrap", "true"], cwd=Path("/tmp"))
    script, error, words = FAKES[fake]
    _fake(short_tmp, command, script.replace("{real}", slurm_cluster.install.program(command)))
    env = {**slurm_cluster.env, "PATH": f"{short_tmp}:{slurm_cluster.env['PATH']}"}

    with pytest.raises(SlurmError, match=words) as caught:
        CliBackend(1.0, 0, env).read()

    assert type(caught.value) is error and "\n" not in str(caught.value)


def test_who_did_not_answer_in_time_is_not_asked_again(short_tmp: Path) -> None:
    """Somebody waits for it; who is turned away at once is."""
    asked = short_tmp / "asked"
    for end in ("exec sleep 600", "echo 'Unable to contact slurm controller' >&2; exit 1"):
        _fake(short_tmp, "sdiag", f"echo >> {asked}; {end}")
        with pytest.raises(SlurmUnavailable):
            CliBackend(1.0, 1, {"PATH": f"{short_tmp}:/usr/bin:/bin"}).ask("sdiag")

    assert asked.read_text() == "\n" * 3


@pytest.mark.parametrize(
    ("script", "complaint"),
    [
        ("exit 1", "scontrol ended with 1 and gave no reason"),
        ("kill -9 $$", "scontrol ended with -9 and gave no reason"),
        ("echo 'no such luck' >&2; exit 1", "no such luck"),
    ],
)
def test_a_failed_batch_is_no_success(
    script: str, complaint: str, slurm_cluster: PrivateCluster, short_tmp: Path
) -> None:
    """A scontrol that fails without naming a job has refused all of them."""
    _fake(short_tmp, "scontrol", script)
    env = {**slurm_cluster.env, "PATH": f"{short_tmp}:{slurm_cluster.env['PATH']}"}

    results = CliBackend(5.0, 0, env).write([Write("requeue", ("999991", "999992")), Write("release", ("999993",))])

    assert [r.error for r in results] == [complaint] * 3


def test_each_job_that_may_not_be_ended_is_named(slurm_cluster: PrivateCluster, short_tmp: Path) -> None:
    """Another user's; and where scancel gives up, all of them."""
    words = ["sbatch", "--parsable", "--hold", "-o", "/dev/null", "--wrap", "true"]
    job = slurm_cluster.run(words, cwd=Path("/tmp")).stdout.strip()
    nobody = f"exec setpriv --reuid=65534 --regid=65534 --clear-groups {slurm_cluster.install.program('scancel')}"
    for script, error in ((f'{nobody} "$@"', "Access/permission denied"), ("echo 'no luck' >&2; exit 1", "no luck")):
        _fake(short_tmp, "scancel", script)
        env = {**slurm_cluster.env, "PATH": f"{short_tmp}:{slurm_cluster.env['PATH']}"}

        (result,) = CliBackend(5.0, 0, env).cancel([job])

        assert result.error == error

    assert CliBackend(5.0, 0, slurm_cluster.env).cancel([job])[0].error is None


def _fake(folder: Path, command: str, script: str) -> None:
    path = folder / command
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_line_that_is_always_there_is_no_failure(slurm_cluster: PrivateCluster, short_tmp: Path) -> None:
    """Neither of what is written, nor the reason why something else fails."""
    real, line = slurm_cluster.install.program("scontrol"), "scontrol: error: Ignoring ControlMachine"
    _fake(short_tmp, "scontrol", f'echo "{line}" >&2; exec {real} "$@"')
    env = {**slurm_cluster.env, "PATH": f"{short_tmp}:{slurm_cluster.env['PATH']}"}
    submitted = slurm_cluster.run(["sbatch", "--parsable", "--hold", "-o", "/dev/null", "--wrap", "true"])
    job, backend = submitted.stdout.strip(), CliBackend(5.0, 0, env)
    backend.cluster_name()

    results = backend.write([Write("update", (job, "999999"), (("StartTime", "now+60"),)), Write("release", (job,))])

    assert [r.error for r in results] == [None, "Invalid job id specified", None]
    assert backend.noise("scontrol") == {"Ignoring ControlMachine"}
    with pytest.raises(SlurmError, match="failed: slurm_load_jobs"):
        backend.ask("scontrol", "show", "job", "999999")
    assert backend.write([Write("update", (job,), (("StartTime", "now+90"),))])[0].error is None


def test_hidden_partitions_are_read(slurm_cluster: PrivateCluster, short_tmp: Path) -> None:
    """Who may not use one, or for whom it is hidden, may have jobs there all the same."""
    for command in ("squeue", "sinfo", "scontrol"):
        real = slurm_cluster.install.program(command)
        _fake(short_tmp, command, f'echo {command} "$@" >> {short_tmp}/asked; exec {real} "$@"')
    env = {**slurm_cluster.env, "PATH": f"{short_tmp}:{slurm_cluster.env['PATH']}"}

    CliBackend(5.0, 0, env).read()

    asked = (short_tmp / "asked").read_text().splitlines()
    reads = [line for line in asked if " -h " in f"{line} " or line.startswith("scontrol -")]
    assert {line.split()[0] for line in reads} == {"squeue", "sinfo", "scontrol"}
    assert all(" --all " in line or " -a " in line or "nobody-calls" in line for line in reads)
