"""Measured speeds over versions of the program."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from slurm_hadar.errors import StoreError
from slurm_hadar.throughput.store import ThroughputStore

# as the first version of this program made them
FIRST = """
CREATE TABLE throughput_measurement (
    workload TEXT NOT NULL, gpu_type TEXT NOT NULL, gpus INTEGER NOT NULL, spread INTEGER NOT NULL,
    steps_per_s REAL NOT NULL, samples INTEGER NOT NULL, updated_at REAL NOT NULL,
    PRIMARY KEY (workload, gpu_type, gpus, spread)) WITHOUT ROWID;
CREATE TABLE throughput_estimate (
    workload TEXT NOT NULL, gpu_type TEXT NOT NULL, gpus INTEGER NOT NULL, spread INTEGER NOT NULL,
    steps_per_s REAL NOT NULL, source TEXT NOT NULL, made_at REAL NOT NULL,
    PRIMARY KEY (workload, gpu_type, gpus, spread)) WITHOUT ROWID;
INSERT INTO throughput_measurement VALUES ('resnet18:64', 'v100', 2, 0, 12.5, 3, 1000.0);
INSERT INTO throughput_estimate VALUES ('resnet18:64', 'v100', 2, 0, 10.0, 'published', 900.0);
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file of version 1."""
    path = tmp_path / "speeds.sqlite"
    with sqlite3.connect(path) as db:
        db.executescript(FIRST)
    db.close()
    return path


def test_a_first_version_is_brought_forward_beside_a_copy(old: Path) -> None:
    """All that was measured is kept, in the new file and in a copy of the old tables; once only."""
    for _ in range(2):
        store = ThroughputStore.open(old)
        assert store.get("resnet18:64", "v100", 2).steps_per_s == 12.5
        assert [e.estimated for e in store.errors()] == [10.0]
        store.record("resnet18:64", "v100", 2, 12.5, 1001.0)
        store.close()

    with sqlite3.connect(old.with_name("speeds.sqlite.throughput-v1")) as copy:
        assert copy.execute("SELECT samples FROM throughput_measurement").fetchall() == [(3,)]
        assert copy.execute("SELECT source FROM throughput_estimate").fetchall() == [("published",)]
    copy.close()
    assert len(list(old.parent.glob("*throughput-v1*"))) == 1


def test_the_journals_connection_is_brought_forward_too(old: Path) -> None:
    """The controller hands in the connection of its journal, which begins no transaction by itself."""
    db = sqlite3.connect(old, isolation_level=None)

    assert ThroughputStore(db).get("resnet18:64", "v100", 2).samples == 3
    assert not db.in_transaction
    db.close()


def test_a_newer_one_is_refused_untouched(old: Path) -> None:
    """One line that names the file and the fix; not a byte is changed."""
    ThroughputStore.open(old).close()
    with sqlite3.connect(old) as db:
        db.execute("UPDATE throughput_version SET version = 9")
    db.close()
    before = old.read_bytes()

    with pytest.raises(StoreError, match=r"speeds\.sqlite were written by a newer slurm_hadar \(version 9\); upgrade"):
        ThroughputStore.open(old)

    assert old.read_bytes() == before


def test_what_cannot_be_copied_is_not_changed(old: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No migration without its backup."""
    monkeypatch.setattr(ThroughputStore, "_back_up", lambda *_: (_ for _ in ()).throw(sqlite3.OperationalError("full")))

    with pytest.raises(StoreError, match="full"):
        ThroughputStore.open(old)

    with sqlite3.connect(old) as db:
        names = {n for (n,) in db.execute("SELECT name FROM sqlite_master")}
    db.close()
    assert "throughput_version" not in names


def test_what_was_filed_without_users_is_nobodys(old: Path) -> None:
    """Of a model: one voice among several. Of a user's job without a model: that user's, as its name says."""
    with sqlite3.connect(old) as db:
        for name in ("ann/train it/now", "resnet18:64 gpt2/pp2"):
            db.execute("INSERT INTO throughput_measurement VALUES (?, 'v100', 2, 0, 3.5, 1, 1.0)", (name,))
    db.close()
    store = ThroughputStore.open(old)

    assert store.get("ann/train it/now", "v100", 2, user="ann").steps_per_s == 3.5
    assert store.get("resnet18:64 gpt2/pp2", "v100", 2).user == ""
    assert store.get("resnet18:64", "v100", 2, user="ann") is None
    store.record("resnet18:64", "v100", 2, 10.0, 2.0, user="bob")
    store.record("resnet18:64", "v100", 2, 14.0, 2.0, user="cem")
    shared = store.get("resnet18:64", "v100", 2, user="ann")
    assert (shared.steps_per_s, shared.users) == (12.5, 3)
    store.close()
