"""The server as its users have it: a process with workers, asked over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slurm_hadar.errors import ServingError
from slurm_hadar.serving.client import ServingClient
from slurm_hadar.serving.load import run_load
from slurm_hadar.serving.scheduling.request import Worker
from slurm_hadar.serving.server.app import _Routes
from slurm_hadar.serving.server.model import ModelInfo
from slurm_hadar.serving.server.model_facts import alike
from slurm_hadar.serving.trace import Intended
from tests.serving.server.running import PATIENT_MS, WAIT_S, Running, body_of, inputs_of, until

#: Python runs it when it starts: the wall clock of the server and of its workers jumps by a day with each look at it
JUMPING = """
import itertools
import time

_now, _jumps = time.time, itertools.cycle((0.0, 86400.0, -86400.0))
time.time = lambda: _now() + next(_jumps)
time.time_ns = lambda: int(time.time() * 1e9)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Whose clock is set back and forth all the while: deadlines are kept by another one."""
    path = tmp_path_factory.mktemp("clock")
    (path / "sitecustomize.py").write_text(JUMPING)
    options = ["--workers", "1", "--slo", "30s", "--max-queue", "5", "--max-body", "10000"]
    running = Running(*options, path=path).ready()
    yield running
    with contextlib.suppress(ProcessLookupError):
        running.end()


def test_a_request_and_its_trace(server: Running) -> None:
    with ServingClient(server.url) as client:
        answer = client.infer("sleeper", inputs_of(1, 2, 3), application="short", deadline_ms=PATIENT_MS)

        assert answer.outputs["sum"].tolist() == [5]
        assert answer.outputs["sum"].dtype == np.int64
        assert answer.parameters["on_time"]
        assert re.fullmatch(
            r"queued \d+ ms, batch of 1, ran \d+ ms on worker [\d.]+, deadline 60000 ms", answer.trace()
        )
        assert [t["name"] for t in client.metadata("sleeper")["inputs"]] == ["ms", "values"]
        assert {e["parameters"]["application"] for e in client.examples("sleeper")} == {"short", "long"}
        assert client.ready()


def test_refusals(server: Running) -> None:
    with ServingClient(server.url) as client:
        for model, inputs, status, told in (
            ("nobody", inputs_of(1), 404, "no such model"),
            ("sleeper", {"ms": np.array([1])}, 400, "takes the inputs"),
            ("sleeper", inputs_of(-1), 500, "minus one"),
            ("sleeper", inputs_of(1, *range(5000)), 413, "more than 10000 bytes"),
        ):
            with pytest.raises(ServingError, match=told) as raised:
                client.infer(model, inputs, deadline_ms=PATIENT_MS)
            assert raised.value.status == status
        client.infer("sleeper", inputs_of(20), application="long", deadline_ms=PATIENT_MS)  # else the next is a probe
        with pytest.raises(ServingError, match="cannot be met") as raised:
            client.infer("sleeper", inputs_of(20), application="long", deadline_ms=1)
        assert raised.value.status == 504


def _raw(server: Running, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, Any]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=WAIT_S)
    connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    told = answer.read()
    connection.close()
    return answer.status, json.loads(told) if answer.getheader("Content-Type") == "application/json" else told.decode()


def test_refusals_of_the_frame_are_json_too(server: Running) -> None:
    infer = "/v2/models/empty/infer"
    for method, path, headers, status, told in (
        ("GET", "/v2/models/empty/config", {}, 404, "/v2/models/empty/config is not served here"),
        ("GET", infer, {}, 405, f"GET of {infer} is not served; POST is"),
        ("POST", infer, {"Content_Encoding": "gzip"}, 415, "'gzip' is not served"),
        ("POST", infer, {"Inference_Header_Content_Length": "-5"}, 400, "must be a number of bytes, not '-5'"),
    ):
        found = _raw(server, method, path, b"x" if method == "POST" else b"", **headers)
        assert found[0] == status and told in found[1]["error"], found


def test_what_asks_for_another_protocol_has_no_body_that_could_be_taken_for_requests(server: Running) -> None:
    """As Java's HttpClient asks by default; without a body it is answered."""
    upgrade = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk"}
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=WAIT_S)
    connection.request("GET", "/v2", headers=upgrade)
    assert connection.getresponse().read().startswith(b'{"name":"slurm_hadar"')
    connection.request("POST", "/v2/models/empty/infer", b"GET /status HTTP/1.1\r\n\r\n", upgrade)
    answer = connection.getresponse()

    assert (answer.status, answer.getheader("Connection")) == (400, "close")
    assert "without 'Upgrade'" in json.loads(answer.read())["error"]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.1])
