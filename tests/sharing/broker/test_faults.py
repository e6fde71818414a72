"""The campaign of faults around a broker, in short."""

from __future__ import annotations

import pytest

from benchmarks.sharing.faults import campaign


@pytest.mark.thorough
def test_no_turn_is_lost_and_no_job_is_stuck_whatever_is_done_to_a_broker_and_its_jobs() -> None:
    found = campaign(12, seed=5)

    assert sum(found["faults"].values()) == 12 and len(found["faults"]) >= 4
    assert (found["stuck"], found["lost_turns"], found["overlaps"]) == ([], 0, 0)
    assert found["sessions_left"] == 3 and found["memory_given_back"] > 0
