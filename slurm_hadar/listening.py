"""Where servers of ours listen, and who may ask them: addresses, token files, and what a foreign site cannot fake."""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import resource
import socket
import stat
from functools import partial
from pathlib import Path
from typing import Any

from slurm_hadar.errors import ConfigError

__all__ = [
    "HeadsInTime", "address", "asked_locally", "bearer_is", "handshakes_in_time", "is_loopback", "open_socket",
    "read_token", "room_for", "shown",
]  # fmt: skip

_HEAD_S = 10.0
_LEAST_TOKEN = 16
_LOCAL = {"localhost", "127.0.0.1", "[::1]"}


def address(text: str, has_token: bool) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` (``[::1]:8641`` for IPv6). Raises ConfigError for any other text, and for a host
    that others can reach, unless there is a token."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen {text!r} must read HOST:PORT, such as 127.0.0.1:8641")
    if not has_token and not is_loopback(host):
        raise ConfigError(
            f"--listen {text} can be reached from other hosts: give --token-file, or listen on 127.0.0.1 and put a "
            "proxy with TLS and a login in front"
        )
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether only this host itself can reach it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(file: Path) -> str:
    """The first line of the file. Raises ConfigError if it is shorter than 16 characters or others can read it."""
    try:
        mode, lines = file.stat().st_mode, file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"token file {file} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    token = lines[0].strip() if lines else ""
    if len(token) < _LEAST_TOKEN or not token.isprintable() or not token.isascii():
        raise ConfigError(
            f"token file {file} must hold at least {_LEAST_TOKEN} characters: make one with "
            f"'openssl rand -hex 24 > {file}; chmod 600 {file}'"
        )
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        raise ConfigError(f"token file {file} can be read by others: chmod 600 {file}")
    return token


def open_socket(host: str, port: int) -> socket.socket:
    """Listening; port 0 takes a free one. Raises ConfigError where it cannot be had."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host} port {port}: {error.strerror or error}; choose another one"
        ) from None


def shown(host: str, listening: socket.socket) -> str:
    """``HOST:PORT`` as it stands in an address."""
    return f"[{host}]:{listening.getsockname()[1]}" if ":" in host else f"{host}:{listening.getsockname()[1]}"


def asked_locally(host_header: str) -> bool:
    """Whether who asks named this host itself: else a foreign site could read our answers under a name of its own that
    leads here."""
    name = host_header if host_header.endswith("]") else host_header.rpartition(":")[0] or host_header
    return name.lower() in _LOCAL


def bearer_is(authorization: str, token: bytes) -> bool:
    """Whether a header ``Authorization`` brings this token."""
    kind, _, given = authorization.partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token)


def room_for(connections: int) -> None:
    """Let this process have as many open files, as far as its hard limit goes. The usual limit of 1,024 is there for
    programs that use select(2)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections if hard == resource.RLIM_INFINITY else min(connections, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def handshakes_in_time(loop: asyncio.AbstractEventLoop) -> None:
    """Let what listens from now on in this loop end encrypted connections that have not begun after 10 s. Of those no
    protocol is told; uvicorn leaves them the 60 s that asyncio has."""
    listen = partial(loop.create_server, ssl_handshake_timeout=_HEAD_S)
    loop.create_server = listen  # type: ignore[method-assign]


class HeadsInTime:
    """Before one of uvicorn's HTTP protocols: ends a connection on which no request has come whole up to its body for
    10 s. uvicorn has no such limit, and a client that sends half of a head could hold a connection for ever. Between
    requests uvicorn's own limit holds (``timeout_keep_alive``)."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any  # of the latest request whose head is complete
    _due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)  # type: ignore[misc]
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)  # type: ignore[misc]

    def data_received(self, data: bytes) -> None:
        super().data_received(data)  # type: ignore[misc]
        if self.cycle is not None and not self.cycle.response_complete:
            self._wait_no_more()
        elif self._due is None:
            self._wait()

    def _wait(self) -> None:
        self._due = self.loop.call_later(_HEAD_S, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None
