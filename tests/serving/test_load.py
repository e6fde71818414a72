"""Load, and whom it asks, without a server of models."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from slurm_hadar.errors import ServingError
from slurm_hadar.serving import load
from slurm_hadar.serving.load import run_load
from slurm_hadar.serving.trace import Intended


@pytest.fixture
def asked() -> Iterator[tuple[str, list[str]]]:
    """An address that answers everything, and the paths that were asked for."""
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            paths.append(self.path)
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", paths
        server.shutdown()


@pytest.mark.parametrize("model", ["plain", "what? 100% #1"])
def test_a_model_is_asked_by_its_whole_name(asked: tuple[str, list[str]], model: str) -> None:
    url, paths = asked
    found = run_load(url, model, [Intended(0.0, "a", 10.0)], {"a": [{"inputs": []}]})

    assert found.summary()["finish_rate"] == 1.0
    assert [unquote(path) for path in paths] == [f"/v2/models/{model}/infer"]


@pytest.fixture
def few_files() -> Iterator[None]:
    """No more than 20 further ones may be open, unless somebody raises that."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with Path("/dev/null").open() as next_one:
        most = next_one.fileno() + 20
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("few_files")
def test_a_loads_own_limits_are_no_fault_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """All requests may wait at once: for that it takes as many files as it may, and says so where these are too few."""
    monkeypatch.setattr(load, "_LEAST_S", 0.5)
    intended = [Intended(0.0, "a", 0.01)] * 60
    examples: dict[str, list[dict[str, Any]]] = {"a": [{"inputs": []}]}
    with socket.create_server(("127.0.0.1", 0), backlog=100) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with monkeypatch.context() as low:
            low.setattr(load, "room_for", lambda _: None)
            with pytest.raises(ServingError, match=r"of 60 requests could not be sent: .* \(ulimit -n\)"):
                run_load(url, "m", intended, examples)
        assert run_load(url, "m", intended, examples).summary()["unanswered"] == 60
