"""The cluster of the documentation's pictures, and that all of them are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from slurm_hadar.config import load
from slurm_hadar.controller.journal import ReadOnlyJournal
from slurm_hadar.web.app import create_app
from tools.pictures.day import BEGIN, live_through

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.thorough
def test_the_day_is_lived_by_the_controller(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rounds, runs and reasons are its own; the same day comes twice alike, and time passes in it."""
    ends = [live_through(tmp_path / f"{turn}.db", hours=3.0) for turn in "ab"]
    assert "clock" not in caplog.text
    with ReadOnlyJournal(tmp_path / "a.db") as a, ReadOnlyJournal(tmp_path / "b.db") as b:
        assert [r["use"] for r in a.rounds(100)] == [r["use"] for r in b.rounds(100)]
        assert {r.job_id: r.held for r in a.open_runs()} == {r.job_id: r.held for r in b.open_runs()}
        assert len(a.rounds(100)) == 31 and not any(r["note"] or r["failed"] for r in a.rounds(100))
        assert sum(r["starts"] for r in a.rounds(100)) >= 10
        held = {job for r in a.queue_holding() for job in [r["job_id"]]}
    client = TestClient(create_app(tmp_path / "a.db", load(), now=lambda: ends[0]), base_url="http://localhost")

    assert ends[0] == ends[1] == BEGIN + 3 * 3600 + 20
    assert "controller alive, last round 20 s ago" in client.get("/").text
    assert held == set(client.get("/api/overview.json").json()["jobs"])


def test_the_page_shows_every_picture() -> None:
    """Those that the command makes are those of docs/dashboard.md, and each is small."""
    from tools.pictures.__main__ import OUT, PICTURES

    shown = re.findall(r"\]\(pictures/(web-[a-z-]+)\.png\)", (ROOT / "docs" / "dashboard.md").read_text())
    assert sorted(shown) == sorted(PICTURES) == sorted(file.stem for file in OUT.glob("web-*.png"))
    assert all(file.stat().st_size < 60_000 for file in OUT.glob("web-*.png"))
