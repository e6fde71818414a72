"""From an address and a token file to a server that runs until it is told to end."""

from __future__ import annotations

import ipaddress
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from slurm_hadar.errors import ConfigError
from slurm_hadar.web.guard import HEADERS

__all__ = ["address", "read_token", "serve"]

_LEAST_TOKEN = 16


def address(text: str, has_token: bool) -> tuple[str, int]:
    """Host and port of ``HOST:PORT`` (``[::1]:8641`` for IPv6). Raises ConfigError for any other text, and for a host
    that others can reach, unless there is a token."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(f"--listen {text!r} must read HOST:PORT, such as 127.0.0.1:8641")
    if not has_token and not _is_loopback(host):
        raise ConfigError(
            f"--listen {text} can be reached from other hosts: give --token-file, or listen on 127.0.0.1 and put a "
            "proxy with TLS and a login in front"
        )
    return host, int(port)


def _is_loopback(host: str) -> bool:
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


class _Protocol(H11Protocol):
    """uvicorn's, whose own refusal of what is no HTTP has our headers too."""

    def send_400_response(self, msg: str) -> None:
        headers = {"Content-Type": "text/plain; charset=utf-8", "Connection": "close", **HEADERS}
        start = h11.Response(status_code=400, headers=list(headers.items()))
        for event in (start, h11.Data(data=msg.encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def serve(app: ASGIApp, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT, and return. ``tell`` is given the address once it is ours; port 0 takes a free
    one. Requests are not logged: a token may be in their addresses. Raises ConfigError if it cannot listen there."""
    settings = uvicorn.Config(
        app,
        http=_Protocol,
        access_log=False,
        log_level="warning",
        server_header=False,
        lifespan="off",
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(settings)
    try:
        listening = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigError(f"cannot listen on {host} port {port}: {error.strerror or error}; see --listen") from None

    def stop(_number: int, _frame: object) -> None:
        server.should_exit = True

    # uvicorn raises once more what it was ended by, which then finds these handlers: an ordinary end
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop)
    shown = f"[{host}]" if ":" in host else host
    tell(f"http://{shown}:{listening.getsockname()[1]}/")
    with listening:
        server.run(sockets=[listening])
