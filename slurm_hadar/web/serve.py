"""A server of the dashboard that runs until it is told to end."""

from __future__ import annotations

import signal
from collections.abc import Callable

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from slurm_hadar.listening import HeadsInTime, open_socket, shown
from slurm_hadar.web.guard import HEADERS

__all__ = ["serve"]


class _Protocol(HeadsInTime, H11Protocol):
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
    listening = open_socket(host, port)

    def stop(_number: int, _frame: object) -> None:
        server.should_exit = True

    # uvicorn raises once more what it was ended by, which then finds these handlers: an ordinary end
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop)
    tell(f"http://{shown(host, listening)}/")
    with listening:
        server.run(sockets=[listening])
