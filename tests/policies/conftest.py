"""What the policy tests share: small clusters and jobs with round numbers."""

from typing import Any

import pytest

from slurm_hadar.model import Form, Job, JobState, Node, Placement, Snapshot, Speed

NOW = 1000.0


def make_job(
    job_id: Any, workers: Any = 1, steps: Any = 1000.0, v100: Any = 10.0, p100: Any = 5.0, k80: Any = 1.0, **fields: Any
) -> Any:
    """A job that runs at 10, 5 and 1 steps/s unless said otherwise; a speed of None leaves the type out."""
    rates = {"v100": v100, "p100": p100, "k80": k80}
    form = fields.pop("form", Form(workers, max_nodes=4))
    speeds = {t: Speed(r, 0.8) for t, r in rates.items() if r is not None}
    fields.setdefault("arrival", NOW - 100 + int(job_id))
    return Job(job_id, form, total_steps=steps, speeds=speeds, **fields)


def make_running(job_id: Any, where: Any, **fields: Any) -> Any:
    """A job that runs on ``where``, a nested mapping."""
    placement = Placement.of(where)
    return make_job(job_id, placement.workers, placement=placement, state=JobState.RUNNING, **fields)


def make_snapshot(jobs: Any, nodes: Any = None, **fields: Any) -> Any:
    nodes = nodes or (Node("a", {"v100": 2}), Node("b", {"p100": 2}), Node("c", {"k80": 2}))
    return Snapshot(NOW, tuple(nodes), tuple(jobs), **fields)


@pytest.fixture
def job() -> Any:
    return make_job


@pytest.fixture
def running() -> Any:
    return make_running


@pytest.fixture
def snapshot() -> Any:
    return make_snapshot
