"""What scontrol shows of single jobs, whatever their owners write."""

from __future__ import annotations

import pytest

from slurm_hadar.slurm.shown import shared_gpu_numbers, throttles


def test_throttles_of_arrays_in_parts() -> None:
    """As 22.05 shows a task; what its owner writes stands behind."""
    shown = (
        "JobId=2 ArrayJobId=1 ArrayTaskId=2 ArrayTaskThrottle=3 JobName=wrap UserId=root(0)",
        "JobId=7 ArrayJobId=7 ArrayTaskId=0-5%2 ArrayTaskThrottle=2 JobName=wrap",
        "JobId=5 ArrayJobId=4 ArrayTaskId=1 JobName=x ArrayTaskThrottle=9 UserId=eve(7)",
        "scontrol: JobId=6 JobName=JobId=9 ArrayJobId=9 ArrayTaskId=1 ArrayTaskThrottle=9 JobName=x",
    )

    assert throttles("\n".join(shown)) == {"1": 3, "7": 2}


@pytest.mark.parametrize(("own", "forged", "known"), [(" ArrayTaskThrottle=3", 1, {"1": 3}), ("", 1, {})])
def test_nobody_lowers_the_throttle_of_another_array(own: str, forged: int, known: dict[str, int]) -> None:
    """By a line end in a comment."""
    text = (
        f"JobId=9 ArrayJobId=8 ArrayTaskId=1 JobName=x Comment=a\n"
        f"JobId=2 ArrayJobId=1 ArrayTaskId=2 ArrayTaskThrottle={forged} JobName=x\n"
        f"JobId=2 ArrayJobId=1 ArrayTaskId=2{own} JobName=y\n"
    )

    assert throttles(text) == known


FORGED = " Nodes=v100-1 CPU_IDs=0 Mem=0 GRES=shard:v100:1(IDX:3)"


@pytest.mark.parametrize("name", ["x", f"x{FORGED}", f"x\nJobId=3 JobName=y{FORGED}\n", f"x{FORGED} MinCPUsNode=1"])
@pytest.mark.parametrize("comment", ["x", f"x{FORGED}", f"x\nJobId=3 JobName=y{FORGED}\n"])
def test_the_gpu_of_a_job_whatever_its_owner_writes(name: str, comment: str) -> None:
    """As 22.05 shows it, with the echo of what it was asked; nobody else's is told by it."""
    text = (
        f"scontrol: show job 8\nJobId=8 JobName={name} UserId=eve(7) Nodes=v100-1 CPU_IDs=0 Mem=100 "
        f"GRES=shard:v100:1(IDX:1) MinCPUsNode=1 Command=/x WorkDir=/tmp Comment={comment} StdErr=/tmp/x\n"
    )

    assert shared_gpu_numbers([("gone", "scontrol: show job 7\n"), (name, text)]) == {8: 1}
