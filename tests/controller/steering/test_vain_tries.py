"""Where jobs were placed in vain their like are not tried, nor on nodes that are no freer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.steering.vain_tries import VainTries
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import SlurmJob, SlurmNode
from slurm_hadar.testing.fake_slurm import FakeSlurm
from tests.controller.scripted import MODEL

TYPES = {"v1": "v100", "v2": "v100", "v3": "v100", "k1": "k80"}


def nodes(**used: int) -> list[SlurmNode]:
    """Nodes of four GPUs, of which so many are in use."""
    return [
        SlurmNode(name, gpus=((t, 4),), used=((t, used.get(name, 2)),), cpus=32, cpus_used=4 * used.get(name, 2))
        for name, t in TYPES.items()
    ]


@pytest.fixture
def job() -> SlurmJob:
    slurm = FakeSlurm({"v1": ("v100", 4)})
    return slurm.jobs[slurm.submit()]


def test_two_nodes_of_a_type_stand_for_all_that_are_no_freer(job: SlurmJob) -> None:
    """For the job and its like, until one of them has more room or time is up."""
    tries, record = VainTries(), JobRecord("1")
    tries.note(job, record, ["v1"], 100.0, 10.0)
    tries.look(nodes(), 101.0)
    assert tries.closed(job, record) == {"v1": 120.0}
    tries.note(job, record, ["v2"], 105.0, 10.0)
    tries.look(nodes(v3=1), 106.0)
    assert tries.closed(job, record) == {"v1": 145.0, "v2": 145.0}, "the emptier one is tried, and k80"
    tries.look(nodes(v3=3), 107.0)
    assert set(tries.closed(replace(job, job_id="9"), JobRecord("9"))) == {"v1", "v2", "v3"}
    assert not tries.closed(replace(job, user="bob"), record)
    assert not tries.closed(replace(job, state=JobState.RUNNING), record)

    tries.look(nodes(v2=1), 108.0)
    assert tries.closed(job, record) == {"v1": 145.0}, "who left v2 may have been in the way"
    tries.look(nodes(), 146.0)
    assert not tries.closed(job, record)


def test_a_gang_that_was_tried_once_tells_nothing_of_the_type(job: SlurmJob) -> None:
    """Which of its nodes it was nobody knows."""
    tries, record = VainTries(), JobRecord("1")
    tries.note(job, record, ["v1", "v2"], 100.0, 10.0)
    tries.look(nodes(), 101.0)

    assert set(tries.closed(job, record)) == {"v1", "v2"}


def test_tries_in_more_rounds_close_for_longer(job: SlurmJob) -> None:
    """Up to half an hour, or two long rounds; several of one round count once."""
    tries, record, now = VainTries(), JobRecord("1"), 0.0
    waits = []
    for name in ("v1", "v2", "k1"):
        for _ in range(2):
            tries.note(job, record, [name], now, 300.0)
        tries.look(nodes(), now)
        waits.append(tries.closed(job, record)[name] - now)
        now += 1.0

    assert waits == [600.0, 1200.0, 1800.0]
    tries.note(job, record, ["v1"], now, 3600.0)
    tries.look(nodes(), now)
    assert tries.closed(job, record)["v1"] == now + 7200.0


class Odd(FakeSlurm):
    """A Slurm that starts nobody on a v100, and does not tell why."""

    def has_room(self, job: SlurmJob, name: str, now: float) -> bool:
        return not name.startswith("v") and super().has_room(job, name, now)

    def _try(self, job: SlurmJob, now: float) -> None:
        super()._try(job, now)
        if self.jobs[job.job_id].state is JobState.PENDING:
            self.jobs[job.job_id] = replace(job, reason="ReqNodeNotAvail, UnavailableNodes:")


@pytest.mark.parametrize("waiting", [1, 4])
def test_what_is_tried_in_vain_on_the_fastest_type_leads_to_the_next(bench: Any, poll: Any, waiting: int) -> None:
    """However many nodes of it have free GPUs, and whatever keeps jobs from them."""
    b = bench()
    b.slurm = Odd({**{f"v{i}": ("v100", 4) for i in range(20)}, "k1": ("k80", 4)})
    jobs = [b.slurm.submit(1, MODEL) for _ in range(waiting)]
    controller = b.new_controller("policy.name=hadar", "controller.round_s=1")
    failed = []

    def all_run() -> bool:
        failed.append(controller.run_round().record.failed > 0)
        return all(b.slurm.jobs[j].state is JobState.RUNNING for j in jobs)

    poll(all_run, 10)
    assert {b.slurm.jobs[j].nodes for j in jobs} == {("k1",)} and sum(failed) <= 2
