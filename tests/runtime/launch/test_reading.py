"""What the launcher reads: the options of srun, and what squeue says of a job."""

from pathlib import Path

import pytest

from slurm_hadar.runtime.launch.slurmctld import SEP, JobFacts, job_facts
from slurm_hadar.runtime.launch.srun_options import split_command, values, without


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["true"], []),
        (["-n", "4", "true"], ["-n", "4"]),
        (["-n4", "--label", "true", "-n"], ["-n4", "--label"]),
        (["-ln", "4", "true"], ["-ln", "4"]),
        (["-K1", "--mem", "4G", "true"], ["-K1", "--mem", "4G"]),
        (["--exclusive", "-u", "--nodes=2", "true", "--", "x"], ["--exclusive", "-u", "--nodes=2"]),
        (
            ["--container-image", "a.sqsh", "--container-mount-home", "true"],
            ["--container-image", "a.sqsh", "--container-mount-home"],
        ),
        (["--oom-kill-step", "true", "x"], ["--oom-kill-step"]),
        (["--compress", "true", "x"], ["--compress"]),
        (["--external-launcher", "true", "x"], ["--external-launcher"]),
        (["--of-a-plugin", "-n", "2", "true"], ["--of-a-plugin", "-n", "2"]),
    ],
)
def test_the_command_is_found_without_dashes(arguments: list[str], options: list[str]) -> None:
    """Without ``--`` the command begins where srun would see it begin."""
    assert split_command(arguments) == (options, arguments[len(options) :])


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        (["--ntasks-per-n=1"], ["--ntasks-per-node=1"]),
        (["--ntasks-per-n", "1"], ["--ntasks-per-node", "1"]),
        (["--tasks-per-node=1"], ["--ntasks-per-node=1"]),
        (["--het-g=0", "--overl"], ["--het-group=0", "--overlap"]),
        (["--lab", "-n2"], ["--label", "-n2"]),
        (["--wait=5", "--mem", "4G"], ["--wait=5", "--mem", "4G"]),  # though others begin so
        (["--node=1"], ["--node=1"]),  # srun refuses it: three begin so
        (["--of-a-later-slurm=1"], ["--of-a-later-slurm=1"]),
        (["--container=x", "--no-container-mount-home"], ["--container=x", "--no-container-mount-home"]),
    ],
)
def test_options_may_be_shortened_as_for_srun(given: list[str], meant: list[str]) -> None:
    for rest in (["true", "--lab"], ["--", "--lab", "true"]):
        assert split_command([*given, *rest]) == (meant, rest[rest[0] == "--" :])


def test_what_a_plugin_adds_is_no_reason_to_lose_the_command() -> None:
    """Nobody here knows whether such an option takes a value; what begins with a dash is none."""
    options, command = split_command(["--of-a-plugin", "--", "python", "train.py"])
    assert (options, command) == (["--of-a-plugin"], ["python", "train.py"])
    assert dict(values([*options, "-N", "2", "--of-another", "x"])) == {
        "of-a-plugin": "", "nodes": "2", "of-another": "x",
    }  # fmt: skip
    assert without(["--of-a-plugin", "-N", "2"], ("nodes",)) == ["--of-a-plugin"]


def test_options_are_read_as_srun_reads_them() -> None:
    words = ["-lN2", "-n", "8", "--ntasks-per-node", "4", "--exclusive", "-K", "--mem=5", "-t5", "-m", "block"]
    assert list(values(words)) == [
        ("l", ""),
        ("nodes", "2"),
        ("ntasks", "8"),
        ("ntasks-per-node", "4"),
        ("exclusive", ""),
        ("K", ""),
        ("mem", "5"),
        ("t", "5"),
        ("distribution", "block"),
    ]
    assert without(words, ["ntasks-per-node", "mem"]) == ["-lN2", "-n", "8", "--exclusive", "-K", "-t5", "-m", "block"]
    assert without(["-N", "2", "-N2", "--nodes=2", "--nodes", "2", "-n", "8"], ["nodes"]) == ["-n", "8"]


@pytest.mark.parametrize(
    ("shown", "facts"),
    [
        ("1 |when |8 |N/A|/a b |hadar:model=x |", JobFacts(1, "when", 8, False, Path("/a b"), "hadar:model=x")),
        ("0|when|1|gres:gpu:1|/w", JobFacts(0, "when", 1, False, Path("/w"), "")),
        ("0|when|1||/w|hadar:|\n0|when|1||/w|other|", JobFacts(0, "when", 1, False, Path("/w"), "hadar:")),
        ("0|when|1||/w|two\nlines|", JobFacts(0, "when", 1, False, Path("/w"), "two\nlines")),
        ("0|when|1|gres:shard:v100:1|/w|", JobFacts(0, "when", 1, True, Path("/w"), "")),
        ("0|when|1|gres/shard:2|/w|", JobFacts(0, "when", 1, True, Path("/w"), "")),
        ("N/A|when|||/w||", None),
        ("", None),
        (None, None),
    ],
    ids=["all", "no comment", "heterogeneous", "lines", "shards", "shards of 24.11", "no count", "nothing", "failed"],
)
def test_what_squeue_says_of_the_job(shown: str | None, facts: JobFacts | None) -> None:
    """All in one call; the leader's of a heterogeneous job; nothing where Slurm does not tell."""
    assert job_facts("77", lambda _command: shown and shown.replace("|", SEP).strip()) == facts
