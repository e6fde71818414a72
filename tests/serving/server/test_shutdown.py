"""How a server ends, and what its end means for those who are connected."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest

from slurm_hadar.errors import ServingError
from slurm_hadar.serving.client import ServingClient
from tests.serving.server.running import MODELS, PATIENT_MS, WAIT_S, Running, body_of, inputs_of, until


def test_the_end_answers_whom_it_has_accepted() -> None:
    """At SIGTERM who waits is answered, who comes is refused, and no worker stays."""
    server = Running().ready()
    pids = [w["pid"] for w in server.workers()]
    answers: list[Any] = []

    def ask() -> None:
        with ServingClient(server.url) as client:
            answers.append(client.infer("sleeper", inputs_of(1500, 9), deadline_ms=PATIENT_MS))

    with ServingClient(server.url) as before:
        assert before.ready()
        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: server.workers()[0]["state"] == "busy")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: any("ending" in line for line in server.lines))
        with pytest.raises(ServingError):
            before.infer("sleeper", inputs_of(1), deadline_ms=PATIENT_MS)
    asking.join(WAIT_S)

    assert answers[0].outputs["sum"].tolist() == [9]
    assert server.process.wait(WAIT_S) == 0
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.thorough
def test_the_end_waits_for_who_reads_slowly() -> None:
    """As long as for all who were accepted: an answer that is ready is still to be sent."""
    server = Running("--drain", "40s", function="Wide").ready()
    body = json.dumps(body_of({"n": np.array([3_000_000])}, deadline_ms=PATIENT_MS))
    reader = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=WAIT_S)
    reader.request("POST", "/v2/models/wide/infer", body)
    response = reader.getresponse()
    server.process.send_signal(signal.SIGTERM)
    until(lambda: any("ending" in line for line in server.lines))
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 7 or server.process.poll() is not None)

    assert len(json.loads(response.read())["outputs"][0]["data"]) == 3_000_000
    assert server.process.wait(WAIT_S) == 0


def test_a_client_whose_connection_was_ended_while_it_paused() -> None:
    """By the server, after its last answer: the next request goes by another one."""
    ended = threading.Event()

    def serve() -> None:
        for _ in range(2):
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
            ended.set()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        with ServingClient(f"http://127.0.0.1:{listening.getsockname()[1]}") as client:
            client.status()
            assert ended.wait(WAIT_S)
            assert client.status() == {}
        serving.join(WAIT_S)


def test_it_ends_though_nobody_reads_what_it_says() -> None:
    """As under ``hadar serve run | head``, or with its job's log on a full disk."""
    command = [sys.executable, "-m", "slurm_hadar.cli.main", "serve", "run", f"{MODELS}:build", "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        while "is ready" not in process.stderr.readline():
            assert process.poll() is None
        process.stderr.close()
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
    finally:
        process.kill()
