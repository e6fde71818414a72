"""Brokers that are killed, that come late, or that do not come."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import ChannelError
from slurm_hadar.sharing.broker import client
from slurm_hadar.sharing.broker.client import Session, Work
from slurm_hadar.sharing.broker.queries import status_of
from slurm_hadar.sharing.broker.server import Broker
from slurm_hadar.sharing.broker.settings import Limits, Rules
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.turns import Policy
from tests.sharing.broker.conftest import WORK, raw, turns


@pytest.fixture
def broker_process(process: Any, short_tmp: Path, poll: Any) -> Callable[[], subprocess.Popen[str]]:
    """Start ``hadar share broker``, and wait until it answers."""

    def start() -> subprocess.Popen[str]:
        begun = process("-m", "slurm_hadar.cli.main", "share", "broker", "--socket", str(short_tmp / "s"),
                        "--policy", "fair", "--memory", "1000")  # fmt: skip
        # a Python that starts beside other suites, which go first
        poll(lambda: (short_tmp / "s").exists() and _answers(short_tmp / "s"), deadline_s=120.0)
        return begun

    return start


def _answers(path: Path) -> bool:
    try:
        raw(path).close()
    except OSError:
        return False
    return True


def test_sessions_come_back_to_a_broker_that_was_killed(
    broker_process: Any, job: Any, short_tmp: Path, poll: Any
) -> None:
    first = broker_process()
    job("a")
    poll(lambda: turns(short_tmp).count("a end False") > 5)
    first.kill()
    first.wait()
    second = broker_process()
    before = len(turns(short_tmp))

    poll(lambda: len(turns(short_tmp)) > before + 20)
    assert turns(short_tmp)[-1].endswith("False") and second.poll() is None


def test_a_turn_that_was_taken_back_is_not_gone_on_with_when_the_broker_dies(
    broker_process: Any, short_tmp: Path
) -> None:
    """By who has not heard of it yet: another one is in its turn."""
    said: list[str] = []
    broker = broker_process()
    resting, computing = (Session(short_tmp / "s", WORK, return_s=0.3, say=said.append) for _ in range(2))
    with resting.iteration():
        pass
    with computing.iteration():
        broker.kill()
        broker.wait()
        with resting.iteration():
            assert resting.alone and len(said) == 1
    computing.close()


def test_a_broker_that_does_not_come_back_is_given_up(broker_process: Any, short_tmp: Path) -> None:
    """In the middle of a turn; a broker that is ended leaves no socket behind."""
    said: list[str] = []
    broker = broker_process()
    session = Session(short_tmp / "s", WORK, return_s=0.3, say=said.append)
    with session.iteration():
        assert not session.alone
        broker.terminate()
        assert broker.wait(300) == 0

    with session.iteration():
        assert session.alone and len(said) == 1
    assert not (short_tmp / "s").exists()


def test_a_broker_that_comes_late_is_joined(
    broker_process: Any, short_tmp: Path, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By who has run as if alone, at one of its next turns."""
    monkeypatch.setattr(client, "_AGAIN_S", 0.1)
    said: list[str] = []
    session = Session(short_tmp / "s", WORK, return_s=0.1, say=said.append)
    with session.iteration():
        assert session.alone
    broker_process()

    def turn() -> bool:
        with session.iteration():
            return not session.alone

    poll(turn)
    assert len(status_of(short_tmp / "s")["sessions"]) == 1
    assert len(said) == 2 and "takes turns from now on" in said[1]
    session.close()


def test_a_broker_that_comes_late_and_refuses_ends_nobody(
    broker_process: Any, short_tmp: Path, poll: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_AGAIN_S", 0.1)
    said: list[str] = []
    session = Session(short_tmp / "s", Work(Demand(10**15, 0)), return_s=0.1, say=said.append)
    broker_process()

    def refused() -> bool:
        with session.iteration():
            return len(said) > 1

    poll(refused)
    assert session.alone and "refuses this job" in said[1]
    assert not refused() or len(said) == 2


@pytest.mark.parametrize("theirs", [True, False])
def test_a_socket_that_lets_nobody_in_holds_nobody_up(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch, theirs: bool
) -> None:
    """Another user's, or that of an own broker which stands still: as many wait there as may."""
    path = short_tmp / "s"
    with contextlib.ExitStack() as stack:
        listener, *waiting = (stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3))
        listener.bind(str(path))
        listener.listen(0)
        with pytest.raises(BlockingIOError):
            for one in waiting:
                one.setblocking(False)
                one.connect(str(path))
        if theirs:
            monkeypatch.setattr(client, "trusted", lambda _: False)
            with pytest.raises(ChannelError, match="is one of user"):
                Session(path, WORK)
            return
        said: list[str] = []
        assert Session(path, WORK, return_s=0.1, say=said.append).alone
        assert "no broker" in said[0]


def test_without_a_broker_a_job_runs_as_if_alone_and_says_so(short_tmp: Path) -> None:
    said: list[str] = []
    session = Session(short_tmp / "none", WORK, say=said.append)
    for _ in range(3):
        with session.iteration():
            pass

    assert session.alone and len(said) == 1
    assert said[0].startswith(f"no broker at {short_tmp}/none (No such file or directory): this job runs as if the GPU")


def test_a_second_broker_is_refused_and_one_that_died_leaves_nothing_in_the_way(running: Any, short_tmp: Path) -> None:
    (short_tmp / "s").touch()  # left by one that died
    running()

    with pytest.raises(ChannelError, match="another broker serves"):
        Broker(short_tmp / "s", Rules(Policy.FAIR, 1000), Limits(), print)
