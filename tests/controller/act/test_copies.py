"""Copies of a forked job that are not needed any more."""

from __future__ import annotations

from typing import Any

import pytest

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
    for number in range(2):
        b.slurm.submit(1, f"hadar:fork=auto{comment}", job_id=f"7_{number}", array_id="7")
    b.slurm.start("7_0", "v100-1")
    report(b, "7_0", "hello")
    b.controller.run_round()
    done = {"steps": 100, "total_steps": 100, "consolidation": 3, "consolidated_steps": 100}
    report(b, "7_0", closes=True, **done)

    b.controller.run_round()

    assert (b.slurm.jobs["7_1"].state is JobState.FAILED) is ends
