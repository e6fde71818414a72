"""What users send in floods fills no log, and hides nothing of others."""

from __future__ import annotations

import time

import pytest

from slurm_hadar.controller.agents.complaints import Complaints


def test_a_flood_of_one_job_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints("spool file")
    for n in range(1000):
        complaints.say(f"rubbish {n}", "1")
    complaints.say("a link", "2")
    complaints.say("a link", "2")
    assert len(caplog.messages) == 20 + 5 + 1 and caplog.messages[-1] == "a link (spool file 1001)"


def test_an_endless_flood_is_some_dozens_of_lines(caplog: pytest.LogCaptureFixture) -> None:
    complaints = Complaints("bad message")
    for _ in range(300_000):
        complaints.say("rubbish")
    assert len(caplog.messages) < 40


def test_many_jobs_write_no_more_than_so_many_lines_an_hour(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    complaints, now = Complaints("spool file"), time.monotonic()
    for n in range(5000):
        complaints.say("rubbish", str(n))
    assert len(caplog.messages) <= 200 + 8
    monkeypatch.setattr(time, "monotonic", lambda: now + 3700.0)
    complaints.say("later", "9999")
    assert caplog.messages[-1] == "later (spool file 1)"
