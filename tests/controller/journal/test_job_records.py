"""The life of a job's record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slurm_hadar.controller.act.writer import PlannedWrite
from slurm_hadar.controller.journal import JobRecord, Purpose, Stage
from slurm_hadar.slurm.state import Write
from tests.controller.scripted import MODEL, Scripted

UPDATE = Write("update", ("1",))


def test_what_slurm_was_told_last_is_the_stage() -> None:
    """A lease, a placement, and a placement that was taken back; what is given back keeps its start time."""
    record = JobRecord("1")
    stages = [record.stage]

    PlannedWrite(UPDATE, Purpose.LEASE, defer_s=60.0).remember(record, 100.0, 101.0)
    stages.append(record.stage)
    assert record.deferred(160.0) and not record.steered

    PlannedWrite(UPDATE, Purpose.PLACE, defer_s=0.0).remember(record, 200.0, 201.0)
    stages.append(record.stage)
    assert record.steered

    PlannedWrite(UPDATE, Purpose.GIVE_BACK).remember(record, 300.0, 301.0)
    stages.append(record.stage)
    assert not record.steered and record.lease_low == 200.0
    assert stages == [Stage.NEW, Stage.DEFERRED, Stage.PLACED, Stage.DEFERRED]


def test_a_nudge_is_no_news() -> None:
    """Nor is what is put back into the queue; a release counts."""
    record = JobRecord("1")
    for purpose in (Purpose.NUDGE, Purpose.REQUEUE, Purpose.RESTART, Purpose.CANCEL):
        PlannedWrite(UPDATE, purpose).remember(record, 100.0, 101.0)
    assert record == JobRecord("1")
    PlannedWrite(Write("release", ("1",)), Purpose.RELEASE).remember(record, 100.0, 101.0)
    assert record.relaunched == 1


def test_the_stages_of_a_job_that_is_moved(bench: Callable[..., Any]) -> None:
    """From the first round that sees it to the last."""
    one = bench()
    job = one.slurm.submit(gpus=2, comment=f"{MODEL},lose=yes")
    policy = Scripted()
    controller = one.new_controller(policy=policy)
    stages = []

    def round_() -> None:
        controller.run_round()
        stages.append(one.journal.job(job).stage)

    round_()
    policy.where = Scripted(**{f"j{job}": {"v100-1": {"v100": 2}}}).where
    round_()
    round_()
    one.slurm.end(job)
    round_()

    assert stages == [Stage.DEFERRED, Stage.PLACED, Stage.RUNNING, Stage.OVER]
