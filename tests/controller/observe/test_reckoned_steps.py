"""What a job must have done without telling, by which a false statement is known, and what does not count as that."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.model import Job
from slurm_hadar.testing.fake_slurm import FakeSlurm
from tests.controller.scripted import report

RAN_S = 3600.0


def begin(bench: Any, comment: str, **fields: Any) -> str:
    """A job that has run on v100-1 for an hour."""
    job: str = bench.slurm.submit(comment=f"hadar:model=resnet18,batch=64,ckpt=yes,{comment}", **fields)
    if fields.get("shares"):
        bench.slurm.jobs[job] = replace(bench.slurm.jobs[job], gpus=())
    bench.slurm.start(job, "v100-1")
    bench.slurm.jobs[job] = replace(bench.slurm.jobs[job], start=time.time() - RAN_S)
    return job


def look(bench: Any, job: str, controller: Any = None) -> Job:
    found = (controller or bench.new_controller()).run_round().seen.snapshot.job[job]
    assert isinstance(found, Job)
    return found


def alone_makes(bench: Any) -> float:
    """Steps that such a job makes in that hour with the GPU for itself."""
    probe = begin(bench, "steps=1")
    steps = RAN_S * (seen := look(bench, probe)).rate(seen.placement)
    bench.slurm.end(probe)
    return float(steps)


@pytest.fixture
def one(bench: Callable[..., Any]) -> Any:
    return bench({"v100-1": ("v100", 1)})


def test_who_shares_a_gpu_is_reckoned_with_its_part_of_it(one: Any) -> None:
    """Of four each has made a quarter of what it would have alone: by a true statement it has four fifths to go."""
    one.slurm = FakeSlurm({"v100-1": ("v100", 1)}, shards=4)
    alone = alone_makes(one)
    jobs = [begin(one, f"steps={alone / 4 * 1.25:.0f}", shares="shard:1") for _ in range(4)]

    seen = [look(one, job) for job in jobs]

    assert [job.reckoned_steps for job in seen] == [pytest.approx(alone / 4, rel=0.01)] * 4
    assert not any(job.overrun for job in seen) and seen[0].expected_steps == seen[0].total_steps


def test_steps_that_were_told_go_before_what_its_speed_allows(one: Any) -> None:
    """As of a training that also evaluates, or has company which nobody knows of: 1298 of 1500 leave 202."""
    job = begin(one, "steps=1500")
    controller = one.new_controller()
    for steps in (0, 1298):
        report(one, job, steps=steps)

    seen = look(one, job, controller)

    assert not seen.overrun and seen.expected_remaining_steps == 1500 - 1298
    one.book = ReportBook()  # as of a command that asks what the journal remembers
    assert look(one, job).expected_remaining_steps == 1500 - 1298
    assert alone_makes(one) > 3 * 1500


def test_who_tells_the_same_number_for_ever_has_told_nothing(one: Any) -> None:
    """``steps=1``, and none made in an hour, as it says."""
    job = begin(one, "steps=1")
    controller = one.new_controller()
    for _ in range(2):
        report(one, job, steps=0)

    assert look(one, job, controller).overrun


def test_a_statement_in_another_unit_than_the_report_is_overrun(one: Any) -> None:
    """A hundred epochs stated, 384 steps reported: it is expected to make as many again."""
    job = begin(one, "steps=100")
    controller = one.new_controller()
    for steps in (0, 384):
        report(one, job, steps=steps)

    seen = look(one, job, controller)

    assert seen.overrun and seen.expected_steps == pytest.approx(2 * 384, rel=0.01)


def test_a_run_is_not_reckoned_with_the_time_for_which_it_was_suspended(one: Any) -> None:
    """Slurm shows when it first began, also of one that has just gone on."""
    job = begin(one, "steps=1")
    controller = one.new_controller()
    before = look(one, job, controller).reckoned_steps
    one.slurm.suspend(job)
    look(one, job, controller)
    one.slurm.jobs[job] = replace(one.slurm.jobs[job], start=time.time() - 10 * RAN_S)
    one.slurm.resume(job)

    assert look(one, job, controller).reckoned_steps == pytest.approx(before, rel=0.05)


def test_another_run_is_reckoned_anew(one: Any) -> None:
    job = begin(one, "steps=1")
    controller = one.new_controller()
    look(one, job, controller)
    one.slurm.jobs[job] = replace(one.slurm.jobs[job], restarts=1, submit=time.time(), start=time.time())

    assert look(one, job, controller).reckoned_steps < 100


def test_a_run_that_an_older_version_has_begun_counts_from_its_start(one: Any) -> None:
    job = begin(one, "steps=1")
    before = look(one, job).reckoned_steps
    record = one.journal.load_jobs()[job]
    record.untold_s = None
    one.journal.save_jobs([record])

    assert look(one, job).reckoned_steps == pytest.approx(before, rel=0.01)
