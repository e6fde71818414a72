"""Which host acts where there are several slurmctld, by whatever name it goes."""

from __future__ import annotations

import logging
import socket

import pytest

from slurm_hadar.controller.safety.leadership import Leadership
from slurm_hadar.errors import SlurmError
from slurm_hadar.slurm import here
from slurm_hadar.slurm.state import Daemon
from slurm_hadar.testing.fake_slurm import FakeSlurm

_TWO = (Daemon("primary", "head1", True, "head1-ib"), Daemon("backup", "head2", True, "head2-ib"))


class _Slurm(FakeSlurm):
    def __init__(self, daemons: tuple[Daemon, ...]) -> None:
        super().__init__({})
        self._daemons = daemons

    def daemons(self) -> tuple[Daemon, ...]:
        return self._daemons


@pytest.fixture(autouse=True)
def resolver(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What names resolve to; no other name resolves. 192.0.2.2 is this host's."""
    names: dict[str, str] = {}

    def found(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if names.get(name, "") in ("", "away"):
            raise socket.gaierror(socket.EAI_AGAIN if name in names else socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_DGRAM, 17, "", (names[name], 9))]

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setattr(here, "_speaks_from", lambda _, address: address[0] == "192.0.2.2")
    return names


@pytest.mark.parametrize("host", ["head2", "head2.cluster.lan", "HEAD2", "Head2.Cluster.LAN", "head2-ib", "HEAD2-IB.x"])
def test_a_standby_stands_by_under_any_name(host: str) -> None:
    assert "slurmctld acts on head1" in Leadership(_Slurm(_TWO), "primary", host).standby()


@pytest.mark.parametrize("host", ["head1", "HEAD1", "head1-ib"])
def test_the_primary_acts_under_any_name(host: str) -> None:
    assert Leadership(_Slurm(_TWO), "primary", host).standby() == ""


def test_an_alias_is_known_by_its_address(resolver: dict[str, str]) -> None:
    resolver.update(head1="192.0.2.1", head2="192.0.2.2")
    assert "slurmctld acts on head1" in Leadership(_Slurm(_TWO), "primary", "cl7-mgmt").standby()


def test_a_standby_stands_by_while_nobody_resolves_its_name(resolver: dict[str, str]) -> None:
    """It knows its own from before; one that has just started cannot tell, and so does not act."""
    resolver.update(head1="192.0.2.1", head2="192.0.2.2")
    leadership = Leadership(_Slurm(_TWO), "primary", "cl7-mgmt")
    assert leadership.standby()
    resolver.update(head1="away", head2="away")
    assert "slurmctld acts on head1" in leadership.standby() and not leadership.sure()

    fresh = Leadership(_Slurm(_TWO), "primary", "cl7-mgmt")
    with pytest.raises(SlurmError, match="whether this host is head1 or head2 cannot be told"):
        fresh.standby()
    assert fresh.may_be_elsewhere()


def test_a_host_outside_acts_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    leadership = Leadership(_Slurm(_TWO), "primary", "login3")
    with caplog.at_level(logging.WARNING):
        assert leadership.standby() == leadership.standby() == ""
    assert [m for m in caplog.messages if "head1, head2" in m] == [caplog.messages[0]]


def test_addresses_of_this_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loopback tells nothing: each host has it. Nor does a family of addresses that the kernel does not have."""
    monkeypatch.undo()
    with monkeypatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", lambda *_, **__: [(99, socket.SOCK_DGRAM, 17, "", ("2001:db8::2", 9))])
        assert not here.daemons_here(_TWO, "x")
    assert not here.daemons_here((Daemon("primary", "127.0.0.1", True),), "x")
    assert not here.daemons_here((Daemon("primary", "nowhere.invalid", True),), "x")
