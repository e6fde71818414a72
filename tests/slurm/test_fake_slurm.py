"""The Slurm in memory keeps jobs waiting for what stock Slurm does, with its reasons."""

from __future__ import annotations

import time
from typing import Any

import pytest

from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import Reservation, Write
from slurm_hadar.testing.fake_slurm import FakeSlurm


def fake() -> FakeSlurm:
    """Two nodes of two GPUs, a limit of each kind."""
    slurm = FakeSlurm({"v100-1": ("v100", 2), "v100-2": ("v100", 2)}, eager=True)
    slurm.limits.qos_gpus, slurm.limits.account_gpus = {"one": 1}, {"small": 1}
    slurm.limits.licences = {"tool": 1}
    slurm.limits.throttles = {"9": 1}
    now = time.time()
    slurm.limits.reservations = {"later": Reservation("later", frozenset({"v100-2"}), now + 1000, now + 2000)}
    return slurm


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"qos": "one", "uid": 7}, "QOSMaxGRESPerUser"),
        ({"account": "small"}, "AssocGrpGRES"),
        ({"licenses": "tool:1"}, "Licenses"),
        ({"array_id": "9"}, "JobArrayTaskLimit"),
        ({"exclusive": True, "exc_nodes": ("v100-2",)}, "Resources"),
    ],
)
def test_a_limit_lets_one_through(fields: dict[str, Any], reason: str) -> None:
    """The second job of a kind waits, with Slurm's own word, though GPUs are free."""
    slurm = fake()
    first, second = (slurm.submit(**{"time_limit_s": 60.0, **fields}) for _ in range(2))

    slurm.read()

    assert slurm.jobs[first].state is JobState.RUNNING
    assert (slurm.jobs[second].state, slurm.jobs[second].reason) == (JobState.PENDING, reason)


def test_limits_are_told() -> None:
    """A read shows what is in use of each limit; where Slurm may not be asked, nothing."""
    slurm = fake()
    slurm.submit(qos="one", uid=7, licenses="tool:1")
    slurm.read()

    bounds = slurm.read().bounds

    limit = next(b for b in bounds.limits if b.scope == ("qos-user", "one", "7"))
    assert (limit.most, limit.used, bounds.licences["tool"].free) == (1, 1, 0)
    slurm.tells_limits = False
    assert slurm.read().bounds.limits == ()


def test_reservations() -> None:
    """A reservation that has not begun keeps its own jobs waiting; once it has, it keeps others away."""
    slurm = fake()
    own = slurm.submit(reservation="later")
    slurm.read()
    assert slurm.jobs[own].reason == "Reservation"

    slurm.limits.reservations["later"] = Reservation("later", frozenset({"v100-2"}), 0.0, time.time() + 1000)
    other = slurm.submit(req_nodes=("v100-2",))
    slurm.read()

    assert slurm.jobs[own].nodes == ("v100-2",)
    assert slurm.jobs[other].reason == "ReqNodeNotAvail, May be reserved for other job"


def test_an_excluded_node_in_a_node_list() -> None:
    """Slurm takes the update, and then sets the job aside."""
    slurm = fake()
    job = slurm.submit(exc_nodes=("v100-1",), eligible=time.time() + 100)

    slurm.write([Write("update", (job,), (("NodeList", "v100-1"), ("StartTime", "now")))])
    slurm.read()

    assert (slurm.jobs[job].reason, slurm.jobs[job].held) == ("BadConstraints", True)


def test_held_and_suspended() -> None:
    """A held job does not start, whatever is written; a suspended one keeps its GPUs."""
    slurm = fake()
    held, other = slurm.submit(), slurm.submit(2, time_limit_s=60.0)
    slurm.hold(held, admin=True)
    slurm.write([Write("update", (held,), (("StartTime", "now"),))])
    slurm.read()
    slurm.suspend(other)

    assert (slurm.jobs[held].state, slurm.jobs[held].reason) == (JobState.PENDING, "JobHeldAdmin")
    assert sum(slurm.used(n) for n in slurm.nodes) == 2


def test_words_of_refusal() -> None:
    """As scontrol says them."""
    slurm = fake()
    over, running = slurm.submit(), slurm.submit()
    slurm.read()
    slurm.end(over)
    later = (("StartTime", "now+10"),)

    results = slurm.write([Write("update", (over, running, "77"), later)])

    assert [r.error for r in results] == [
        "Job has already finished",
        "Job is no longer pending execution",
        "Invalid job id specified",
    ]
    assert all(r.overtaken for r in results)
