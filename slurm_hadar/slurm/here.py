"""Which slurmctld are this host's own, whatever it is called."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence

from slurm_hadar.errors import SlurmError
from slurm_hadar.slurm.state import Daemon

__all__ = ["daemons_here"]

_NO_SUCH_NAME = (socket.EAI_NONAME, socket.EAI_NODATA)


def daemons_here(daemons: Sequence[Daemon], host: str = "") -> tuple[Daemon, ...]:
    """Those that run on this host: by its name (``host``, else as the system tells it), in full or its first part, in
    any case; where none is of that name, by the addresses that theirs resolve to. Raises SlurmError if that cannot be
    told, since a name is not resolved for now."""
    mine = _names(host or socket.gethostname())
    named = tuple(d for d in daemons if mine & (_names(d.host) | _names(d.address)))
    if named:
        return named
    local = {name: _is_local(name) for d in daemons for name in (d.host, d.address) if name}
    found = tuple(d for d in daemons if local.get(d.host) or local.get(d.address))
    unknown = [name for name, here in local.items() if here is None]
    if unknown and not found:
        raise SlurmError(f"whether this host is {' or '.join(unknown)} cannot be told: the name is not resolved now")
    return found


def _names(name: str) -> set[str]:
    name = name.rstrip(".").lower()
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return {name, name.partition(".")[0]} - {""}
    return {name}


def _is_local(name: str) -> bool | None:
    """Whether an address of this name is one of this host's, loopback aside, which each host has; None if nobody can
    resolve it now. Nothing is sent: to an address of its own the kernel would speak from that same one."""
    try:
        found = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)
    except socket.gaierror as error:
        return False if error.errno in _NO_SUCH_NAME else None
    except UnicodeError:
        return False
    return any(_speaks_from(family, address) for family, _, _, _, address in found)


def _speaks_from(family: int, address: tuple[str | int, ...] | tuple[int, bytes]) -> bool:
    wanted = str(address[0])
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as one:  # fails where the kernel has no such family
            one.connect(address)
            return one.getsockname()[0] == wanted and not ipaddress.ip_address(wanted.partition("%")[0]).is_loopback
    except OSError:
        return False
