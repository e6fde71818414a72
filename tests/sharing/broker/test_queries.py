"""How a broker stands, and places that are not a forked child's."""

from __future__ import annotations

import errno
import os
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker import progress, queries
from slurm_hadar.sharing.broker.client import Session, Work
from slurm_hadar.sharing.broker.messages import Progress, SessionView, State
from slurm_hadar.sharing.broker.queries import FOLDER, sockets, status_of
from slurm_hadar.sharing.broker.server import Broker
from slurm_hadar.sharing.broker.settings import Limits, Rules
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.sizes import MOST_BYTES
from slurm_hadar.sharing.turns import Policy


@pytest.fixture
def gone() -> list[tuple[str, SessionView]]:
    return []


@pytest.fixture
def path(short_tmp: Path, gone: list[tuple[str, SessionView]]) -> Iterator[Path]:
    """Of a broker that is there until the test is done."""
    path = short_tmp / "s"
    broker = Broker(path, Rules(Policy.FAIR, 1000), Limits(linger_s=None), print, lambda *who: gone.append(who))
    stop, stopped = os.pipe()
    thread = threading.Thread(target=broker.serve, args=(stop,))
    thread.start()
    yield path
    os.close(stopped)
    thread.join(20)
    assert not thread.is_alive()
    broker.close()
    os.close(stop)


def _session(path: Path, label: str, total: int = 60) -> Session:
    return Session(path, Work(Demand(10, total - 10), label=label))


def test_lanes_turns_and_who_waits_are_told(path: Path, poll: Any) -> None:
    assert status_of(path) == {"policy": "fair", "memory_bytes": 1000, "reserved_bytes": 0, "lanes": [], "sessions": []}
    first, second = _session(path, "a"), _session(path, "b", 100)
    with first.iteration():
        waiting = threading.Thread(target=lambda: _session(path, "c", 990).close())
        waiting.start()
        asked = threading.Thread(target=second.take)
        asked.start()

        def stands() -> dict[str, Any] | None:
            told = status_of(path)
            states = {one["label"]: one["state"] for one in told["sessions"]}
            return told if states == {"a": "turn", "b": "wants", "c": "waiting"} else None

        told = poll(stands)
    asked.join(20)

    (lane,) = told["lanes"]
    a, b, c = sorted(told["sessions"], key=lambda one: one["label"])
    assert (lane["bytes"], lane["turn"], told["reserved_bytes"]) == (90, a["session"], 110)
    assert lane["sessions"] == [a["session"], b["session"]] and lane["held_s"] > 0
    assert (a["pid"], a["turns"], a["share"], c["lane"]) == (os.getpid(), 1, 1.0, None)
    second.give_back()
    poll(lambda: [one["turns"] for one in status_of(path)["sessions"]] == [1, 1, 0])
    first.close()
    second.close()
    waiting.join(20)


def test_who_only_looks_is_no_session_and_who_leaves_is_told_of(
    path: Path, gone: list[tuple[str, SessionView]], poll: Any
) -> None:
    session = _session(path, "a")
    for _ in range(3):
        with session.iteration():
            status_of(path)
    session.close()

    poll(lambda: gone)
    ((label, view),) = gone
    assert (label, view.turns, view.demand) == ("a", 3, Demand(10, 50)) and view.used_ns > 0
    assert view.state is State.KEEPS


def test_a_forked_child_leaves_its_parents_turn_alone(path: Path) -> None:
    session = _session(path, "parent")
    told, tells = os.pipe()
    with session.iteration():
        child = os.fork()
        if not child:
            session.give_back()
            os.write(tells, b"x")
            session.take()  # by a place of its own
            os._exit(0 if not session.alone else 1)
        assert os.read(told, 1) == b"x"
        first, *_ = status_of(path)["sessions"]
        assert first["state"] == "turn"
    assert os.waitpid(child, 0)[1] == 0
    with session.iteration():
        assert not session.alone
    session.close()
    os.close(told)
    os.close(tells)


def test_a_turn_whose_wait_a_signal_has_cut_short_is_not_taken_for_the_next_one(path: Path) -> None:
    """As by ^C, where the script saves before it ends: the place is left, and taken anew."""
    first, second = _session(path, "a"), _session(path, "b")
    first.take()
    with pytest.MonkeyPatch.context() as patch:

        def interrupt(*_: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(second, "_next", interrupt)
        with pytest.raises(KeyboardInterrupt):
            second.take()
    first.give_back()

    second.take()
    assert not second.alone
    second.give_back()
    first.close()
    second.close()


def test_a_socket_without_a_broker_is_told_in_a_line(short_tmp: Path) -> None:
    with pytest.raises(ChannelError, match=r"no broker answers at .*: No such file or directory"):
        status_of(short_tmp / "none")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(short_tmp / "mute"))
        sock.listen()
        thread = threading.Thread(target=lambda: sock.accept()[0].close())
        thread.start()
        with pytest.raises(ChannelError):
            status_of(short_tmp / "mute")
        thread.join(20)


