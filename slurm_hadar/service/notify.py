"""systemd's notification protocol (sd_notify): one datagram of ``NAME=VALUE`` lines to the socket it names.

Without systemd ($NOTIFY_SOCKET is not set) everything here does nothing. See sd_notify(3).
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

__all__ = ["Notifier"]

log = logging.getLogger(__name__)


class Notifier:
    """Tells the service manager how the service is.

    Parameters
    ----------
    environment: where NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID are looked for; this process's by default. They
    are meant for this process alone, so they are taken out of its environment: children must not speak for it.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        given = dict(os.environ if environment is None else environment)
        self._address = given.get("NOTIFY_SOCKET", "")
        meant = given.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        usec = given.get("WATCHDOG_USEC", "")
        #: After so many seconds without :meth:`alive` systemd ends the service; 0 = it does not watch.
        self.watchdog_s = int(usec) / 1e6 if meant and usec.isascii() and usec.isdigit() else 0.0
        self._petted = 0.0
        self._failed = False
        if environment is None:
            for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
                os.environ.pop(name, None)

    @property
    def listening(self) -> bool:
        """Whether there is a service manager to tell."""
        return bool(self._address)

    def ready(self, status: str = "") -> None:
        """The service is up, or has read its configuration again."""
        self._send({"READY": "1", "STATUS": status})

    def status(self, text: str) -> None:
        """One line for ``systemctl status``."""
        self._send({"STATUS": text})

    def reloading(self) -> None:
        """The configuration is being read again; :meth:`ready` must follow."""
        self._send({"RELOADING": "1", "MONOTONIC_USEC": str(time.monotonic_ns() // 1000)})

    def stopping(self, status: str = "") -> None:
        """The service is on its way down."""
        self._send({"STOPPING": "1", "STATUS": status})

    def alive(self) -> None:
        """The loop goes on. May be called as often as one likes: it is passed on ten times in the watchdog's time."""
        now = time.monotonic()
        if self.watchdog_s and now - self._petted >= self.watchdog_s / 10:
            self._petted = now
            self._send({"WATCHDOG": "1"})

    def _send(self, fields: Mapping[str, str]) -> None:
        if not self._address:
            return
        text = "".join(f"{name}={' '.join(value.split())}\n" for name, value in fields.items() if value)
        # a leading @ stands for the zero byte of Linux's abstract socket names
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as out:
                out.connect(address)
                out.sendall(text.encode())
            self._failed = False
        except OSError as error:
            if not self._failed:  # once: the watchdog comes every few seconds
                log.warning("systemd cannot be told %s: %s", text.split("\n", 1)[0], error.strerror or error)
            self._failed = True
