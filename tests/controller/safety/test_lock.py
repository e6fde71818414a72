"""One controller to a scope."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurm_hadar.controller.safety import lock
from slurm_hadar.controller.safety.lock import ScopeLock, holder
from slurm_hadar.errors import ControllerRunning, StoreError

OTHER = 65534  # nobody


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
    held = ScopeLock(tmp_path / "a", "cluster-h", ())
    assert holder(tmp_path / "a", "cluster-i", ()) == f"process {os.getpid()} with the state directory {tmp_path / 'a'}"
    assert "another state directory" in holder(tmp_path / "b", "cluster-h", ())
    assert holder(tmp_path / "b", "cluster-h", ("bob",)) == ""
    held.release()
    assert holder(tmp_path / "a", "cluster-h", ()) == ""


@pytest.mark.parametrize(
    ("first", "second", "whose"),
    [
        (("ua",), ("ub", "ua"), "ua"),
        (("ua", "ub", "uc"), ("ub", "ux", "uc"), "ub, uc"),
        (("ub", "DOM\\a b"), ("DOM\\a b",), r"DOM\\a b"),
        (("ü" * 40,), ("ü" * 40,), "ü" * 40),
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


@pytest.fixture
def of_another_user() -> Iterator[Callable[..., int]]:
    """Start a process of another account that takes a lock, or names of sockets, and holds it; gives its number."""
    if os.geteuid() != 0:
        pytest.skip("only root can act as other users")
    started = list[tuple[int, int]]()

    def start(act: Callable[[], object]) -> int:
        ready, here = os.pipe()
        end, there = os.pipe()
        if (pid := os.fork()) == 0:
            os.close(there)
            os.setgid(OTHER)
            os.setuid(OTHER)
            kept = act()
            os.write(here, b"x" if kept else b"")
            os.read(end, 1)
            os._exit(0)
        os.close(end)
        os.close(here)
        started.append((pid, there))
        assert os.read(ready, 1), "the other user's process has failed"
        os.close(ready)
        return pid

    yield start
    for pid, there in started:
        os.close(there)
        os.waitpid(pid, 0)


def test_another_user_shuts_nobody_out(short_tmp: Path, tmp_path: Path, of_another_user: Callable[..., int]) -> None:
    """Anybody may start a controller for everybody, by accident too; it changes that user's jobs only."""
    cluster = f"cluster-s {tmp_path}"
    short_tmp.chmod(0o777)
    pid = of_another_user(lambda: ScopeLock(short_tmp / "theirs", cluster, ()))
    with pytest.raises(ControllerRunning, match=rf"all users of cluster cluster-s \(process {pid} of user nobody\)"):
        ScopeLock(tmp_path / "a", cluster, (), lambda uid: uid == OTHER)

    everybodys = ScopeLock(tmp_path / "a", cluster, ())
    assert everybodys.ignored == [
        f"process {pid} of user nobody claims to steer all users, too; it may change that user's own jobs only"
    ]
    mine = ScopeLock(tmp_path / "mine", cluster, ("me",))
    assert mine.overruled() == f"process {os.getpid()}" and everybodys.overruled() == ""
    everybodys.release()
    assert mine.overruled() == ""
    assert holder(tmp_path / "x", cluster, ()) == f"process {pid} of user nobody with another state directory"
    mine.release()


def test_names_that_another_user_takes_are_no_controllers(tmp_path: Path, of_another_user: Callable[..., int]) -> None:
    """Nor does who connects to a controller's, and goes on to, keep it from being known."""
    cluster = f"cluster-n {tmp_path}"

    def take() -> list[socket.socket]:
        taken = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(3)]
        for one, (uid, user) in zip(taken, ((0, ""), (0, "me"), (OTHER, "me")), strict=True):
            one.bind("\0" + lock._name(cluster, uid, user))  # noqa: SLF001
            one.listen(1)
        return taken

    of_another_user(take)
    mine = ScopeLock(tmp_path / "mine", cluster, ("me",))
    assert mine.overruled() == "" and len(mine.ignored) == 2 and "name" in mine.ignored[1]
    everybodys = ScopeLock(tmp_path / "all", cluster, ())
    assert everybodys.ignored == [
        "another account has taken this one's name, so a second controller would not be noticed"
    ]
    everybodys.release()
    mine.release()


def test_it_is_known_however_often_it_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has asked is let go in each round; the kernel keeps so many and no more."""
    cluster = f"cluster-q {tmp_path}"
    monkeypatch.setattr(lock, "_WAITING", 3)
    everybodys, mine = ScopeLock(tmp_path / "all", cluster, ()), ScopeLock(tmp_path / "mine", cluster, ("me",))
    for _ in range(12):
        assert mine.overruled() and not everybodys.overruled()
    everybodys.release()
    mine.release()


def test_it_is_known_though_others_keep_its_name_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may connect, so often that the kernel takes no more."""
    cluster = f"cluster-b {tmp_path}"
    monkeypatch.setattr(lock, "_WAITING", 2)
    first, crowd = ScopeLock(tmp_path / "a", cluster, ("anna",)), list[socket.socket]()
    try:
        while True:
            crowd.append(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK))
            try:
                crowd[-1].connect("\0" + lock._name(cluster, os.geteuid(), "anna"))  # noqa: SLF001
            except BlockingIOError:
                break

        with pytest.raises(ControllerRunning, match=f"process {os.getpid()}"):
            ScopeLock(tmp_path / "b", cluster, ("anna",))
        assert holder(tmp_path / "b", cluster, ("anna",)).startswith(f"process {os.getpid()} ")
    finally:
        for one in crowd:
            one.close()
        first.release()


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


def test_a_lock_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    """As on a full disk; nothing stays open."""
    before, (soft, hard) = set(Path("/proc/self/fd").iterdir()), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(StoreError, match=r"controller\.lock cannot be locked and written: File too large"):
            ScopeLock(tmp_path, "here", ())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert set(Path("/proc/self/fd").iterdir()) <= before
