"""From options to a server that runs until it is told to end, and then answers whom it has accepted."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slurm_hadar.errors import ConfigError
from slurm_hadar.listening import HeadsInTime, handshakes_in_time, open_socket, room_for, shown
from slurm_hadar.serving.server.app import HEALTH, create_app
from slurm_hadar.serving.server.dispatcher import Dispatcher, DispatcherOptions
from slurm_hadar.serving.server.metrics import ServingMetrics
from slurm_hadar.serving.server.model import check_source

__all__ = ["ServerOptions", "run_server"]

_CONNECTIONS = 1000  # beyond those of requests that may wait
_FILES = 200  # beyond connections
_MOST_BESIDE = 64 << 10  # bytes
_MOST_PER_BYTE = 8  # of a body that comes in chunks of one byte
_LAST_WORDS_S = 5  # to send what is ready, at least
_FIRST_WORDS_S = 0.2  # for the request of who has just connected
_LOOKS = 20  # in that time, at least


@dataclass(frozen=True)
class ServerOptions:
    """``drain_s``: how long accepted requests are waited for at the end."""

    dispatcher: DispatcherOptions
    host: str
    port: int
    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None
    most_bytes: int = 16 << 20
    drain_s: float = 30.0


class _Protocol(HeadsInTime, HttpToolsProtocol):
    """Ends a connection that brings more than 64 KiB of a request's head, or beside its body: httptools has no such
    limit, and joins the parts of an unfinished line anew with each."""

    _beside = 0

    def data_received(self, data: bytes) -> None:
        self._beside += len(data)
        super().data_received(data)
        if self._beside > _MOST_BESIDE:
            self.transport.close()

    def on_headers_complete(self) -> None:
        """Health is told however many connections there are: who asks for it would start a living server anew."""
        most = self.limit_concurrency
        if self.url.startswith(HEALTH.encode()):
            self.limit_concurrency = None
        try:
            super().on_headers_complete()
        finally:
            self.limit_concurrency = most

    def on_message_begin(self) -> None:
        self._beside = 0
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        self._beside = max(0, self._beside - _MOST_PER_BYTE * len(body))
        super().on_body(body)


class _Server(uvicorn.Server):
    """One signal drains, a second one ends at once."""

    def __init__(self, config: uvicorn.Config, drain: Callable[[], None]) -> None:
        super().__init__(config)
        self._drain, self._asked = drain, False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.config.ssl is not None:
            handshakes_in_time(asyncio.get_running_loop())
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if not self.force_exit:
            await self._let_in_the_last(sockets or [])
        await super().shutdown(sockets)

    async def _let_in_the_last(self, sockets: list[socket.socket]) -> None:
        """Nobody but who has connected by now, and their requests are answered: uvicorn closes connections that it has
        not accepted, and those whose requests it has not read, which resets them."""
        loop = asyncio.get_running_loop()
        connected = [connection for listening in sockets for connection in _connected(listening)]
        for server in self.servers:
            server.close()
        coming = [loop.connect_accepted_socket(self._protocol, c, ssl=self.config.ssl) for c in connected]
        came = asyncio.gather(*coming, return_exceptions=True)
        for _ in range(_LOOKS):  # a moment in which this process does not run is none for them
            await asyncio.sleep(_FIRST_WORDS_S / _LOOKS)
        came.cancel()

    def _protocol(self) -> asyncio.Protocol:
        """As uvicorn makes it for those that it accepts."""
        return _Protocol(self.config, self.server_state, self.lifespan.state)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self._asked:
            self.force_exit = True
            self.should_exit = True
        self._asked = True
        self._drain()


def _connected(listening: socket.socket) -> Iterator[socket.socket]:
    """Connections that have come and that nobody has accepted yet."""
    with contextlib.suppress(OSError):  # there is none, or no room for another open file
        while True:
            yield listening.accept()[0]


def run_server(options: ServerOptions, tell: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT. ``tell`` is given lines: the address, and which workers are ready. Raises
    ConfigError where it cannot listen, where the models' file or the certificate is none, and where no worker can be
    had."""
    _Run(options, tell).run()


def _check_certificate(certificate: Path, key: Path) -> None:
    """Raises ConfigError naming the file that cannot be used."""

    def locked() -> str:
        raise ConfigError(f"--tls-key {key} is encrypted: give one that can be read without a passphrase")

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_verify_locations(certificate)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"--tls-cert {certificate} cannot be used: {error.strerror or error}") from None
    try:
        context.load_cert_chain(certificate, key, password=locked)
    except OSError as error:
        raise ConfigError(f"--tls-key {key} cannot be used with that certificate: {error.strerror or error}") from None


class _Run:
    def __init__(self, options: ServerOptions, tell: Callable[[str], None]) -> None:
        self._options, self._tell = options, tell
        connections = options.dispatcher.queue + _CONNECTIONS
        room_for(connections + _FILES)
        self._failure = ""
        check_source(options.dispatcher.source)
        if options.certificate is not None and options.key is not None:
            _check_certificate(options.certificate, options.key)
        metrics = ServingMetrics()
        self._listening = open_socket(options.host, options.port)
        self._dispatcher = Dispatcher(options.dispatcher, metrics, self._failed, tell)
        settings = uvicorn.Config(
            create_app(self._dispatcher, metrics, options.most_bytes, options.token),
            http=_Protocol,
            access_log=False,
            log_level="warning",
            server_header=False,
            lifespan="on",
            ws="none",
            proxy_headers=False,  # who asks does not matter here, and may not say so by a header
            ssl_certfile=options.certificate,
            ssl_keyfile=options.key,
            limit_concurrency=connections,
            timeout_keep_alive=60,
            timeout_graceful_shutdown=_LAST_WORDS_S,
        )
        settings.load()
        self._server = _Server(settings, self._drain)
        self._loop: asyncio.AbstractEventLoop | None = None

    def run(self) -> None:
        with self._listening, asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._serve())
        if self._failure:
            raise ConfigError(self._failure)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        scheme = "https" if self._options.certificate else "http"
        self._tell(f"serving at {scheme}://{shown(self._options.host, self._listening)}/, models are not ready yet")
        await self._server.serve(sockets=[self._listening])

    def _failed(self, why: str) -> None:
        self._failure = why
        self._server.should_exit = True

    def _drain(self) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self._end()))

    async def _end(self) -> None:
        self._tell("ending: accepted requests are still answered")
        until_s = time.monotonic() + self._options.drain_s
        await self._dispatcher.drain(self._options.drain_s)
        # a large answer is still to be encoded, and a slow client to read it
        left_s = math.ceil(until_s - time.monotonic())
        self._server.config.timeout_graceful_shutdown = max(_LAST_WORDS_S, left_s)
        self._server.should_exit = True