def test_all_floats_go_and_come(server: Running, value: float) -> None:
    """Binary data have them all; JSON has null for what is not finite."""
    array = np.array([value], np.float32)
    with ServingClient(server.url) as client:
        answer = client.infer("empty", {"x": array}, deadline_ms=PATIENT_MS)
    assert answer.outputs["y"].tobytes() == array.tobytes() and answer.outputs["y"].flags.writeable
    assert "binary_tensor_data" in _raw(server, "GET", "/v2")[1]["extensions"]


def test_health_is_told_however_many_are_connected(server: Running) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    host, port = server.url.removeprefix("http://").split(":")
    with contextlib.ExitStack() as idle:
        idle.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1010):
            idle.enter_context(socket.create_connection((host, int(port)), WAIT_S))
        assert _raw(server, "GET", "/status")[0] == 503
        assert _raw(server, "GET", "/v2/health/live") == (200, {"live": True})
    until(lambda: _raw(server, "GET", "/status")[0] == 200)


def test_examples_that_json_does_not_have() -> None:
    examples = [("any", {"x": np.array([np.nan], np.float32)})]
    routes = _Routes(SimpleNamespace(examples=lambda _: examples), SimpleNamespace(), 0)

    with pytest.raises(ServingError, match="examples of m are not finite") as raised:
        routes._examples(None, ModelInfo("m", (), ()))  # noqa: SLF001
    assert raised.value.status == 501


