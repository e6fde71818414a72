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


@pytest.mark.parametrize(
    ("first", "second", "whose"),
    [
        (("ua",), ("ub", "ua"), "ua"),
        (("ua", "ub", "uc"), ("ub", "ux", "uc"), "ub, uc"),
        (("ub", "DOM\\a b"), ("DOM\\a b",), r"DOM\\a b"),
    ],
)
def test_users_in_common(tmp_path: Path, first: tuple[str, ...], second: tuple[str, ...], whose: str) -> None:
    """The second is told who has which of them, and tries again in vain until the first has ended."""
    cluster = f"cluster-o {tmp_path}"  # tests run beside each other
    held = ScopeLock(tmp_path / "a", cluster, first)
    refused = (
        rf"on this host already steers users {whose} of cluster cluster-o \(process {os.getpid()}\); stop it first"
    )
    for _ in range(2):
        with pytest.raises(ControllerRunning, match=refused):
            ScopeLock(tmp_path / "b", cluster, second)
    assert "another state directory" in holder(tmp_path / "b", cluster, second)
    ScopeLock(tmp_path / "b", f"{cluster} elsewhere", second).release()
    held.release()

    ScopeLock(tmp_path / "b", cluster, second).release()


def test_everybodys_of_another_user_overrules_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may start one, and steers their own jobs by it."""
    cluster, me = f"cluster-f {tmp_path}", os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    everybodys = ScopeLock(tmp_path / "all", cluster, ())
    mine = ScopeLock(tmp_path / "mine", cluster, ("me",))
    assert mine.overruled()

    monkeypatch.setattr(os, "geteuid", lambda: me or 4712)
    assert mine.overruled() == ""
    everybodys.release()
    mine.release()


def test_some_users_beside_everybody(tmp_path: Path) -> None:
    """Whoever is first: those of some are overruled while everybody's is there, and that one never is."""
    cluster = f"cluster-e {tmp_path}"
    ua, ub = (ScopeLock(tmp_path / user, cluster, (user, user)) for user in ("ua", "u"))
    other = ScopeLock(tmp_path / "other", f"{cluster} elsewhere", ())
    assert [one.overruled() for one in (ua, ub, other)] == ["", "", ""]

    everybodys = ScopeLock(tmp_path / "all", cluster, ())
    assert [one.overruled() for one in (ua, ub, everybodys, ua)] == [me := f"process {os.getpid()}", me, "", me]
    everybodys.release()

    assert ua.overruled() == ""
    for one in (ua, ub, other):
        one.release()
