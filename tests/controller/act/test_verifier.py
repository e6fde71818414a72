"""Whether what was put off for the node's sake started: it has its time from then on."""

from __future__ import annotations

import time
from typing import Any

import pytest

from slurm_hadar.controller.journal import WriteOutcome
from slurm_hadar.model import JobState, Placement
from tests.controller.scripted import MODEL, Scripted


@pytest.fixture
def stopped(bench: Any) -> tuple[Any, list[str]]:
    """Two jobs that were stopped just now, on a Slurm that takes a while for each write."""
    b = bench({"v100-1": ("v100", 2)}, "jobs.start_timeout_s=1", "guard.max_stretch=0")
    jobs = [b.slurm.submit(1, MODEL + ",ckpt=yes") for _ in range(2)]
    places = {job: Placement.of({"v100-1": {"v100": 1}}) for job in jobs}
    policy = Scripted()
    policy.where = places
    b.controller = b.new_controller(policy=policy)
    b.controller.run_round()
    policy.where = {}
    b.controller.run_round()
    assert {b.slurm.jobs[j].state for j in jobs} == {JobState.PENDING}
    policy.where = places
    write = b.slurm.write

    def slowly(writes: Any) -> Any:
        results = []
        for one in writes:
            time.sleep(0.05)
            results += write([one])
        return results

    b.slurm.write = slowly
    return b, jobs


def test_jobs_that_are_put_off_one_after_the_other_all_start(stopped: Any) -> None:
    b, jobs = stopped
    assert b.controller.run_round().record.failed == 0
    assert {b.slurm.jobs[j].state for j in jobs} == {JobState.RUNNING}


def test_one_that_does_not_start_then_is_late_and_no_lease_has_failed(stopped: Any) -> None:
    b, (first, second) = stopped
    b.slurm.stuck[second] = "Resources"
    log = b.controller.run_round().outcome.log
    assert [w.outcome for w in log if w.job_id == second and w.outcome is not WriteOutcome.OK] == [WriteOutcome.SLOW]
    assert b.slurm.jobs[first].state is JobState.RUNNING
