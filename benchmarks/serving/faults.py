"""Faults on a live server: workers killed and stopped, clients that vanish or dawdle, floods, what is no request.

All the while an honest client sends; it must get exactly one answer to everything, and the server must be as empty at
the end as at the beginning.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_hadar.serving.client import ServingClient
from slurm_hadar.serving.load import run_load
from slurm_hadar.serving.trace import intended_of

__all__ = ["campaign"]

_MODEL = Path(__file__).resolve().parent / "beside.py"
_PATH = "/v2/models/slept/infer"
_BODY = json.dumps({"inputs": [{"name": "seconds", "datatype": "FP64", "shape": [1], "data": [0.05]}]}).encode()


def campaign(seconds: float, seed: int) -> dict[str, Any]:
    """What became of the honest client's requests, how often each fault was done, and what is wrong (nothing)."""
    command = [sys.executable, "-m", "slurm_hadar.cli.main", "serve", "run", f"{_MODEL}:build", "--port", "0",
               "--workers", "2", "--max-queue", "200", "--max-body", "100000", "--hang", "2s"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        url, ready = "", 0
        while ready < 2:
            line = server.stderr.readline()
            found = re.search(r"http://[\d.:]+", line)
            url, ready = found[0] if found else url, ready + ("is ready" in line)
        threading.Thread(target=server.stderr.read, daemon=True).start()
        try:
            return _Campaign(url, server.pid, seed).run(seconds)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(60)


class _Campaign:
    def __init__(self, url: str, pid: int, seed: int) -> None:
        self._url, self._pid, self._dice = url, pid, random.Random(f"faults {seed}")
        self._host = url.removeprefix("http://")
        self._done: Counter[str] = Counter()
        self._over = threading.Event()

    def run(self, seconds: float) -> dict[str, Any]:
        with ServingClient(self._url) as client:
            examples: dict[str, list[dict[str, Any]]] = {}
            for example in client.examples("slept"):
                examples.setdefault(example["parameters"]["application"], []).append(example)
        before_kb = self._resident_kb()
        faults = threading.Thread(target=self._faults)
        faults.start()
        spec = f"poisson:rate=40,seconds={seconds:g},seed=7"
        result = run_load(self._url, "slept", intended_of(spec, 0.5, {"short": 9.0, "long": 1.0}), examples)
        self._over.set()
        faults.join()
        statuses = Counter(str(sent.status) for sent in result.sent)
        wrong = [f"status {s}" for s in statuses if s not in ("200", "429", "503", "504")]
        wrong += self._left_over()
        grown_mb = (self._resident_kb() - before_kb) / 1024
        if grown_mb > 100:
            wrong.append(f"grown by {grown_mb:.0f} MB")
        rate = result.summary()["finish_rate"]
        return {"requests": len(result.sent), "finish_rate": rate, "statuses": dict(statuses),
                "faults": dict(self._done), "grown_mb": round(grown_mb, 1), "wrong": wrong}  # fmt: skip

    def _left_over(self) -> list[str]:
        """Once all is calm nothing waits, nothing is held, and requests are answered again."""
        ends = time.monotonic() + 60
        while True:
            with ServingClient(self._url) as client:
                told = client.status()
            calm = not told["queued"] and not told["queued_bytes"]
            if (calm and [w["state"] for w in told["workers"]] == ["idle", "idle"]) or time.monotonic() > ends:
                break
            time.sleep(0.1)
        connection = http.client.HTTPConnection(self._host, timeout=30)
        connection.request("POST", _PATH, _BODY)
        status = connection.getresponse().status
        return [] if calm and status == 200 else [f"at the end: {told}, and an answer {status}"]

    def _resident_kb(self) -> int:
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{self._pid}/status").read_text())
        assert found is not None
        return int(found[1])

    def _faults(self) -> None:
        kinds: list[Callable[[], None]] = [
            self._kill_worker, self._stop_worker, self._vanish, self._dawdle, self._flood, self._nonsense,
            self._oversize,
        ]  # fmt: skip
        while not self._over.wait(self._dice.uniform(0.1, 0.6)):
            fault = self._dice.choice(kinds)
            with contextlib.suppress(OSError, http.client.HTTPException):
                fault()
            self._done[fault.__name__.strip("_")] += 1

    def _signal_worker(self, number: signal.Signals) -> None:
        with ServingClient(self._url) as client:
            workers = [w["pid"] for w in client.status()["workers"]]
        if workers:
            os.kill(self._dice.choice(workers), number)

    def _kill_worker(self) -> None:
        self._signal_worker(signal.SIGKILL)

    def _stop_worker(self) -> None:
        self._signal_worker(signal.SIGSTOP)

    def _connected(self) -> socket.socket:
        host, _, port = self._host.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=5)

    def _post(self, body: bytes, length: int | None = None) -> bytes:
        head = f"POST {_PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body) if length is None else length}"
        return head.encode() + b"\r\n\r\n" + body

    def _vanish(self) -> None:
        with self._connected() as line:
            line.sendall(self._post(_BODY))

    def _dawdle(self) -> None:
        line = self._connected()
        line.sendall(self._post(_BODY[:20], len(_BODY)))
        threading.Timer(3.0, line.close).start()

    def _flood(self) -> None:
        lines = [self._connected() for _ in range(300)]
        for line in lines:
            line.sendall(self._post(_BODY))
        for line in lines:
            line.close()

    def _nonsense(self) -> None:
        with self._connected() as line:
            line.sendall(
                self._dice.choice([b"\x00\xff" * 50 + b"\r\n\r\n", self._post(b"[" * 5000), self._post(b"{}")])
            )
            line.recv(1000)

    def _oversize(self) -> None:
        with self._connected() as line:
            line.sendall(self._post(b"x" * 200_000))
            line.recv(1000)
