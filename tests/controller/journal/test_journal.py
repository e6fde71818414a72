"""The controller's memory."""

from __future__ import annotations

import json
import os
import sqlite3
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from slurm_hadar.controller.journal import (
    DashboardChanges,
    Decision,
    Event,
    JobRecord,
    Journal,
    Purpose,
    RoundRecord,
    Run,
    WriteOutcome,
    WriteRecord,
)
from slurm_hadar.errors import StoreError
from slurm_hadar.model import Placement


def test_records_survive_a_restart(tmp_path: Path) -> None:
    """What was saved is there for the next controller; ended jobs are not loaded again."""
    journal = Journal(tmp_path / "j.db")
    journal.save_jobs([JobRecord("1", submit=5, workers=4, avoid={"n1": 9.0}), JobRecord("2", ended=7.0)])
    journal.close()

    again = Journal(tmp_path / "j.db")

    assert again.load_jobs() == {"1": JobRecord("1", submit=5, workers=4, avoid={"n1": 9.0})}
    assert again.job("2").ended == 7.0
    assert again.moved_aside is None


def test_the_jobs_that_ended_last_are_told_without_damaged_ones() -> None:
    journal = Journal(":memory:")
    ended = [JobRecord(str(n), ended=float(n), user="ada", final="COMPLETED", start_s=n / 2) for n in range(6)]
    journal.save_jobs([*ended, JobRecord("9", user="ada")])
    for job, text in (("3", "{"), ("4", '{"user": 7}')):
        journal.connection.execute("UPDATE jobs SET record = ? WHERE job_id = ?", (text, job))

    assert journal.last_ended(4) == [ended[1].past, ended[2].past, ended[5].past]


@pytest.mark.parametrize(
    "damage", [b"not a database at all, but long enough to be one" * 40, b"SQLite format 3\0" + b"x" * 4000]
)
def test_a_broken_database_is_moved_aside(tmp_path: Path, damage: bytes) -> None:
    """A file that is no database is kept under another name, said so, and a new one begun."""
    path = tmp_path / "j.db"
    path.write_bytes(damage)

    journal = Journal(path)

    assert journal.moved_aside is not None and journal.moved_aside.read_bytes() == damage
    assert journal.add_round(RoundRecord(1.0, "act", "hadar")) == 1


def test_damage_inside_is_found(tmp_path: Path) -> None:
    """A database whose pages were overwritten does not pass for a good one."""
    path = tmp_path / "j.db"
    journal = Journal(path)
    journal.save_jobs([JobRecord(str(i), work_dir="x" * 500) for i in range(500)])
    journal.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    journal.close()
    data = bytearray(path.read_bytes())
    data[8192:20480] = b"\xff" * 12288
    path.write_bytes(data)

    assert Journal(path).moved_aside is not None


@pytest.mark.parametrize(
    "damage",
    [
        "DROP TABLE waits",
        "ALTER TABLE waits DROP COLUMN price; ALTER TABLE waits DROP COLUMN starts",
        "ALTER TABLE queue ADD COLUMN more TEXT",
        "DROP TABLE waits; PRAGMA user_version = 6",
        "DROP TABLE jobs; PRAGMA user_version = 8",
    ],
)
def test_a_journal_without_its_tables_is_moved_aside(tmp_path: Path, damage: str) -> None:
    """As one that an unfinished version has written: nothing could be written to it in any round."""
    path = tmp_path / "j.db"
    journal = Journal(path)
    journal.save_jobs([JobRecord("1")])
    journal.connection.executescript(damage)
    journal.close()

    again = Journal(path)
    again.replace_waits(1, {"8": {"why": "y"}})

    assert again.moved_aside is not None and again.moved_aside.exists() and not again.load_jobs()
    again.close()
    assert Journal(path).moved_aside is None


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """An older program does not touch what a newer one wrote."""
    db = sqlite3.connect(tmp_path / "j.db")
    db.execute("PRAGMA user_version = 99")
    db.close()

    with pytest.raises(StoreError, match="newer slurm_hadar"):
        Journal(tmp_path / "j.db")


