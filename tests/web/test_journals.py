"""Journals that cannot be shown, and those that are written while they are."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from slurm_hadar.controller.journal import (
    DashboardChanges,
    Decision,
    Journal,
    ReadOnlyJournal,
    RoundRecord,
)


def test_no_journal(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """One clear page, and nothing is created; once there is one it is shown without a restart."""
    client = browse(tmp_path / "journal.db")

    answer = client.get("/")
    assert answer.status_code == 503 and "has the controller (hadar run) run here?" in answer.text
    assert client.get("/api/overview.json").json()["error"].startswith("no journal at")
    assert client.get("/healthz").status_code == 503
    assert list(tmp_path.iterdir()) == []

    Journal(tmp_path / "journal.db").close()
    assert client.get("/").status_code == 200


@pytest.mark.parametrize("content", [b"not a database at all" * 400, b"SQLite format 3\0" + b"x" * 5000])
def test_a_broken_journal(browse: Callable[..., TestClient], tmp_path: Path, content: bytes) -> None:
    """It is not touched, and said to be unreadable in one line."""
    path = tmp_path / "journal.db"
    path.write_bytes(content)

    answer = browse(path).get("/queue")

    assert answer.status_code == 503 and "cannot read the journal" in answer.text and "Traceback" not in answer.text
    assert path.read_bytes() == content and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("version", "words"), [(99, "newer slurm_hadar"), (7, "older slurm_hadar"), (0, "is no journal")]
)
def test_a_journal_of_another_version(
    browse: Callable[..., TestClient], tmp_path: Path, version: int, words: str
) -> None:
    """It is left as it is, and the page says what to do."""
    db = sqlite3.connect(tmp_path / "journal.db")
    db.execute(f"PRAGMA user_version = {version}")
    db.execute("CREATE TABLE rounds (x)")
    db.close()

    answer = browse(tmp_path / "journal.db").get("/")

    assert answer.status_code == 503 and words in answer.text


def test_a_locked_journal(browse: Callable[..., TestClient], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever locks the whole file is not waited for without end."""
    monkeypatch.setattr("slurm_hadar.controller.journal.readonly._BUSY_S", 0.05)
    path = tmp_path / "journal.db"
    Journal(path).close()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE")
    db.execute("CREATE TABLE x (y)")

    answer = browse(path).get("/")
    db.close()

    assert answer.status_code == 503 and "locked" in answer.text


def test_a_defect_is_one_line_too(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """What nobody thought of is no traceback in a browser."""
    journal = Journal(tmp_path / "journal.db")
    journal.update_dashboard(1.0, DashboardChanges(nodes={"n1": json.dumps({"gpus": "none of this"})}))
    journal.close()

    answer = browse(tmp_path / "journal.db", raise_server_exceptions=False).get("/")

    assert answer.status_code == 500 and "defect of the dashboard" in answer.text and "Traceback" not in answer.text


def test_the_controller_writes_while_pages_are_read(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """Reader and writer do not stop one another, and each page is as new as the last round."""
    journal = Journal(tmp_path / "journal.db")
    client = browse(tmp_path / "journal.db")
    with ReadOnlyJournal(tmp_path / "journal.db") as reader:
        before = reader.rounds()
        for number in range(1, 6):
            journal.add_round(RoundRecord(time.time(), "act", "hadar"))
            journal.add_decisions(number, time.time(), [Decision(str(number), "start")])
            assert client.get("/api/overview.json").json()["moves"][0]["job_id"] == str(number)
        assert reader.rounds() == before == []  # what it saw first
    journal.close()


def test_a_name_of_a_file_that_needs_quoting(browse: Callable[..., TestClient], tmp_path: Path) -> None:
    """A path may have what means something in an address."""
    folder = tmp_path / "a?b#c %41"
    folder.mkdir()
    Journal(folder / "journal.db").close()

    assert browse(folder / "journal.db").get("/").status_code == 200
