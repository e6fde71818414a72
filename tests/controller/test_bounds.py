"""What a job draws of Slurm's limits grows and shrinks with the shape that it is given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slurm_hadar.controller.bounds import Bounds
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.model import Placement
from slurm_hadar.slurm import state
from slurm_hadar.slurm.state import ClusterState, Limit
from slurm_hadar.testing.fake_slurm import FakeSlurm

ONE = Placement.of({"a": {"v100": 1}})
FOUR = Placement.of({"a": {"v100": 2}, "b": {"v100": 2}})


def bounds(*limits: Limit) -> Bounds:
    return Bounds(ClusterState(0.0, bounds=state.Bounds(limits=limits)))


def a_job(nodes: int = 1, gpus: int = 1, cpus: int = 2) -> state.SlurmJob:
    """One of QOS q in the shape that it has now, with 1 GiB for each CPU."""
    slurm = FakeSlurm({"a": ("v100", 2)})
    job = slurm.jobs[slurm.submit(gpus)]
    return replace(job, qos="q", uid=7, num_nodes=nodes, num_cpus=cpus, memory_bytes=cpus << 30)


@pytest.mark.parametrize(("tasks", "workers", "nodes"), [(1, 1, 1), (2, 2, 1)])
@pytest.mark.parametrize(("what", "each"), [("cpu", 1), ("mem", 1 << 30)])
def test_cpus_and_memory_grow_with_the_job(tasks: int, workers: int, nodes: int, what: str, each: int) -> None:
    """With one task for each node they are each node's; with one for each GPU, each GPU's."""
    record = JobRecord("1", workers=workers, nodes=nodes, tasks=tasks, cpus=2 * tasks)
    scope = ("qos-user", "q", "7")

    (draw,) = bounds(Limit(scope, what, 100)).needs(a_job(), record).draws

    assert [draw.amount(p) / each for p in (ONE, FOUR)] == ([2, 4] if tasks == 1 else [2, 8])


def test_a_job_that_has_grown_may_keep_its_size() -> None:
    """What its owner may ask for is reckoned from what was asked for, not from what the job has become."""
    record = JobRecord("1", workers=1, nodes=1, tasks=1, cpus=2)
    grown, limits = a_job(nodes=2, gpus=4, cpus=4), bounds(Limit(("qos", "q"), "cpu", 4, each_job=True))

    assert limits.may_have(grown, record, 4, 2) and not limits.may_have(grown, record, 6, 3)
