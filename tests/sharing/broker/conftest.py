"""Brokers in a thread and in a process, and jobs that take turns."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.sharing.broker.arbiter.arbiter import Arbiter
from slurm_hadar.sharing.broker.client import Work
from slurm_hadar.sharing.broker.server import Broker
from slurm_hadar.sharing.broker.settings import Limits, Rules
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.turns import Policy

MS = 1_000_000
DEMAND = Demand(10, 50)
WORK = Work(DEMAND, label="test")
#: Takes turns for ever; a line at the begin and the end of each.
JOB = """
import sys, time
from pathlib import Path
from slurm_hadar.sharing.broker.client import Session, Work
from slurm_hadar.sharing.lanes import Demand
work = Work(Demand(10, 50), label=sys.argv[2])
session = Session(Path(sys.argv[1]), work, return_s=120.0)  # a Python that starts on a busy machine
with open(sys.argv[3], "a", buffering=1) as log:
    while True:
        with session.iteration():
            log.write(f"{sys.argv[2]} begin {session.alone}\\n")
            time.sleep(float(sys.argv[4]))
            log.write(f"{sys.argv[2]} end {session.alone}\\n")
"""


def arbiter_of(policy: Policy = Policy.FAIR, *names: str, memory: int = 1000, grace_ns: int = 2 * MS) -> Arbiter:
    arbiter = Arbiter(Rules(policy, memory, grace_ns=grace_ns))
    for name in names:
        arbiter.join(name, DEMAND, 0, "", 0)
    return arbiter


def ten_turns(arbiter: Arbiter, now: int) -> list[str]:
    """Whose they are, where everybody asks again at once."""
    turns = []
    for _ in range(10):
        (name,) = arbiter.holders()
        turns.append(name)
        now += MS
        arbiter.done(name, now)
        arbiter.want(name, now)
    return turns


class _Running:
    """A broker in a thread, and somebody who is there until the test is done."""

    def __init__(self, path: Path, policy: Policy = Policy.FAIR, limits: Limits | None = None) -> None:
        self.said: list[str] = []
        limits = limits or Limits(linger_s=0.3)
        self.broker = Broker(path, Rules(policy, 1000), limits, self.said.append)
        self.keeper = raw(path)  # before it serves: it ends when nobody has come for linger_s
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        self.broker.serve()
        self.broker.close()


@pytest.fixture
def running(short_tmp: Path) -> Iterator[Callable[..., _Running]]:
    started = []

    def start(**given: Any) -> _Running:
        started.append(_Running(short_tmp / "s", **given))
        return started[-1]

    yield start
    for one in started:
        one.keeper.close()
        one.thread.join(30)
        assert not one.thread.is_alive(), "a broker has not ended though nobody is left"


@pytest.fixture
def process() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*words: str) -> subprocess.Popen[str]:
        begun = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)
        started.append(begun)
        return begun

    yield start
    for one in started:
        one.kill()
        one.communicate()


@pytest.fixture
def job(process: Any, short_tmp: Path) -> Callable[..., subprocess.Popen[str]]:
    return lambda name, turn_s=0.002: process(
        "-c", JOB, str(short_tmp / "s"), name, str(short_tmp / "log"), str(turn_s)
    )


def turns(folder: Path) -> list[str]:
    log = folder / "log"
    return log.read_text().splitlines() if log.exists() else []


def raw(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.settimeout(20)
    sock.connect(str(path))
    return sock