def test_strangers_names_are_no_way_in(server: Running) -> None:
    """A page of another site could lead a browser here under a name of its own."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=WAIT_S)
    connection.request("GET", "/status", headers={"Host": "evil.example"})

    assert connection.getresponse().status == 421


def test_figures_for_prometheus(server: Running) -> None:
    with ServingClient(server.url) as client:
        client.infer("sleeper", inputs_of(1), application="counted", deadline_ms=PATIENT_MS)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=WAIT_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()

    assert 'hadar_serving_requests_total{application="counted",model="sleeper",outcome="on_time"} 1.0' in text


def test_a_full_queue_is_said_at_once(server: Running) -> None:
    """And everybody gets one answer."""
    intended = [Intended(0.0, "long", 30.0)] * 40
    found = run_load(server.url, "sleeper", intended, {"long": [body_of(inputs_of(1000))]})

    statuses = [sent.status for sent in found.sent]
    assert set(statuses) == {200, 429}
    assert found.summary()["finish_rate"] == statuses.count(200) / 40


def _abandoned(server: Running) -> int:
    return sum(a["abandoned"] for a in server.status()["applications"])


def test_who_goes_leaves_the_queue(server: Running) -> None:
    body = json.dumps(body_of(inputs_of(2000)))
    before = _abandoned(server)
    busy, goes = (http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=WAIT_S) for _ in range(2))
    busy.request("POST", "/v2/models/sleeper/infer", body)
    until(lambda: server.workers()[0]["state"] == "busy")
    goes.request("POST", "/v2/models/sleeper/infer", body)
    until(lambda: server.status()["queued"] == 1)
    goes.close()

    until(lambda: _abandoned(server) == before + 1)
    assert busy.getresponse().status == 200


def test_a_killed_worker_is_replaced(server: Running) -> None:
    """The request that it ran is tried again, and answered."""
    pid = server.workers()[0]["pid"]
    answers: list[Any] = []

    def ask() -> None:
        with ServingClient(server.url) as client:
            answers.append(client.infer("sleeper", inputs_of(1500, 4), deadline_ms=PATIENT_MS))

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: server.workers()[0]["state"] == "busy")
    os.kill(pid, signal.SIGKILL)
    asking.join(WAIT_S)

    assert answers[0].outputs["sum"].tolist() == [4]
    assert server.workers()[0]["pid"] != pid


def test_a_request_that_kills_workers_is_refused(server: Running) -> None:
    with ServingClient(server.url) as client:
        with pytest.raises(ServingError, match="the worker that ran it ended with 3") as raised:
            client.infer("sleeper", inputs_of(-2), deadline_ms=PATIENT_MS)
        assert raised.value.status == 503
        until(client.ready)
        assert client.infer("sleeper", inputs_of(1, 1), deadline_ms=PATIENT_MS).outputs["sum"].tolist() == [1]


def test_who_shares_a_batch_with_such_a_request_is_answered(server: Running) -> None:
    """Tried once more each is alone, so that only the one that kills is refused."""
    answers: dict[int, Any] = {}

    def ask(number: int, ms: float) -> None:
        with ServingClient(server.url) as client:
            try:
                answers[number] = client.infer("sleeper", inputs_of(ms, number), deadline_ms=PATIENT_MS).outputs["sum"]
            except ServingError as error:
                answers[number] = error.status

    askers = [threading.Thread(target=ask, args=(n, -2 if n == 2 else 500 if n == 0 else 1)) for n in range(5)]
    askers[0].start()
    until(lambda: server.workers()[0]["state"] == "busy")
    for asker in askers[1:]:
        asker.start()
    until(lambda: server.status()["queued"] == 4 or server.workers()[0]["batch"] == 4)
    for asker in askers:
        asker.join(WAIT_S)

    assert answers == {0: 0, 1: 1, 2: 503, 3: 3, 4: 4}


@pytest.mark.parametrize(
    ("speed", "others", "taken_for"),
    [(1.3, [], 1.0), (0.7, [], 1.0), (0.5, [], 0.5), (2.0, [], 2.0), (0.55, [0.5], 0.5), (2.5, [1.0, 2.0], 2.0)],
)
def test_few_speeds_are_told_apart(speed: float, others: list[float], taken_for: float) -> None:
    """On a busy host equal workers differ by a third: they are one kind, so that one order of the queue does."""
    assert alike(speed, [Worker(str(n), other) for n, other in enumerate(others)]) == taken_for


@pytest.mark.thorough
def test_workers_of_unlike_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only the faster one can end in time goes to that one; the slower one does its share of what can wait."""
    monkeypatch.setenv("FIRST_WORKER", str(tmp_path / "first"))
    server = Running("--workers", "2", "--max-batch", "1", "--slo", "30s", function="Unlike")
    try:
        until(lambda: sum("is ready" in line for line in server.lines) == 2, lambda: server.lines)
        slow, fast = sorted(server.workers(), key=lambda w: w["speed"])
        assert slow["speed"] < fast["speed"] / 5  # 20 times, on a quiet machine

        def served_by(deadline_ms: float) -> str | None:
            with ServingClient(server.url) as client, contextlib.suppress(ServingError):
                answer = client.infer("empty", {"x": np.zeros(1, np.float32)}, deadline_ms=deadline_ms)
                if answer.parameters["on_time"]:
                    return re.search(r"on worker ([\d.]+)", answer.trace())[1]
            return None

        with ThreadPoolExecutor(20) as askers:
            assert set(askers.map(served_by, [PATIENT_MS] * 40)) == {slow["name"], fast["name"]}
        assert {served_by(350.0) for _ in range(10)} - {None} == {fast["name"]}
    finally:
        server.end()
