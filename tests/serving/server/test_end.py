"""The last requests before a server ends: of who has connected by then."""

from __future__ import annotations

import asyncio
import socket
import time
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from slurm_hadar.serving.server.app import LastAnswers
from slurm_hadar.serving.server.run import _Protocol, _Server

WAIT_S = 60.0
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def _application(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def _connected(listening: socket.socket) -> socket.socket:
    client = socket.create_connection(listening.getsockname(), timeout=WAIT_S)
    client.sendall(REQUEST)
    return client


def _heard(client: socket.socket) -> bytes:
    with client:
        return b"".join(iter(lambda: client.recv(65536), b""))


@pytest.mark.parametrize("busy_s", [0.0, 0.5])
def test_who_has_connected_is_answered_and_no_connection_is_reset(busy_s: float) -> None:
    """Those whom nobody has accepted, and one that was, but whose request was not read; also where the server itself
    comes to nothing meanwhile, as on a busy machine."""

    async def served() -> list[bytes]:
        config = uvicorn.Config(_application, http=_Protocol, lifespan="off", log_level="error")
        config.load()
        server = _Server(config, lambda: None)
        server.lifespan = config.lifespan_class(config)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            await server.startup([listening])
            accepted = socket.create_connection(listening.getsockname(), timeout=WAIT_S)
            async with asyncio.timeout(WAIT_S):
                while not server.server_state.connections:
                    await asyncio.sleep(0.01)
            accepted.sendall(REQUEST)
            clients = [accepted, *(_connected(listening) for _ in range(5))]
            reading = asyncio.gather(*(asyncio.to_thread(_heard, client) for client in clients))
            asyncio.get_running_loop().call_soon(time.sleep, busy_s)
            await server.shutdown([listening])
            return await reading

    answers = asyncio.run(served())

    assert [answer.splitlines()[0] for answer in answers] == [b"HTTP/1.1 503 Service Unavailable"] * 6


@pytest.mark.parametrize("draining", [False, True])
def test_an_answer_of_a_server_that_ends_is_the_last_on_its_connection(draining: bool) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    dispatcher: Any = SimpleNamespace(draining=draining)
    asyncio.run(LastAnswers(_application, dispatcher)({"type": "http"}, None, send))

    assert ((b"connection", b"close") in sent[0]["headers"]) is draining
    assert sent[0]["status"] == 503 and len(sent) == 2
