"""One controller to a scope."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurm_hadar.controller.safety.lock import ScopeLock, holder
from slurm_hadar.errors import ControllerRunning, StoreError


def test_same_state_directory(tmp_path: Path) -> None:
    """A second controller with the same memory is refused and told which process holds it."""
    first = ScopeLock(tmp_path, "cluster-a", ())
    with pytest.raises(ControllerRunning, match="process "):
        ScopeLock(tmp_path, "cluster-b", ())
    first.release()
    ScopeLock(tmp_path, "cluster-b", ()).release()


def test_same_cluster_and_users(tmp_path: Path) -> None:
    """Nor with another memory but the same cluster and users; other users are another scope."""
    first = ScopeLock(tmp_path / "a", "cluster-c", ("bob",))
    with pytest.raises(ControllerRunning, match="users bob of cluster cluster-c"):
        ScopeLock(tmp_path / "b", "cluster-c", ("bob",))
    ScopeLock(tmp_path / "d", "cluster-c", ("eve",)).release()
    first.release()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """One line, naming it."""
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be used"):
        ScopeLock(tmp_path / "file" / "sub", "c", ())


def test_who_holds_it_can_be_asked_without_taking_it(tmp_path: Path) -> None:
    """Nobody; then this process, by its state directory or by cluster and users; then nobody again."""
    assert holder(tmp_path / "a", "cluster-h", ()) == "" and not (tmp_path / "a").exists()
    lock = ScopeLock(tmp_path / "a", "cluster-h", ())
    assert holder(tmp_path / "a", "cluster-i", ()) == f"process {os.getpid()} with the state directory {tmp_path / 'a'}"
    assert "another state directory" in holder(tmp_path / "b", "cluster-h", ())
    assert holder(tmp_path / "b", "cluster-h", ("bob",)) == ""
    lock.release()
    assert holder(tmp_path / "a", "cluster-h", ()) == ""
