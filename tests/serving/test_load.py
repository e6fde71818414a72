"""Load, and whom it asks, without a server of models."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

import pytest

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
