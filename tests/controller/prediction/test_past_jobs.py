"""Slurm's jobs as a predictor sees them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.prediction.past_jobs import history_of_accounting, history_of_journal, submission_of
from slurm_hadar.errors import SlurmError
from slurm_hadar.slurm.accounting import AccountedJob
from slurm_hadar.testing.fake_slurm import FakeSlurm
from slurm_hadar.throughput.estimator import Estimator
from slurm_hadar.throughput.table import reference

TYPES = ("k80", "v100")
ESTIMATOR = Estimator(reference())


def accounted(job_id: str, **what: Any) -> AccountedJob:
    fields = {"submit": 100.0, "elapsed_s": 50.0, "state": "COMPLETED", "gpus": {"k80": 2}, "start": 110.0,
              "end": 160.0, "user": "ann", "name": "train"}  # fmt: skip
    return AccountedJob(job_id, **{**fields, **what})


def test_work_is_time_times_speed() -> None:
    """So that runs on a fast and on a slow type can be compared."""
    comment = "hadar:model=resnet18,batch=64"
    slow, fast = accounted("1", comment=comment), accounted("2", comment=comment, gpus={"v100": 2})
    (a, b), told = history_of_accounting([slow, fast], ESTIMATOR, TYPES)

    speeds = ESTIMATOR.speeds("resnet18", 64, 2, TYPES)
    assert a.steps == pytest.approx(50 * speeds["k80"].steps_per_s) and b.alone_s == pytest.approx(50)
    assert a.alone_s < 50 and a.steps_per_s == b.steps_per_s == speeds["v100"].steps_per_s
    assert (a.submit, a.start, a.end, a.gpus, a.model, a.batch) == (100, 110, 160, 2, "resnet18", 64)
    assert a.series == ("ann", "train") and a.teaches and len(told) == 1


def test_what_teaches_and_what_is_left_out() -> None:
    records = [
        accounted("1"), accounted("2", state="FAILED"), accounted("3", state="CANCELLED"), accounted("4", gpus={}),
        accounted("5", state="RUNNING", end=None), accounted("6", elapsed_s=0.0), accounted("7", end=50.0),
        accounted("8", gpus={"": 1}, comment="hadar:nonsense"),
    ]  # fmt: skip
    jobs, told = history_of_accounting(records, ESTIMATOR, TYPES)

    assert {j.job_id: j.teaches for j in jobs} == {"1": True, "2": False, "3": False, "8": True}
    assert jobs[-1].alone_s == pytest.approx(50)
    assert told[1:] == (
        "2 of 4 jobs failed or were cancelled: nothing is learned from them",
        "1 of 4 jobs ran on GPUs of an unknown type: counted as the fastest",
        "1 jobs are left out: they ended before they were submitted",
        "1 jobs are left out: they had no GPU",
        "1 jobs are left out: they had not ended",
        "1 jobs are left out: they never ran",
    )


def test_types_of_nodes_fill_in() -> None:
    record = accounted("1", gpus={"": 2}, nodes="old[1-2]")
    (job,), told = history_of_accounting([record], ESTIMATOR, TYPES, {"old1": "k80"})

    assert job.alone_s < 50 and len(told) == 1


def remembered(job_id: str, **what: Any) -> JobRecord:
    fields = {"arrival": 1000.0, "ended": 1200.0, "workers": 2, "user": "ann", "name": "train", "ran_s": {"v100": 50.0},
              "final": "COMPLETED"}  # fmt: skip
    return JobRecord(job_id, **{**fields, **what})


def test_the_journal_tells_the_same_as_accounting() -> None:
    """Work is the time on each GPU type times the speed there; the clock is the same."""
    what = {"model": "resnet18", "batch": 64}
    records = [
        remembered("1", **what), remembered("2", **what, ran_s={"k80": 50.0}), remembered("3", final="FAILED"),
        remembered("4", **what, ran_s={"k80": 50.0, "v100": 50.0}), remembered("5", final="GONE"),
        remembered("6", ran_s={}), remembered("7", ended=None),
    ]  # fmt: skip
    jobs, told = history_of_journal(records, ESTIMATOR, TYPES)
    comment = "hadar:model=resnet18,batch=64"
    both = [accounted("1", comment=comment, gpus={"v100": 2}), accounted("2", comment=comment)]
    (a, b), _ = history_of_accounting(both, ESTIMATOR, TYPES)

    found = {j.job_id: j for j in jobs}
    assert (found["1"].alone_s, found["2"].alone_s) == pytest.approx((a.alone_s, b.alone_s))
    assert found["4"].alone_s == pytest.approx(a.alone_s + b.alone_s)
    assert {i for i, j in found.items() if not j.teaches} == {"3", "5"} and found["1"].series == a.series
    assert (found["1"].submit, found["1"].end) == (1000.0, 1200.0)
    assert told[1:] == (
        "2 of 5 jobs failed or were cancelled: nothing is learned from them",
        "1 jobs are left out: they had not ended",
        "1 jobs are left out: they were never seen running on GPUs",
    )


def test_a_job_of_the_queue_asks_as_those_of_the_accounting_did() -> None:
    """The same user, name and gang give the same series and speed."""
    slurm = FakeSlurm({"n1": ("v100", 4)})
    slurm.submit(gpus=2, comment="", user="ann", name="train")
    (past,), _ = history_of_accounting([accounted("1")], ESTIMATOR, TYPES)
    asked = submission_of(slurm.read_jobs()[0], ESTIMATOR, TYPES, 500.0)

    assert (asked.series, asked.gpus, asked.steps_per_s) == (past.series, past.gpus, past.steps_per_s)
    assert asked.submit == 500


def test_jobs_without_gpus_are_not_predicted() -> None:
    slurm = FakeSlurm({"n1": ("v100", 4)})
    slurm.submit()

    with pytest.raises(SlurmError, match="job 1 asks for no GPUs"):
        submission_of(replace(slurm.read_jobs()[0], gpus=()), ESTIMATOR, TYPES, 0.0)
