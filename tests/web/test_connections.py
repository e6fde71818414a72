"""Connections on which a request never comes whole: of the dashboard's protocol and the model server's."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send

from slurm_hadar import listening

WAIT_S = 30.0


async def _greet(_scope: Scope, receive: Receive, send: Send) -> None:
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"hi"})


@pytest.fixture(params=["slurm_hadar.serving.server.run", "slurm_hadar.web.serve"])
def address(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(listening, "_HEAD_S", 0.3)
    settings = uvicorn.Config(
        _greet, http=f"{request.param}:_Protocol", log_level="warning", lifespan="off", timeout_keep_alive=60
    )
    server = uvicorn.Server(settings)
    with listening.open_socket("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()
        server.should_exit = True
        thread.join(WAIT_S)


@pytest.fixture
def connection(address: tuple[str, int]) -> Iterator[socket.socket]:
    with contextlib.closing(socket.create_connection(address, timeout=WAIT_S)) as made:
        yield made


HEAD = b"GET / HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("sent", [b"", b"GET", HEAD])
def test_a_head_that_does_not_end_ends_its_connection(connection: socket.socket, sent: bytes) -> None:
    connection.sendall(sent)

    assert connection.recv(1000) == b""


def test_the_second_head_too(connection: socket.socket) -> None:
    connection.sendall(HEAD + b"\r\n")
    answer = b""
    while not answer.endswith(b"hi"):
        answer += connection.recv(1000)
    connection.sendall(HEAD)

    assert connection.recv(1000) == b""


@pytest.mark.parametrize("kind", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_encrypted_connection_that_does_not_begin_is_ended(
    kind: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listening, "_HEAD_S", 0.3)

    async def listen_and_say_nothing() -> bytes:
        loop = asyncio.get_running_loop()
        listening.handshakes_in_time(loop)
        with listening.open_socket("127.0.0.1", 0) as listener:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            server = await loop.create_server(asyncio.Protocol, sock=listener, ssl=context)
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            try:
                return await asyncio.wait_for(reader.read(), WAIT_S)
            finally:
                writer.close()
                server.close()

    with asyncio.Runner(loop_factory=kind) as runner:
        assert runner.run(listen_and_say_nothing()) == b""


def test_a_body_and_a_pause_have_limits_of_their_own(connection: socket.socket) -> None:
    """The application's, and uvicorn's."""
    connection.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nab")
    for rest in (b"cd", HEAD + b"\r\n"):
        connection.settimeout(1.0)
        with pytest.raises(TimeoutError):
            connection.recv(1000)  # still open
        connection.settimeout(WAIT_S)
        connection.sendall(rest)
        answer = b""
        while not answer.endswith(b"hi"):
            answer += connection.recv(1000)


def test_room_for_connections() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        listening.room_for(300)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
        listening.room_for(200)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(
    "begun",
    [b"GET /", HEAD + b"X: ", b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: "],
    ids=["address", "header", "trailer"],
)
def test_a_line_that_does_not_end_ends_its_connection(
    address: tuple[str, int], begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long before it has filled the memory, or has held up all others by being joined again and again."""
    monkeypatch.setattr(listening, "_HEAD_S", WAIT_S)
    sent, most = 0, 30 << 20
    with contextlib.closing(socket.create_connection(address, timeout=WAIT_S)) as made:
        made.sendall(begun)
        with contextlib.suppress(ConnectionError):
            while sent < most:
                sent += made.send(b"a" * 65536)

    assert sent < most


def test_a_body_in_very_small_chunks_is_read(connection: socket.socket) -> None:
    pieces = b"1\r\na\r\n" * 100_000
    connection.sendall(HEAD.replace(b"GET", b"POST") + b"Transfer-Encoding: chunked\r\n\r\n" + pieces + b"0\r\n\r\n")

    assert connection.recv(1000).startswith(b"HTTP/1.1 200")
