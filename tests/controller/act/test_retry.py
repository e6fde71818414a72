"""``retry=`` on a Slurm in memory: jobs whose command failed wait the longer the more often it did."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.observe.jobs.script_failures import FIRST_RETRY_S, LONGEST_RETRY_S, SOUND_RUN_S
from slurm_hadar.model import JobState, Tier
from tests.controller.scripted import MODEL, Scripted, report

COMMENT = f"{MODEL},retry=9"


def put_back(b: Any, job: str, retry: int, **fields: Any) -> None:
    """The job's command has failed, and the job has put itself back, as the agent does."""
    report(b, job, "bye", b.slurm.jobs[job].restarts, exit_code=3, retry=retry, **fields)
    shown = b.slurm.jobs[job]
    b.slurm.jobs[job] = replace(
        shown,
        state=JobState.PENDING,
        state_text="PENDING",
        nodes=(),
        start=None,
        restarts=shown.restarts + 1,
        submit=float(int(time.time())),
        reason="BeginTime",
    )


def started(b: Any, since_s: float = 0.0) -> str:
    job = b.slurm.submit(gpus=2, comment=COMMENT)
    b.slurm.start(job, "v100-1")
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], start=time.time() - since_s)
    report(b, job, steps=50, saved_step=40, resumable=True)
    b.controller.run_round()
    return job


@pytest.mark.parametrize("retry", [1, 3, 9])
def test_a_command_that_fails_at_once_waits_longer_each_time(bench: Any, retry: int) -> None:
    """Its GPUs go to others meanwhile; history and queue say why and until when; what it saved counts."""
    b = bench()
    job = started(b)
    put_back(b, job, retry)
    controller = b.new_controller(policy=Scripted(**{f"j{job}": {"v100-1": {"v100": 2}}}))

    result = controller.run_round()

    wait = result.plan.waits[job]
    assert wait.tier is Tier.TRANSIENT and f"its command failed: retry {retry} at" in wait.why
    record = result.seen.records[job]
    expected = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2 ** (retry - 1))
    assert expected - 5 < record.retry_after - time.time() <= expected
    (told,) = [e["why"] for e in b.journal.history(job) if e.get("event") == "retry"]
    assert f"exit code 3; retry {retry}, {expected:.0f} s later" in told
    assert record.saved_step == 40
    assert controller.run_round().plan.waits[job].why == wait.why  # and is noted once
    assert len([e for e in b.journal.history(job) if e.get("event") == "retry"]) == 1


def test_after_a_long_run_it_is_tried_at_once(bench: Any) -> None:
    b = bench()
    job = started(b, SOUND_RUN_S + 60)
    put_back(b, job, 1)

    result = b.new_controller(policy=Scripted(**{f"j{job}": {"v100-1": {"v100": 2}}})).run_round()

    assert job not in result.plan.waits and result.plan.placements[job]


def test_a_run_that_no_round_has_seen_counts_as_well(bench: Any) -> None:
    """It failed within seconds, before the first look."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=COMMENT)
    b.slurm.start(job, "v100-1")
    report(b, job)
    put_back(b, job, 1)

    assert "retry 1" in b.new_controller(policy=Scripted()).run_round().plan.waits[job].why


def test_no_more_than_asked_for(bench: Any) -> None:
    """One whose retries are used up is over, even where it failed in the moment of a restart."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=f"{MODEL},retry=1")
    b.slurm.start(job, "v100-1")
    b.controller.run_round()
    put_back(b, job, 1)
    b.slurm.start(job, "k80-1")
    b.slurm.fail(job)

    result = b.new_controller(policy=Scripted()).run_round()

    assert (job, "FAILED") in result.seen.finished
    assert not [w for batch in b.slurm.batches for w in batch if w.verb == "restart"]
