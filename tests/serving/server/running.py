"""Servers of models in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from slurm_hadar.serving.client import ServingClient
from slurm_hadar.serving.tensors import as_json

MODELS = Path(__file__).parents[1] / "models.py"
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


def inputs_of(ms: float, *values: int) -> dict[str, Any]:
    return {"ms": np.array([ms], np.float32), "values": np.array(values, np.int64)}


def body_of(inputs: dict[str, Any], **parameters: float) -> dict[str, Any]:
    return {"inputs": as_json(inputs), "parameters": parameters}
