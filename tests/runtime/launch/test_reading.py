"""What the launcher reads: the options of srun, what squeue says of a job, and lists of nodes."""

from pathlib import Path

import pytest

from slurm_hadar.runtime.launch.slurmctld import SEP, JobFacts, job_facts
from slurm_hadar.runtime.launch.srun_options import split_command, values, without
from slurm_hadar.runtime.tasks import nodelist


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


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("a", ["a"]),
        ("v100-[1-2,4],p100-1", ["v100-1", "v100-2", "v100-4", "p100-1"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("a[1-2]b[0,3]", ["a1b0", "a1b3", "a2b0", "a2b3"]),
    ],
)
def test_node_lists(text: str, names: list[str]) -> None:
    """Slurm's compact form is spelled out, zero-padding kept."""
    assert nodelist.expand(text) == names


@pytest.mark.parametrize("text", ["a[1", "a]1[", "a[x-y]", "a[1-2]]"])
def test_what_is_no_node_list_is_refused(text: str) -> None:
    """A cut or garbled list is an error, not a guess."""
    with pytest.raises(ValueError, match="Slurm node list"):
        nodelist.expand(text)
