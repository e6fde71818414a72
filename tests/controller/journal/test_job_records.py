"""The life of a job's record."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.act.writer import PlannedWrite
from slurm_hadar.controller.journal import JobRecord, Purpose, Stage
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import GpuRequest, Write
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


def test_how_long_a_job_ran_does_not_depend_on_how_many_gpus_it_had(bench: Callable[..., Any]) -> None:
    """An elastic job that is made larger has used more GPU time, and no more of its ``max_time=``."""
    one = bench()
    job = one.slurm.submit(gpus=1, comment=f"{MODEL},gpus=1-4,max_time=10m")
    controller = one.new_controller(policy=Scripted())
    controller.run_round()
    grown = (GpuRequest("node", (("", 4),)),)
    one.slurm.start(job, "v100-1")
    one.slurm.jobs[job] = replace(one.slurm.jobs[job], gpus=grown, start=time.time() - 120.0)
    controller.run_round()

    record = one.journal.job(job)
    assert record.attained_s == pytest.approx(480.0, abs=20.0)
    assert record.ran_in_all_s == pytest.approx(120.0, abs=5.0)


def test_a_record_without_the_time_that_a_job_ran_goes_on_from_its_gpu_time() -> None:
    """As an older version has written it."""
    record = JobRecord("1", workers=2, attained_s=200.0)
    assert record.ran_in_all_s == 100.0
    record.serve(60.0, 8)
    assert (record.ran_in_all_s, record.attained_s) == (160.0, 680.0)


@pytest.mark.parametrize(("anew", "owner"), [(False, "alice"), (True, "alice"), (False, "bob")])
def test_a_job_that_was_over_goes_on_when_it_is_put_back(bench: Callable[..., Any], anew: bool, owner: str) -> None:
    """As long as Slurm shows a job that is over it can be requeued; also by a controller that was started since. A job
    of another user with the same number is another one."""
    one = bench()
    job = one.slurm.submit(gpus=2, comment=MODEL)
    controller = one.new_controller(policy=Scripted())
    one.slurm.start(job, "v100-1")
    one.slurm.jobs[job] = replace(one.slurm.jobs[job], start=time.time() - 100.0)
    controller.run_round()
    one.slurm.end(job)
    controller.run_round()
    first = one.journal.job(job)
    assert first.ended is not None and first.attained_s > 190.0

    later = time.time() + 60.0
    put_back = replace(one.slurm.jobs[job], state=JobState.PENDING, state_text="PENDING", restarts=1, submit=later)
    one.slurm.jobs[job] = replace(put_back, user=owner)
    (one.new_controller(policy=Scripted()) if anew else controller).run_round()

    record = one.journal.job(job)
    assert record.ended is None and record.final == "" and record.restarts == 1
    goes_on = owner == "alice"
    assert (record.arrival == first.arrival, record.attained_s > 190.0) == (goes_on, goes_on)
    assert ("run 2 from the beginning" in str(one.journal.history(job))) == goes_on
