"""Jobs that Slurm ends in the moment in which it has restarted them, on a Slurm in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.model import JobState
from slurm_hadar.service.accounts import write_entries
from tests.controller.scripted import MODEL, Scripted


def failed(b: Any, after_s: float = 0.0, restarts: int = 1, comment: str = MODEL) -> str:
    """A job whose run was lost on k80-1, and whose next one failed on v100-1 so long after its start."""
    job = b.slurm.submit(gpus=2, comment=comment)
    b.slurm.start(job, "k80-1")
    b.controller.run_round()
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], restarts=restarts)
    b.slurm.start(job, "v100-1")
    b.slurm.fail(job, after_s)
    return job


def restarts_of(b: Any) -> list[tuple[str, ...]]:
    return [w.job_ids for batch in b.slurm.batches for w in batch if w.verb == "restart"]


def test_it_is_started_once_more_and_not_there(bench: Any) -> None:
    """The journal tells why; what it has done so far counts; that node is not tried for a while."""
    b = bench()
    job = failed(b)
    controller = b.new_controller(policy=Scripted())

    result = controller.run_round()

    assert restarts_of(b) == [(job,)] and result.record.failed == 0
    assert b.slurm.jobs[job].state is JobState.PENDING and not result.seen.finished
    told = [(e["command"], e["outcome"], e["detail"]) for e in b.journal.history(job) if "command" in e]
    assert told == [(f"restart {job}", "ok", "it failed in the moment of a restart")]
    (entry,) = write_entries(1, result.seen, result.outcome)
    assert (entry["before"]["state"], entry["why"]) == ("FAILED", "it failed in the moment of a restart")

    waiting = controller.run_round().seen.snapshot.job[job]

    assert waiting.steerable and not waiting.form.admits_node("v100-1")


def test_it_is_tried_once(bench: Any) -> None:
    """Failed again, it is over, also for the next controller."""
    b = bench()
    job = failed(b)
    b.new_controller(policy=Scripted()).run_round()
    b.slurm.start(job, "v100-1")
    b.slurm.fail(job)

    result = b.new_controller(policy=Scripted()).run_round()

    assert restarts_of(b) == [(job,)]
    assert result.seen.finished == ((job, "FAILED"),)


def test_a_refusal_is_no_reason_to_try_again(bench: Any) -> None:
    """It is told once, and the job is over."""
    b = bench()
    job = failed(b)
    b.slurm.refuse[job] = "Requested operation is presently disabled"
    controller = b.new_controller(policy=Scripted())

    assert controller.run_round().record.failed == 1
    assert controller.run_round().seen.finished == ((job, "FAILED"),)
    assert restarts_of(b) == [(job,)]


@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ({"after_s": 3.0}, ()),
        ({"restarts": 0}, ()),
        ({"comment": f"{MODEL},pin=yes"}, ()),
        ({"comment": ""}, ()),
        ({}, ("controller.mode=advise",)),
        ({}, ("jobs.retry_failed_restart=false",)),
    ],
    ids=["it ran for longer", "its first run", "pinned", "not ours", "no acting", "switched off"],
)
def test_others_stay_failed(bench: Any, case: Any, settings: Any) -> None:
    """Scripts that fail by themselves, jobs that are not ours, and controllers that only look."""
    b = bench()
    job = failed(b, **case)

    result = b.new_controller(*settings, policy=Scripted()).run_round()

    assert restarts_of(b) == [] and (job, "FAILED") in result.seen.finished
