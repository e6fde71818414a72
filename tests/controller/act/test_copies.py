"""Copies of a forked job that are not needed any more."""

from __future__ import annotations

import time
from typing import Any

import pytest

from slurm_hadar.controller.journal import Purpose
from slurm_hadar.model import JobState
from tests.controller.scripted import report


@pytest.mark.parametrize(
    ("settings", "comment", "ends"),
    [
        ([], "", True),
        (['controller.users=["ann"]'], "", False),
        (['guard.exempt_users=["alice"]'], "", False),
        ([], ",pin=yes", False),
    ],
)
def test_only_copies_that_are_this_controllers_are_cancelled(
    bench: Any, settings: list[str], comment: str, ends: bool
) -> None:
    b = bench({"v100-1": ("v100", 1)}, *settings)
    _all_done(b, comment)

    b.controller.run_round()

    assert (b.slurm.jobs["7_1"].state is JobState.FAILED) is ends


@pytest.mark.parametrize(("why", "tries"), [("Access/permission denied", 1), ("Unexpected message received", 3)])
def test_one_that_slurm_does_not_cancel_is_left_alone(bench: Any, why: str, tries: int) -> None:
    """Asked for ever, its refusals would keep everybody else's jobs from being started, too."""
    b = bench({"v100-1": ("v100", 1)})
    _all_done(b)
    b.slurm.refuse["7_1"] = why

    rounds = [b.controller.run_round() for _ in range(25)]

    assert sum(w.purpose is Purpose.CANCEL for r in rounds for w in r.outcome.log) == tries
    assert {r.record.note for r in rounds} == {""}


def test_who_still_runs_has_its_time_to_end_when_the_clock_was_set(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    b, real = bench({"v100-1": ("v100", 1), "v100-2": ("v100", 1)}), time.time
    b.slurm.submit(1, "hadar:fork=auto", job_id="7_1", array_id="7")
    b.slurm.start("7_1", "v100-2")
    report(b, "7_1", "hello")
    _all_done(b)
    monkeypatch.setattr(time, "time", lambda: real() + 3600)

    b.controller.run_round()

    assert b.slurm.jobs["7_1"].state is JobState.RUNNING


@pytest.mark.parametrize("known", [False, True])
def test_an_earlier_forked_job_with_the_same_id_is_not_this_one(bench: Any, known: bool) -> None:
    """Slurm counts job ids anew after its state was lost. Copies that the journal knows are those of the same job."""
    b = bench({"v100-1": ("v100", 1)})
    b.slurm.submit(1, "hadar:fork=auto", job_id="7_0", array_id="7")
    b.slurm.submit(1, "hadar:fork=auto", job_id="7_1", array_id="7")
    if known:
        b.controller.run_round()
    b.journal.save_forks({"7": (3, 100, 100.0, 5)})
    b.new_controller().run_round()

    ended = {b.slurm.jobs[j].state_text for j in ("7_0", "7_1")}
    assert ("CANCELLED" in ended) is known


def _all_done(b: Any, comment: str = "") -> None:
    """A copy that runs has made the last step; another one waits, if it is not there already."""
    for copy in sorted({"7_0", "7_1"} - b.slurm.jobs.keys()):
        b.slurm.submit(1, f"hadar:fork=auto{comment}", job_id=copy, array_id="7")
    b.slurm.start("7_0", "v100-1")
    report(b, "7_0", "hello")
    b.controller.run_round()
    done = {"steps": 100, "total_steps": 100, "consolidation": 3, "consolidated_steps": 100}
    report(b, "7_0", closes=True, **done)