def test_an_older_schema_is_brought_up_to_date(tmp_path: Path) -> None:
    """A journal of the first schema keeps what it has and can remember for policies from now on."""
    journal = Journal(tmp_path / "j.db")
    journal.save_jobs([JobRecord("1", submit=5)])
    journal.connection.executescript(
        "DROP TABLE memory; DROP TABLE usage; DROP TABLE forks; DROP TABLE trainings; DROP TABLE events; "
        "DROP TABLE queue; DROP TABLE speeds; DROP TABLE nodes; DROP TABLE runs; DROP TABLE price_history; "
        "DROP TABLE gains; DROP INDEX decisions_by_time; DROP INDEX rounds_by_time; DROP INDEX jobs_by_end; "
        "ALTER TABLE waits DROP COLUMN price; ALTER TABLE waits DROP COLUMN starts; "
        "ALTER TABLE decisions DROP COLUMN ground; ALTER TABLE writes DROP COLUMN lease; "
        "PRAGMA user_version = 1;"
    )
    journal.close()

    again = Journal(tmp_path / "j.db")
    again.save_memory("me", "{}")

    assert "1" in again.load_jobs() and again.load_memory("me") == "{}"


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    """The error names the path."""
    with pytest.raises(StoreError, match="nowhere"):
        Journal(tmp_path / "nowhere" / "j.db")


@pytest.mark.parametrize("full", [True, False])
def test_why_it_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    """SQLite names neither owner nor room."""

    def refused(*_: object, **__: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    path = tmp_path / "j.db"
    path.touch(0o600)
    monkeypatch.setattr(sqlite3, "connect", refused)
    if full:
        monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_bavail=3, f_frsize=4096))
    else:
        monkeypatch.setattr(os, "access", lambda *_, **__: False)
    with pytest.raises(StoreError, match="no room left in" if full else r"is of user \w+ \(-rw-------\), and user"):
        Journal(path)


def test_a_failed_transaction_changes_nothing(tmp_path: Path) -> None:
    """All or nothing."""
    journal = Journal(tmp_path / "j.db")
    journal.save_jobs([JobRecord("1")])

    with pytest.raises(RuntimeError), journal.transaction() as db:
        db.execute("DELETE FROM jobs")
        raise RuntimeError

    assert list(journal.load_jobs()) == ["1"]


def test_history_and_waits() -> None:
    """Decisions and writes come back in order, with placements."""
    journal = Journal(":memory:")
    number = journal.add_round(RoundRecord(10.0, "act", "hadar"))
    where = Placement.of({"n1": {"v100": 2}})
    journal.add_decisions(number, 10.0, [Decision("7", "start", new=where, why="cheap")])
    journal.add_events(number, 10.0, [Event("7", "restart", "run 2 from the beginning")])
    journal.add_writes(number, 11.0, [WriteRecord("7", "update 7 NodeList=n1", WriteOutcome.OK)])
    journal.replace_waits(number, {"8": {"tier": "x", "why": "y"}})
    journal.replace_prices({("n1", "v100"): 2.5})

    event, first, second = journal.history("7")

    assert (event["event"], event["why"]) == ("restart", "run 2 from the beginning") and first["mode"] == "act"
    assert (first["kind"], first["new"], first["why"]) == ("start", {"n1": {"v100": 2}}, "cheap")
    assert (second["command"], second["outcome"]) == ("update 7 NodeList=n1", "ok")
    assert journal.wait("8") == {"round": 1, "tier": "x", "why": "y"} and journal.wait("7") is None
    assert journal.prices() == {("n1", "v100"): 2.5}


def test_old_entries_expire() -> None:
    """The journal does not grow for ever."""
    journal = Journal(":memory:")
    for moment in (1.0, 100.0):
        number = journal.add_round(RoundRecord(moment, "act", "hadar"))
        journal.add_decisions(number, moment, [Decision("7", "start")])
        journal.add_events(number, moment, [Event("7", "graph", "no such model")])
    journal.save_jobs([JobRecord("7", ended=1.0), JobRecord("8")])

    journal.expire(50.0)

    assert [r["time"] for r in journal.rounds()] == [100.0]
    assert len(journal.history("7")) == 2
    assert journal.job("7") is None and journal.job("8") is not None


