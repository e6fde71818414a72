"""The audit log: append-only, rotated, and no reason to stop."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.config import AuditSection
from slurm_hadar.service.audit import AUDIT, AuditLog


def entries(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def numbers(path: Path) -> list[int]:
    return [e["n"] for e in entries(path) if "n" in e]


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[Any]:
    made = AuditLog(tmp_path, AuditSection())
    yield made
    made.close()


def test_lines_are_synced_once_a_call(audit: AuditLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each entry is an object with its time; the disk is asked once for a round, and not for what is only asked."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor))

    audit.write([{"event": "write", "n": 1}, {"event": "write", "n": 2}])
    audit.write([{"event": "ask", "n": 3}], sync=False)
    audit.write([])

    assert numbers(audit.path) == [1, 2, 3] and len(synced) == 1
    assert all(e["time"].endswith("Z") for e in entries(audit.path))
    assert audit.path.stat().st_mode & 0o007 == 0


def test_two_processes_append(audit: AuditLog, tmp_path: Path) -> None:
    """hadar release writes to the log of a controller that runs."""
    other = AuditLog(tmp_path, AuditSection())
    for n in range(4):
        (audit if n % 2 else other).write([{"n": n}])
    other.close()

    assert numbers(audit.path) == [0, 1, 2, 3]


def test_rotation_by_size_keeps_the_newest(tmp_path: Path) -> None:
    """No line is lost before its file is too old to be kept."""
    audit = AuditLog(tmp_path, AuditSection(max_bytes=100, keep=2))
    for n in range(12):
        audit.write([{"n": n, "filler": "x" * 30}])
    audit.close()

    files = [audit.path.with_name(f"{AUDIT}.2"), audit.path.with_name(f"{AUDIT}.1"), audit.path]
    found = [n for f in files for n in numbers(f)]
    assert found == list(range(12))[-len(found) :] and len(found) >= 4
    assert sorted(p.name for p in tmp_path.iterdir()) == [AUDIT, f"{AUDIT}.1", f"{AUDIT}.2"]


@pytest.mark.parametrize("how", ["moved", "deleted"])
def test_logrotate_needs_no_word(audit: AuditLog, how: str) -> None:
    """A file that was moved away or deleted is noticed, and another begun."""
    audit.write([{"n": 1}])
    if how == "moved":
        audit.path.rename(audit.path.with_name("old"))
    else:
        audit.path.unlink()
    audit.write([{"n": 2}])

    assert numbers(audit.path) == [2]


def test_a_full_disk_is_loud_and_stops_nothing(
    audit: AuditLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One error in the log, a count, no half line; when there is room again, how many lines are missing."""
    audit.write([{"n": 1}])
    write, room = os.write, [10]

    def full(descriptor: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        done = write(descriptor, bytes(data)[: room[0]])
        room[0] -= done
        return done

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING):
        patched.setattr(os, "write", full)
        audit.write([{"n": 2}, {"n": 3}])
        audit.write([{"n": 4}])
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    assert "AUDIT LOG NOT WRITTEN" in caplog.text and "No space left on device" in audit.fault
    assert audit.failures == 2 and numbers(audit.path) == [1]

    audit.write([{"n": 5}])
    assert numbers(audit.path) == [1, 5] and audit.fault == ""
    (gap,) = [e for e in entries(audit.path) if e.get("event") == "gap"]
    assert gap["lines_lost"] == 3 and "No space" in gap["why"]


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "gone", AuditSection())

    audit.write([{"n": 1}])

    assert audit.failures == 1 and "No such file" in audit.fault


def test_it_can_be_left_out(tmp_path: Path) -> None:
    AuditLog(tmp_path, AuditSection(enabled=False)).write([{"n": 1}])

    assert not list(tmp_path.iterdir())
