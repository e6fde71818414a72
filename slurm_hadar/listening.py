"""Where servers of ours listen, and who may ask them: addresses, token files, and what a foreign site cannot fake."""

from __future__ import annotations

import hmac
import ipaddress
import socket
import stat
from pathlib import Path

from slurm_hadar.errors import ConfigError

__all__ = ["address", "asked_locally", "bearer_is", "is_loopback", "open_socket", "read_token", "shown"]

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
