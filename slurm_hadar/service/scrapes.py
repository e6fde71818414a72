"""Who asks for the figures, over HTTP: never more of them at once than a few."""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
from typing import Any

from prometheus_client import CollectorRegistry, MetricsHandler

__all__ = ["ScrapeServer"]

log = logging.getLogger(__name__)
_AT_ONCE = 8
_WAIT_S = 10.0


class ScrapeServer(socketserver.TCPServer):
    """Serves in threads of its own until it is closed. A ninth connection ends the oldest one: thousands of idle ones
    take no more threads and files than eight, and keep nobody out. One that is silent for 10 s ends, too.

    Raises OSError or UnicodeError where it cannot listen.
    """

    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        handler: Any = MetricsHandler.factory(registry)
        handler.timeout = _WAIT_S
        self.address_family, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self._open: list[tuple[socket.socket, threading.Thread]] = []  # the oldest first
        super().__init__(place, handler)  # type: ignore[arg-type]
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open = [(r, t) for r, t in self._open if t.is_alive()]
        while len(self._open) >= _AT_ONCE:
            self._end_oldest()
        thread = threading.Thread(target=self._answer, args=(request, client_address), daemon=True)
        thread.start()
        self._open.append((request, thread))

    def _answer(self, request: socket.socket, client_address: Any) -> None:
        try:
            self.finish_request(request, client_address)
        except Exception:  # gone, ended by us, or no HTTP: the log is not for strangers to fill
            log.debug("a question for metrics was not answered", exc_info=True)
        finally:
            self.shutdown_request(request)

    def _end_oldest(self) -> None:
        request, thread = self._open.pop(0)
        with contextlib.suppress(OSError):  # it has ended meanwhile
            request.shutdown(socket.SHUT_RDWR)  # wakes its thread
        thread.join()

    def handle_error(self, *_: Any) -> None:
        log.debug("no thread for a question for metrics", exc_info=True)

    def close(self) -> None:
        """Give back the address, and end all connections."""
        self.shutdown()
        self.server_close()
        while self._open:
            self._end_oldest()
