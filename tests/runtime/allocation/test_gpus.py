"""What a job has, by what Slurm prints of it."""

from __future__ import annotations

import pytest

from slurm_hadar.errors import AllocationLost
from slurm_hadar.runtime.allocation.gpus import check_ours, gpus_in


def test_the_gpus_of_an_allocation() -> None:
    """As Slurm 22.05 prints them: of two types on one node, and alike on two."""
    text = """
   NumNodes=3 NumCPUs=8
     Nodes=both CPU_IDs=0-1,4 Mem=100 GRES=gpu:v100:2(IDX:0-1),gpu:k80:1(IDX:2)
     Nodes=n[1-2] CPU_IDs=0 Mem=100 GRES=gpu:p100:4(IDX:0-3)
   MinCPUsNode=1
"""
    found = [(g.node, g.gpu_type, g.gpus, g.cpus, g.on_node) for g in gpus_in(text)]
    assert found == [
        ("both", "v100", (0, 1), 3, 3),
        ("both", "k80", (2,), 3, 3),
        ("n1", "p100", (0, 1, 2, 3), 1, 4),
        ("n2", "p100", (0, 1, 2, 3), 1, 4),
    ]


@pytest.mark.parametrize(
    ("state", "restarts", "why"),
    [("PENDING", 1, "anew"), ("RUNNING", 2, "anew"), ("CANCELLED", 1, "anew"), ("CANCELLED", 0, "is CANCELLED"),
     ("NODE_FAIL", 0, "is NODE_FAIL")],
)  # fmt: skip
def test_a_job_that_is_not_ours_any_more(state: str, restarts: int, why: str) -> None:
    with pytest.raises(AllocationLost, match=why):
        check_ours(f"   JobState={state} Reason=None\n   Requeue=1 Restarts={restarts} BatchFlag=1", "7", 0)


@pytest.mark.parametrize("state", ["RUNNING", "COMPLETING", "SUSPENDED", "RESIZING", "SIGNALING"])
def test_a_job_that_is_ours(state: str) -> None:
    check_ours(f"   JobState={state} Reason=None\n   Requeue=1 Restarts=3 BatchFlag=1", "7", 3)
    check_ours("", "7", 3)