def test_a_round_that_an_older_version_skipped() -> None:
    """It said so in words only."""
    journal = Journal(":memory:")
    for note in ("skipped: slurmctld does not answer", "standby: slurmctld acts elsewhere"):
        number = journal.add_round(RoundRecord(1.0, "act", "hadar", note=note))
        old = {k: v for k, v in journal.rounds(1)[0].items() if k not in ("round", "skipped")}
        journal.connection.execute("UPDATE rounds SET record = ? WHERE round = ?", (json.dumps(old), number))

    assert [entry["skipped"] for entry in journal.rounds_since(0.0)] == [True, False]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_is_taken_away_is_not_written_to(tmp_path: Path, replaced: bool) -> None:
    """What is written would be in no file that anybody can open."""
    path = tmp_path / "journal.db"
    journal = Journal(path)
    journal.save_jobs([JobRecord("1")])
    path.rename(tmp_path / "elsewhere")
    if replaced:
        path.touch()

    with pytest.raises(
        StoreError, match=r"was removed or replaced while it was open.*start the controller again"
    ) as told:
        journal.save_jobs([JobRecord("2")])
    assert not told.value.passes
    journal.close()


def test_a_reason_that_goes_to_and_fro_does_not_fill_the_journal() -> None:
    """Of what changes nothing about a job the last ten are kept; what does is never forgotten for it."""
    journal = Journal(":memory:")
    for n in range(30):
        kinds = ["start" if n == 3 else "wait"]
        journal.add_decisions(n, float(n), [Decision(j, kind, why=str(n)) for j in ("7", "8") for kind in kinds])

    assert [e["why"] for e in journal.history("7")] == ["3", *map(str, range(20, 30))] and len(
        journal.history("8")
    ) == 11


def test_the_last_of_the_leases_that_hold_is_kept() -> None:
    """What was refused, and what was sent without an answer, as by a controller that was killed, stays."""
    journal, command = Journal(":memory:"), "update 7 StartTime=now+720"
    lease = WriteRecord("7", command, WriteOutcome.OK, purpose=Purpose.LEASE)
    for number, outcome in enumerate((WriteOutcome.OK, WriteOutcome.REFUSED, WriteOutcome.OK, WriteOutcome.OK)):
        journal.add_writes(number, float(number), [replace(lease, outcome=WriteOutcome.SENT)])
        if number != 2:
            journal.settle_writes(number, float(number), [replace(lease, outcome=outcome)])
    journal.settle_writes(4, 4.0, [replace(lease, purpose=Purpose.NUDGE)])

    assert [(e["round"], e["outcome"]) for e in journal.history("7")] == [
        (1, "refused"), (2, "sent"), (3, "ok"), (4, "ok"),
    ]  # fmt: skip


def test_a_number_that_is_used_again() -> None:
    """What the journal has of the job before is not told of this one, nor that of an array of an array's number."""
    journal, held = Journal(":memory:"), Placement.of({"n1": {"v100": 1}})
    journal.save_jobs([JobRecord("27_0", first_seen=5.0, ended=20.0), JobRecord("28", first_seen=5.0, ended=20.0)])
    for job in ("27", "28"):
        journal.add_decisions(1, 10.0, [Decision(job, "wait"), Decision(job, "end", why="gone")])
        journal.add_events(1, 10.0, [Event(job, "slurm", "on n1")])
        journal.add_writes(1, 10.0, [WriteRecord(job, f"update {job} StartTime=now+720", WriteOutcome.OK)])
    runs = [Run("27", 8.0, 20.0, held, True), Run("27", 31.0, None, held, True)]
    journal.update_dashboard(40.0, DashboardChanges(runs=runs))
    journal.save_jobs(
        [JobRecord("27", arrival=30.0, first_seen=32.0), JobRecord("28_0", arrival=30.0, first_seen=32.0)]
    )
    journal.add_decisions(2, 32.0, [Decision("27", "start", new=held)])

    assert [e["kind"] for e in journal.history("27")] == ["start"] and journal.history("28") == []
    assert (journal.tasks("27"), journal.tasks("28")) == ([], ["28_0"])
    assert [run.began for run in journal.runs_of("27")] == [31.0]