def test_only_own_brokers_are_looked_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(path.parent))
    monkeypatch.setenv("HADAR_SHARE_DIR", str(path.parent / "jobs"))
    folder = path.parent / f"{FOLDER}x"
    folder.mkdir()
    (folder / "gpu").symlink_to(path)
    assert sockets() == [folder / "gpu"]

    monkeypatch.setattr(queries, "trusted", lambda uid: uid == os.geteuid() + 1)
    assert sockets() == []
    with pytest.raises(ChannelError, match=f"is one of user {os.geteuid()}"):
        status_of(path)


def test_what_others_have_put_beside_the_brokers_hides_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may leave a link in /tmp under the name of this user's folders, to where this user may not look."""
    monkeypatch.setattr(tempfile, "tempdir", str(path.parent))
    monkeypatch.setenv("HADAR_SHARE_DIR", str(path.parent / "jobs"))
    folder, link = path.parent / f"{FOLDER}x", path.parent / f"{FOLDER}y"
    folder.mkdir()
    (folder / "gpu").symlink_to(path)
    link.symlink_to("/hidden/behind")
    looked = Path.stat

    def refused(one: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if one == link and follow_symlinks:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(one))
        return looked(one, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", refused)

    assert sockets() == [folder / "gpu"]


def test_only_the_own_brokers_and_an_administrators_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 4242)

    assert [uid for uid in (0, 1, 4241, 4242) if queries.trusted(uid)] == [0, 4242]


def test_a_duty_is_of_the_time_in_which_a_session_waits_for_nobody(
    path: Path, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has how many turns beside it; of one that has had none, or tells what cannot be, nothing is known."""
    real, later_ns = time.monotonic_ns, [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: real() + later_ns[0])
    small, large = _session(path, "small"), _session(path, "large")

    def told(key: str) -> dict[str, Any]:
        return {one["label"]: one[key] for one in status_of(path)["sessions"]}

    assert told("duty") == {"small": None, "large": None}
    for _ in range(8):
        later_ns[0] += 30 * 10**9  # between two iterations
        with large.iteration():
            asks = threading.Thread(target=small.take)
            asks.start()
            poll(lambda: told("state")["small"] == "wants")
            later_ns[0] += 100 * 10**9
        asks.join(20)
        later_ns[0] += 10 * 10**9
        small.give_back()

    assert told("duty") == {
        "small": pytest.approx(80 / (80 + 7 * 30), abs=0.01),
        "large": pytest.approx(800 / (800 + 7 * 40), abs=0.01),
    }
    monkeypatch.setattr("slurm_hadar.sharing.broker.progress.read", lambda _: Progress(away_ns=-1))
    assert told("duty") == {"small": None, "large": None}
    small.close()
    large.close()


def test_what_ends_while_a_broker_looks_is_charged_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, read, later_ns = time.monotonic_ns, progress.read, [0]
    monkeypatch.setattr(time, "monotonic_ns", lambda: clock() + later_ns[0])
    looks, ended = threading.Event(), threading.Event()

    def delayed(file: int) -> Progress:
        looks.set()
        assert ended.wait(300)
        return read(file)

    session = _session(path, "a")
    session.take()
    monkeypatch.setattr(progress, "read", delayed)
    asks = threading.Thread(target=status_of, args=(path,))
    asks.start()
    assert looks.wait(300)
    later_ns[0] += 100 * 10**9
    session.give_back()
    ended.set()
    asks.join(20)

    (row,) = status_of(path)["sessions"]
    assert row["used_s"] == pytest.approx(100, abs=5)
    session.close()


def test_measured_memory_is_told_and_reserves_nothing(path: Path) -> None:
    """The most of all iterations, as the session says it; what cannot be is not told."""
    session = _session(path, "a")
    assert status_of(path)["sessions"][0]["measured"] is None
    for sizes in ((5, 7), (4, 9)):
        with session.iteration():
            session.took(*sizes)
    assert status_of(path)["sessions"][0]["measured"] == {"persistent_bytes": 5, "ephemeral_bytes": 9}
    assert status_of(path)["reserved_bytes"] == 60
    with session.iteration():
        session.took(1 << 62, 0)
    assert status_of(path)["sessions"][0]["measured"] is None
    session.close()


def test_memory_that_is_not_counted_is_none(short_tmp: Path) -> None:
    broker = Broker(short_tmp / "s", Rules(Policy.FAIR, MOST_BYTES), Limits(linger_s=None), print)
    stop, stopped = os.pipe()
    thread = threading.Thread(target=broker.serve, args=(stop,))
    thread.start()
    try:
        assert status_of(short_tmp / "s")["memory_bytes"] is None
    finally:
        os.close(stopped)
        thread.join(20)
        broker.close()
        os.close(stop)
