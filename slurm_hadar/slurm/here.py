"""Which slurmctld are this host's own, whatever it is called."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from slurm_hadar.slurm.state import Daemon

__all__ = ["daemons_here"]


def daemons_here(daemons: Sequence[Daemon], host: str = "") -> tuple[Daemon, ...]:
    """Those that run on this host: by its name (``host``, else as the system tells it), in full or its first part, in
    any case; where none is of that name, by the addresses that theirs resolve to."""
    mine = _names(host or socket.gethostname())
    named = tuple(d for d in daemons if mine & (_names(d.host) | _names(d.address)))
    return named or tuple(d for d in daemons if any(_is_local(name) for name in (d.host, d.address) if name))


def _names(name: str) -> set[str]:
    name = name.rstrip(".").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return {name, name.partition(".")[0]} - {""}
    return {name}


def _is_local(name: str) -> bool:
    """Whether an address of this name is one of this host's, loopback aside, which each host has. Nothing is sent: to
    an address of its own the kernel would speak from that same one."""
    try:
        found = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
    except (OSError, UnicodeError):
        return False
    return any(_speaks_from(family, address) for family, _, _, _, address in found)


def _speaks_from(family: int, address: tuple[str | int, ...] | tuple[int, bytes]) -> bool:
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        try:
            one.connect(address)
        except OSError:
            return False
        wanted = str(address[0])
        return one.getsockname()[0] == wanted and not ipaddress.ip_address(wanted.partition("%")[0]).is_loopback
