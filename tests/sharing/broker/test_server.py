"""A broker and its jobs, over a real socket."""

from __future__ import annotations

import contextlib
import functools
import json
import mmap
import os
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker import client, connections, progress, server
from slurm_hadar.sharing.broker.client import Session, Work
from slurm_hadar.sharing.broker.queries import give_way, status_of
from slurm_hadar.sharing.broker.settings import Limits, Rules
from slurm_hadar.sharing.broker.wire import LONGEST, decoded, encoded
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.turns import Policy
from tests.sharing.broker.conftest import WORK, raw, turns


def test_turns_of_processes_do_not_overlap(running: Any, job: Any, short_tmp: Path, poll: Any) -> None:
    running()
    jobs = [job("a"), job("b")]
    poll(lambda: all(sum(line.startswith(f"{n} end") for line in turns(short_tmp)) > 20 for n in "ab"))
    lines = [line.split() for line in turns(short_tmp)]  # before one is killed in its turn, and the other has the next
    for one in jobs:
        one.kill()

    for begin, end in zip(lines[::2], lines[1::2], strict=False):
        assert (begin[0], begin[1], end[1]) == (end[0], "begin", "end")
    assert all(alone == "False" for *_, alone in lines)


def test_a_job_alone_asks_once_and_gives_way_at_its_next_boundary(
    running: Any, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noted(line: bytes) -> dict[str, Any]:
        said = decoded(line)
        asked.append(said["op"])
        return said

    monkeypatch.setattr("slurm_hadar.sharing.broker.connections.decoded", noted)
    running()
    first, second = Session(short_tmp / "s", WORK), Session(short_tmp / "s", WORK)
    for _ in range(50):
        with first.iteration():
            pass
    assert asked == ["join", "join", "want"]

    with first.iteration():
        waits = threading.Thread(target=second.take)
        waits.start()
        waits.join(0.2)
        assert waits.is_alive()
    waits.join(20)
    assert not waits.is_alive()
    second.close()
    first.close()


@pytest.mark.parametrize("cleans", [False, True])
def test_who_rests_between_two_iterations_gives_way_at_once(running: Any, short_tmp: Path, cleans: bool) -> None:
    """Unless it has memory to give back first: then when it heeds."""
    running()
    cleaned: list[bool] = []

    def clean() -> tuple[int, int]:
        cleaned.append(True)
        return 5, 0

    first, second = Session(short_tmp / "s", WORK), Session(short_tmp / "s", WORK)
    for _ in range(3):
        first.take()
        first.give_back(clean if cleans else None)
    waits = threading.Thread(target=second.take)
    waits.start()
    waits.join(0.2)
    assert waits.is_alive() == cleans and not cleaned
    if cleans:
        assert first.heed() and cleaned == [True]
    waits.join(20)
    assert not waits.is_alive()
    takes_again = threading.Thread(target=first.take)
    takes_again.start()
    takes_again.join(0.2)
    assert takes_again.is_alive()
    second.give_back()
    takes_again.join(20)
    first.give_back(clean if cleans else None)
    with first.iteration():  # the broker has let go of the lock
        assert not takes_again.is_alive() and not first.alone
    second.close()
    first.close()


def test_who_keeps_its_turn_with_memory_in_it_hears_at_once_that_others_want_it(running: Any, short_tmp: Path) -> None:
    """It has listened since before it had the turn."""
    running()
    first, second = Session(short_tmp / "s", WORK), Session(short_tmp / "s", WORK)
    heeded: list[bool] = []

    def listen() -> None:
        first.until_said(60.0)
        heeded.append(first.heed())

    listens = threading.Thread(target=listen, daemon=True)
    listens.start()
    for _ in range(2):
        first.take()
        first.give_back(lambda: (0, 0))
    waits = threading.Thread(target=second.take, daemon=True)
    waits.start()
    waits.join(20)
    listens.join(20)  # the turn is the other's before this has come back
    assert not waits.is_alive() and heeded == [True]
    second.close()
    first.close()


def test_a_recall_is_known_before_it_is_read_and_over_with_the_next_turn(
    running: Any, short_tmp: Path, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[bool] = []
    recall = progress.recall

    def noted(page: mmap.mmap, recalled: bool) -> None:
        recall(page, recalled)
        said.append(recalled)

    monkeypatch.setattr(progress, "recall", noted)
    running()
    first, second = Session(short_tmp / "s", WORK), Session(short_tmp / "s", WORK)
    first.take()
    waits = threading.Thread(target=second.take, daemon=True)
    waits.start()
    poll(lambda: said == [False, True])
    with monkeypatch.context() as patch:
        patch.setattr(first, "heed", lambda: False)
        first.give_back()
    waits.join(20)
    assert not waits.is_alive()
    second.close()
    for _ in range(3):
        with first.iteration():
            pass
        assert next(row["state"] for row in status_of(short_tmp / "s")["sessions"]) == "keeps"
    first.close()


def test_memory_is_kept_until_somebody_needs_it(running: Any, short_tmp: Path) -> None:
    """Who rests gives it back when it heeds, who waits for its turn at once, who has the turn at its end."""
    running()
    freed: list[str] = []
    path = short_tmp / "s"
    work = Work(Demand(100, 200), can_keep=True)
    sessions = {name: Session(path, work) for name in ("rests", "waits", "works")}
    for name, session in sessions.items():
        session.free = functools.partial(freed.append, name)
        with session.iteration():
            pass
        session.heed()
    assert all(session.may_keep for session in sessions.values())

    sessions["works"].take()
    waits = threading.Thread(target=sessions["waits"].take, daemon=True)
    waits.start()
    joined: list[Session] = []
    comes = threading.Thread(target=lambda: joined.append(Session(path, Work(Demand(100, 400)))), daemon=True)
    comes.start()
    comes.join(0.2)
    assert comes.is_alive() and "rests" not in freed
    sessions["rests"].heed()
    sessions["works"].give_back()
    waits.join(20)
    comes.join(20)
    assert not waits.is_alive() and not comes.is_alive() and sorted(freed) == ["rests", "waits", "works"]
    assert not any(session.may_keep for session in sessions.values())
    joined[0].close()
    for session in sessions.values():
        session.close()


def test_who_waits_for_room_is_told_so_once(
    running: Any, short_tmp: Path, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be hours, and nothing goes on meanwhile. Who is let in at once is told nothing."""
    monkeypatch.setattr(client, "_TELL_S", 0.1)
    monkeypatch.setattr(client, "_LOOK_S", 0.05)
    running()
    said: list[str] = []
    holder = Session(short_tmp / "s", Work(Demand(900, 0)), say=said.append)
    assert not said
    looks: list[Session] = []
    monkeypatch.setattr(Session, "_look_for_another", lambda self: looks.append(self))
    joined: list[Session] = []
    comes = threading.Thread(
        target=lambda: joined.append(Session(short_tmp / "s", Work(Demand(900, 0)), say=said.append)), daemon=True
    )
    comes.start()
    poll(lambda: bool(said))
    looks.clear()
    poll(lambda: len(looks) > 4)

    holder.close()
    comes.join(20)
    assert not comes.is_alive() and len(said) == 1 and "it waits to be let in on the shared GPU" in said[0]
    joined[0].close()


def test_who_does_not_give_memory_back_is_told_of(running: Any, short_tmp: Path, poll: Any) -> None:
    one = running(limits=Limits(linger_s=0.3, report_s=0.1))
    keeps = Session(short_tmp / "s", Work(Demand(100, 500), label="sleeper", can_keep=True))
    comes = threading.Thread(target=lambda: Session(short_tmp / "s", Work(Demand(100, 600))).close(), daemon=True)
    comes.start()
    poll(lambda: one.said)
    assert "(sleeper) has not given its cache of memory back for 0 s; who needs it waits" in one.said[0]
    assert comes.is_alive()
    keeps.close()
    comes.join(20)
    assert not comes.is_alive()


def test_who_is_killed_in_its_turn_leaves_it_to_the_others(running: Any, job: Any, short_tmp: Path, poll: Any) -> None:
    running()
    stuck = job("stuck", 1000)
    poll(lambda: "stuck begin False" in turns(short_tmp))
    job("other")
    stuck.kill()

    poll(lambda: turns(short_tmp).count("other end False") > 5)


def test_who_holds_its_turn_too_long_is_told_of_and_killed_where_that_is_wanted(
    running: Any, job: Any, short_tmp: Path, poll: Any
) -> None:
    broker = running(limits=Limits(linger_s=0.3, report_s=0.2, kill_s=0.6))
    stuck = job("stuck", 1000)
    poll(lambda: "stuck begin False" in turns(short_tmp))
    job("other")

    assert poll(lambda: stuck.poll()) == -signal.SIGKILL
    poll(lambda: turns(short_tmp).count("other end False") > 5)
    assert next(line for line in broker.said if "stuck" in line and "held its turn for" in line).endswith("wait")
    assert any("(stuck) is killed" in line for line in broker.said)


def test_who_has_come_before_the_broker_looked_is_let_in(running: Any, short_tmp: Path) -> None:
    """However late it looks, as on a busy node."""
    running(limits=Limits(linger_s=0.0))
    with Session(short_tmp / "s", WORK).iteration():
        assert len(status_of(short_tmp / "s")["sessions"]) == 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (b"hello\n", "is no JSON"),
        (b"[" * 3000 + b"\n", "is no JSON"),
        (b"[1]\n", "is no object with an op"),
        (b'{"op": "sing"}\n', "is no op that is known: join, want, done, freed, status"),
        (b'{"op": "want"}\n', "has not been admitted"),
        (b'{"op": "join", "persistent_bytes": -1, "ephemeral_bytes": 1}\n', "persistent_bytes must be a whole number"),
        (b'{"op": "join", "persistent_bytes": 1, "ephemeral_bytes": true}\n', "ephemeral_bytes must be a whole"),
        (b'{"op": "join", "persistent_bytes": 1, "ephemeral_bytes": 1, "total_s": NaN}\n', "total_s must be a number"),
        (b'{"op": "join", "persistent_bytes": 999, "ephemeral_bytes": 9}\n', "1008 bytes are needed, and the GPU has"),
        (b"x" * (LONGEST + 1), f"is longer than {LONGEST} bytes"),
    ],
)
def test_who_breaks_the_protocol_is_refused_and_costs_nobody_else(
    running: Any, short_tmp: Path, words: bytes, says: str
) -> None:
    broker = running()
    with Session(short_tmp / "s", WORK).iteration(), raw(short_tmp / "s") as sock:
        sock.sendall(words)
        answer = json.loads(sock.makefile().readline())

        assert answer["op"] == "refused" and says in answer["reason"]
        assert sock.recv(1) == b""
    assert any(says in line for line in broker.said)


@pytest.mark.parametrize("rest", [b"", b'{"op": "want"}\n'])
def test_what_somebody_said_who_does_not_listen_any_more_leaves_nothing_behind(
    running: Any, short_tmp: Path, rest: bytes
) -> None:
    running()
    join = json.dumps({"op": "join", "persistent_bytes": 900, "ephemeral_bytes": 0}).encode() + b"\n"
    with raw(short_tmp / "s") as sock:
        sock.shutdown(socket.SHUT_RD)  # what it is told fails
        sock.sendall(join + join + rest)

    with Session(short_tmp / "s", Work(Demand(900, 50))).iteration():
        told = status_of(short_tmp / "s")
    assert [len(lane["sessions"]) for lane in told["lanes"]] == [1]


NAMED = """
import sys
from pathlib import Path
from slurm_hadar.sharing.broker.client import Session, Work
from slurm_hadar.sharing.lanes import Demand
Path("/proc/self/comm").write_bytes(b") Z 1 (\\xd0")
with Session(Path(sys.argv[1]), Work(Demand(10, 50))).iteration():
    print("a turn", file=sys.stderr)
"""


def test_a_process_of_any_name_has_turns_and_costs_nobody_the_broker(
    running: Any, process: Any, short_tmp: Path
) -> None:
    running()
    _, said = process("-c", NAMED, str(short_tmp / "s")).communicate(timeout=300)

    assert said == "a turn\n"
    Session(short_tmp / "s", WORK).close()


def test_a_job_that_is_refused_is_told_why(running: Any, short_tmp: Path) -> None:
    running()
    with pytest.raises(ChannelError, match="refuses this job: 1001 bytes are needed, and the GPU has 1000 for jobs"):
        Session(short_tmp / "s", Work(Demand(1001, 0)))


def test_other_users_are_refused(running: Any, short_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On both sides: by a broker, and a broker of theirs by a job."""
    broker = running()
    Session(short_tmp / "s", WORK).close()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 4242)
        with raw(short_tmp / "s") as sock:
            assert sock.recv(1) == b""
    with monkeypatch.context() as patch:
        patch.setattr(client, "credentials", lambda _: (1, os.getuid() + 1))
        with pytest.raises(ChannelError, match=f"is one of user {os.getuid() + 1}"):
            Session(short_tmp / "s", WORK)
    assert broker.said[0] == f"process {os.getpid()} of user {os.geteuid()} was refused"
    assert (short_tmp / "s").stat().st_mode & 0o777 == 0o600


def test_who_is_refused_again_and_again_fills_no_log(running: Any, short_tmp: Path) -> None:
    """As any user may be on purpose by an administrator's broker: there is room for no more, or it says nonsense."""
    broker = running(limits=Limits(linger_s=0.3, connections=2))
    held = raw(short_tmp / "s")
    for _ in range(30):
        with raw(short_tmp / "s") as sock:
            assert sock.recv(1) == b""
    held.close()
    for _ in range(30):
        with raw(short_tmp / "s") as sock, contextlib.suppress(ConnectionError):  # closed before it is read
            sock.sendall(b"nonsense\n")
            sock.recv(1)
    assert len(broker.said) == 11 and broker.said[0].endswith("was refused")
    assert broker.said[-1].startswith(f"further processes of user {os.getuid()} were refused")


def test_who_has_ended_while_it_came_leaves_no_descriptor_behind(
    running: Any, short_tmp: Path, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = running()
    assert len(status_of(short_tmp / "s")["sessions"]) == 0  # its keeper has come by now
    monkeypatch.setattr(connections, "_owner", lambda pid: Path(f"/proc/{pid}/gone").stat().st_uid)
    for _ in range(3):
        with raw(short_tmp / "s") as sock:
            assert sock.recv(1) == b""

    poll(lambda: _pidfds() == 1)  # that of its keeper
    assert broker.said[0].endswith("No such file or directory")


def test_who_stands_by_again_and_again_leaves_no_descriptor_behind(running: Any, short_tmp: Path) -> None:
    running()
    assert len(status_of(short_tmp / "s")["sessions"]) == 0
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(ChannelError, match="another broker serves"):
        server.Broker(short_tmp / "s", Rules(Policy.FAIR, 1000), Limits(), print)

    assert set(Path("/proc/self/fd").iterdir()) <= before


def _pidfds() -> int:
    return sum("pidfd" in str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink())


def test_an_administrators_broker_serves_all_users_and_leaves_room_for_each(
    running: Any, short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's connections are counted; of others' jobs nobody is told more than that they are there."""
    broker = running(limits=Limits(linger_s=0.3, all_users=True, per_user=3))
    mine = Session(short_tmp / "s", Work(Demand(0, 0), label="mine"))
    assert (short_tmp / "s").stat().st_mode & 0o777 == 0o666

    with monkeypatch.context() as patch:
        patch.setattr(connections, "credentials", lambda _: (os.getpid(), 4242))
        patch.setattr(connections, "_owner", lambda _: 4242)
        theirs = [raw(short_tmp / "s") for _ in range(4)]
        assert theirs[3].recv(1) == b""
        theirs[0].sendall(b'{"op": "status"}\n')
        told = json.loads(theirs[0].makefile().readline())
        assert [(one["user"], one["label"]) for one in told["sessions"]] == [(os.getuid(), "")]
        patch.setattr(connections, "credentials", lambda _: (os.getpid(), 4243))
        with raw(short_tmp / "s") as sock:
            assert sock.recv(1) == b""
    for sock in theirs:
        sock.close()
    (own,) = (one for one in status_of(short_tmp / "s")["sessions"])
    assert own["label"] == "mine" and not mine.alone
    assert broker.said[-1].endswith("of user 4243 was refused: it has ended")
    mine.close()


def test_who_asks_without_end_keeps_nobody_from_turns(
    running: Any, short_tmp: Path, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All questions of a user are answered, in a small part of the time, and none of one that has gone."""
    asked: list[str] = []

    def told(op: str, **values: Any) -> bytes:
        asked.extend([op] * (op == "status"))
        return encoded(op, **values)

    monkeypatch.setattr(server, "encoded", told)
    one = running()
    with raw(short_tmp / "s") as sock:
        sock.sendall(b'{"op": "status"}\n' * 2000)
        poll(lambda: bool(asked))
        session = Session(short_tmp / "s", WORK)
        for _ in range(5):
            with session.iteration():
                pass
        session.close()
        in_between = len(asked)
        poll(lambda: len(asked) > in_between)
    assert in_between < 500
    one.keeper.close()
    one.thread.join(30)
    assert len(asked) < 1000 and not one.thread.is_alive()


def test_a_job_gives_way_by_the_word_of_its_own_user_and_nobody_gets_more_by_his_own(
    running: Any, short_tmp: Path, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = short_tmp / "s"
    running(limits=Limits(linger_s=0.3, all_users=True))
    sessions = [Session(path, Work(Demand(10, 50), label=label)) for label in ("job 7 mine", "job 77 other")]

    def kept() -> dict[str, float | None]:
        return {str(n): one["gives_way"] for n, one in enumerate(status_of(path)["sessions"])}

    give_way(path, "7", 0.25, 30.0)
    poll(lambda: kept() == {"0": 0.25, "1": None})
    give_way(path, "7", 0.5, 0.0)
    give_way(path, "77", 0.0, 0.2)
    poll(lambda: set(kept().values()) == {None})  # the time is over
    for said in ({"share": 0.75, "for_s": 1}, {"share": 0, "for_s": 1e9}, {"share": True, "for_s": 1}, {"for_s": 1}):
        liar = raw(path)
        liar.sendall((json.dumps({"op": "give_way", "job": "7", **said}) + "\n").encode())
        assert b"refused" in liar.recv(4096)
        liar.close()
    with monkeypatch.context() as patch:
        patch.setattr(connections, "credentials", lambda _: (os.getpid(), 4242))
        patch.setattr(connections, "_owner", lambda _: 4242)
        give_way(path, "7", 0.0, 30.0)  # by another user's word
        kept()
    assert set(kept().values()) == {None}
    for session in sessions:
        session.close()
