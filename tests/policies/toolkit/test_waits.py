"""Why jobs wait, in words."""

from __future__ import annotations

from slurm_hadar.model import Form, Job, JobState, Node, Placement, Snapshot, Speed
from slurm_hadar.policies import registry


def test_a_reason_that_several_jobs_have_is_said_once() -> None:
    """Of those who hold the GPUs that a job waits for."""
    nodes = (Node("a", {"v100": 2}), Node("b", {"v100": 2}))
    speeds, keeps = {"v100": Speed(1.0)}, "has no checkpoint support"
    running = [
        Job(name, Form(2, 1, 1), speeds=speeds, state=JobState.RUNNING, started=0.0, unmovable=keeps,
            placement=Placement.of({node: {"v100": 2}}))
        for name, node in (("1", "a"), ("2", "b"))
    ]  # fmt: skip
    waiting = Job("3", Form(2, 1, 1), speeds=speeds)

    plan = registry.get("fifo").allocate(Snapshot(10.0, nodes, (*running, waiting)))

    assert f"1 ({keeps}), 2 (likewise)" in plan.waits["3"].why.replace(" and ", ", ")
