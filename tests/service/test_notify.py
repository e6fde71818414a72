"""systemd's notification protocol, against a real socket."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_hadar.service.notify import Notifier


class Manager:
    """The service manager's end."""

    def __init__(self, address: str) -> None:
        self.name = address.replace("\0", "@", 1)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(5)

    def hears(self) -> dict[str, str]:
        """The fields of the next datagram."""
        text = self.socket.recv(4096).decode()
        assert text.endswith("\n")
        return dict(line.split("=", 1) for line in text.splitlines())

    def silent(self) -> bool:
        self.socket.setblocking(False)
        try:
            return not self.socket.recv(4096)
        except BlockingIOError:
            return True


@pytest.fixture(params=["file", "abstract"])
def manager(request: pytest.FixtureRequest, short_tmp: Path) -> Iterator[Manager]:
    """Listening at a file, or at a name of Linux's abstract space."""
    address = str(short_tmp / "notify") if request.param == "file" else f"\0hadar-test-{os.getpid()}"
    made = Manager(address)
    yield made
    made.socket.close()


def test_what_is_said_of_a_life(manager: Manager) -> None:
    """Ready, status, reloading with the monotonic clock, stopping: as sd_notify(3) has them."""
    told = Notifier({"NOTIFY_SOCKET": manager.name})

    told.ready("first round")
    assert manager.hears() == {"READY": "1", "STATUS": "first round"}
    told.status("round 1\nof many")
    assert manager.hears() == {"STATUS": "round 1 of many"}
    told.reloading()
    reloading = manager.hears()
    assert reloading["RELOADING"] == "1" and int(reloading["MONOTONIC_USEC"]) > 0
    told.stopping()
    assert manager.hears() == {"STOPPING": "1"}


def test_the_watchdog_is_petted_now_and_then(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times in its time, however often the loop says that it is alive."""
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    told = Notifier({"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "60000000", "WATCHDOG_PID": str(os.getpid())})

    assert told.watchdog_s == 60
    told.alive()
    assert manager.hears() == {"WATCHDOG": "1"}
    clock[0] += 5.9
    told.alive()
    assert manager.silent()
    clock[0] += 0.2
    told.alive()
    assert not manager.silent()


@pytest.mark.parametrize("environment", [{"WATCHDOG_USEC": "5000000", "WATCHDOG_PID": "1"}, {}, {"WATCHDOG_USEC": "x"}])
def test_a_watchdog_that_is_not_ours(environment: dict[str, str]) -> None:
    """Another process is meant, or none: nothing is promised."""
    assert Notifier(environment).watchdog_s == 0


def test_children_do_not_inherit_the_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hook or a training must not speak for the service."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/x")
    monkeypatch.setenv("WATCHDOG_USEC", "1")

    assert Notifier().listening
    assert "NOTIFY_SOCKET" not in os.environ and "WATCHDOG_USEC" not in os.environ


def test_without_systemd_nothing_is_said() -> None:
    told = Notifier({})

    told.ready()
    told.alive()
    assert not told.listening


def test_a_manager_that_is_gone_is_said_once(short_tmp: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It costs a line in the log, not the service."""
    told = Notifier({"NOTIFY_SOCKET": str(short_tmp / "nobody")})

    with caplog.at_level(logging.WARNING):
        told.ready()
        told.status("x")

    (line,) = caplog.messages
    assert line.startswith("systemd cannot be told READY=1: ")
