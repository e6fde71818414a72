"""The server as its users have it: a process with workers, asked over HTTP."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slurm_hadar.errors import ServingError
from slurm_hadar.serving.client import ServingClient, request_body
from slurm_hadar.serving.load import run_load
from slurm_hadar.serving.scheduling.request import Worker
from slurm_hadar.serving.server.app import _Routes
from slurm_hadar.serving.server.desk import _alike
from slurm_hadar.serving.server.model import ModelInfo
from slurm_hadar.serving.trace import Intended

MODELS = Path(__file__).parent / "models.py"
WAIT_S = 60.0
PATIENT_MS = 60_000.0


class Running:
    """A server with its models ready."""

    def __init__(
        self, *options: str, function: str = "build", path: Path | None = None, folder: Path | None = None
    ) -> None:
        command = [
            sys.executable,
            *(["-P"] if folder else []),
            "-m",
            "slurm_hadar.cli.main",
            "serve",
            "run",
            f"{MODELS}:{function}",
            "--port",
            "0",
        ]
        environment = dict(os.environ)
        if path is not None:
            environment["PYTHONPATH"] = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [*command, *options], stderr=subprocess.PIPE, text=True, env=environment, cwd=folder
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        until(lambda: any("serving at" in line for line in self.lines), lambda: self.lines)
        self.url = re.search(r"https?://[^/]+", next(x for x in self.lines if "serving at" in x))[0]

    def _read(self) -> None:
        self.lines.extend(iter(self.process.stderr.readline, ""))

    def ready(self) -> Running:
        until(lambda: any("is ready" in line for line in self.lines), lambda: self.lines)
        return self

    def status(self) -> dict[str, Any]:
        with ServingClient(self.url) as client:
            return client.status()

    def workers(self) -> list[dict[str, Any]]:
        return self.status()["workers"]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(WAIT_S)


def until(done: Callable[[], bool], told: Callable[[], Any] = lambda: "") -> None:
    end = time.monotonic() + WAIT_S
    while not done():
        assert time.monotonic() < end, told()
        time.sleep(0.02)


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


def _inputs(ms: float, *values: int) -> dict[str, Any]:
    return {"ms": np.array([ms], np.float32), "values": np.array(values, np.int64)}


def test_a_request_and_its_trace(server: Running) -> None:
    with ServingClient(server.url) as client:
        answer = client.infer("sleeper", _inputs(1, 2, 3), application="short", deadline_ms=PATIENT_MS)

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
            ("nobody", _inputs(1), 404, "no such model"),
            ("sleeper", {"ms": np.array([1])}, 400, "takes the inputs"),
            ("sleeper", _inputs(-1), 500, "minus one"),
            ("sleeper", _inputs(1, *range(5000)), 413, "more than 10000 bytes"),
        ):
            with pytest.raises(ServingError, match=told) as raised:
                client.infer(model, inputs, deadline_ms=PATIENT_MS)
            assert raised.value.status == status
        client.infer("sleeper", _inputs(20), application="long", deadline_ms=PATIENT_MS)  # else the next is a probe
        with pytest.raises(ServingError, match="cannot be met") as raised:
            client.infer("sleeper", _inputs(20), application="long", deadline_ms=1)
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


def test_files_of_the_working_directory_do_not_replace_pythons_own(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("")
    running = Running("--workers", "1", folder=tmp_path).ready()
    assert running.end() == 0


def test_strangers_names_are_no_way_in(server: Running) -> None:
    """A page of another site could lead a browser here under a name of its own."""
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=WAIT_S)
    connection.request("GET", "/status", headers={"Host": "evil.example"})

    assert connection.getresponse().status == 421


def test_figures_for_prometheus(server: Running) -> None:
    with ServingClient(server.url) as client:
        client.infer("sleeper", _inputs(1), application="counted", deadline_ms=PATIENT_MS)
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=WAIT_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()

    assert 'hadar_serving_requests_total{application="counted",model="sleeper",outcome="on_time"} 1.0' in text


def test_a_full_queue_is_said_at_once(server: Running) -> None:
    """And everybody gets one answer."""
    intended = [Intended(0.0, "long", 30.0)] * 40
    found = run_load(server.url, "sleeper", intended, {"long": [request_body(_inputs(1000))]})

    statuses = [sent.status for sent in found.sent]
    assert set(statuses) == {200, 429}
    assert found.summary()["finish_rate"] == statuses.count(200) / 40


def _abandoned(server: Running) -> int:
    return sum(a["abandoned"] for a in server.status()["applications"])


def test_who_goes_leaves_the_queue(server: Running) -> None:
    body = json.dumps(request_body(_inputs(2000)))
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
            answers.append(client.infer("sleeper", _inputs(1500, 4), deadline_ms=PATIENT_MS))

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
            client.infer("sleeper", _inputs(-2), deadline_ms=PATIENT_MS)
        assert raised.value.status == 503
        until(client.ready)
        assert client.infer("sleeper", _inputs(1, 1), deadline_ms=PATIENT_MS).outputs["sum"].tolist() == [1]


def test_who_shares_a_batch_with_such_a_request_is_answered(server: Running) -> None:
    """Tried once more each is alone, so that only the one that kills is refused."""
    answers: dict[int, Any] = {}

    def ask(number: int, ms: float) -> None:
        with ServingClient(server.url) as client:
            try:
                answers[number] = client.infer("sleeper", _inputs(ms, number), deadline_ms=PATIENT_MS).outputs["sum"]
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
    assert _alike(speed, [Worker(str(n), other) for n, other in enumerate(others)]) == taken_for


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


def test_the_end_answers_whom_it_has_accepted() -> None:
    """At SIGTERM who waits is answered, who comes is refused, and no worker stays."""
    server = Running().ready()
    pids = [w["pid"] for w in server.workers()]
    answers: list[Any] = []

    def ask() -> None:
        with ServingClient(server.url) as client:
            answers.append(client.infer("sleeper", _inputs(1500, 9), deadline_ms=PATIENT_MS))

    with ServingClient(server.url) as before:
        assert before.ready()
        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: server.workers()[0]["state"] == "busy")
        server.process.send_signal(signal.SIGTERM)
        until(lambda: any("ending" in line for line in server.lines))
        with pytest.raises(ServingError):
            before.infer("sleeper", _inputs(1), deadline_ms=PATIENT_MS)
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
    body = json.dumps(request_body({"n": np.array([3_000_000])}, deadline_ms=PATIENT_MS))
    reader = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=WAIT_S)
    reader.request("POST", "/v2/models/wide/infer", body)
    response = reader.getresponse()
    server.process.send_signal(signal.SIGTERM)
    until(lambda: any("ending" in line for line in server.lines))
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 7 or server.process.poll() is not None)

    assert len(json.loads(response.read())["outputs"][0]["data"]) == 3_000_000
    assert server.process.wait(WAIT_S) == 0


def test_one_place_that_is_out_of_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails three times before the other one has loaded: that serves."""
    monkeypatch.setenv("FAILURES", str(tmp_path / "failures"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    server = Running("--workers", "2", function="Halting")
    try:
        server.ready()
        with ServingClient(server.url) as client:
            assert client.infer("empty", {"x": np.ones(1, np.float32)}, deadline_ms=PATIENT_MS).outputs["y"] == [1.0]
        assert any("could not begin" in line and "out of order" in line for line in server.lines)
    finally:
        assert server.end() == 0


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


def test_a_token_is_needed_by_all_but_health(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    running = Running("--token-file", str(token))
    try:
        with ServingClient(running.url) as stranger:
            assert stranger.ready() in (True, False)
            with pytest.raises(ServingError, match="token"):
                stranger.status()
        with ServingClient(running.url, "0123456789abcdef") as friend:
            assert friend.status()["scheduler"] == "orloj"
    finally:
        running.end()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate")
def test_encrypted(tmp_path: Path) -> None:
    """With a certificate of one's own, which the client is told to trust, and nobody else does."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *names]
    subprocess.run([*make, "-keyout", key, "-out", cert, "-days", "2"], check=True, capture_output=True)
    running = Running("--tls-cert", str(cert), "--tls-key", str(key))
    locked, other = tmp_path / "locked.pem", tmp_path / "other.pem"
    make = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run([*make, "-out", other], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-out", locked, "-aes256", "-passout", "pass:1234"], check=True)
    for unfit, told in ((locked, "is encrypted"), (other, "cannot be used with that certificate")):
        test_impossible_options(["--tls-cert", str(cert), "--tls-key", str(unfit)], told)
    try:
        assert running.url.startswith("https://")
        with ServingClient(running.url, certificates=str(cert)) as client:
            assert client.status()["scheduler"] == "orloj"
        with ServingClient(running.url) as stranger, pytest.raises(ServingError, match="certificate"):
            stranger.status()
    finally:
        running.end()


def test_a_temporary_folder_whose_path_is_too_long_for_sockets(tmp_path: Path) -> None:
    """In one line, and none is left there."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    command = [sys.executable, "-m", "slurm_hadar.cli.main", "serve", "run", f"{MODELS}:build", "--port", "0"]
    environ = {**os.environ, "TMPDIR": str(long)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=WAIT_S, check=False)

    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "too long for a socket's path: set TMPDIR" in done.stderr and not list(long.iterdir())


@pytest.mark.parametrize(("function", "told"), [("broken", "no weights"), ("dies", "ended with 7")])
def test_a_model_that_cannot_be_built_ends_the_server(function: str, told: str) -> None:
    """In one line."""
    running = Running(function=function)

    assert running.process.wait(WAIT_S) == 1
    until(lambda: any(told in line for line in running.lines), lambda: running.lines)
    assert not any("Traceback" in line for line in running.lines)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--slo", "soon"], "--slo"),
        (["--tls-key", str(MODELS)], "go together"),
        (["--tls-key", str(MODELS), "--tls-cert", str(MODELS)], "cannot be used"),
        (["--tls-key", str(MODELS), "--tls-cert", str(MODELS)], f"--tls-cert {MODELS}"),
    ],
)
def test_impossible_options(options: list[str], told: str) -> None:
    command = [sys.executable, "-m", "slurm_hadar.cli.main", "serve", "run", f"{MODELS}:build", "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)

    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr
