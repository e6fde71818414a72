"""What the journal keeps of each round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slurm_hadar.model import Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import Policy


class Says(Policy):
    """Lets all jobs wait, with the reason that the test says."""

    name = "says"
    why = ""

    def allocate(self, snapshot: Snapshot) -> Plan:
        return Plan(self.name, waits={j.job_id: Wait(Tier.TRANSIENT, self.why) for j in snapshot.steerable_jobs})


@pytest.mark.parametrize(
    "words",
    [
        "Slurm keeps it from starting (PartitionTimeLimit); tried again in {} s",
        "held by jobs that keep them now: 7 (did not save; asked again in {} s), 8",
        "waits for a better one for another {} min at most",
    ],
)
def test_a_countdown_is_no_news(bench: Callable[..., Any], words: str) -> None:
    """The same reason with fewer seconds to go is one entry of the history; another reason is another."""
    one, policy = bench(), Says()
    job = one.slurm.submit(1)
    controller = one.new_controller(policy=policy)

    for policy.why in (*(words.format(left) for left in (15, 10, 5)), "told to wait in 2 ways"):
        controller.run_round()

    said = [entry["why"] for entry in one.journal.history(job) if entry.get("kind") == "wait"]
    assert said == [words.format(15), "told to wait in 2 ways"]
