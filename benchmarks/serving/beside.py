"""A server and a training on one pretended GPU by turns, against each of them alone.

What the GPU does is slept: iterations of 20 ms, requests of 5 and 50 ms, so that the machine's other work matters
little. On a real GPU it is matrix products, as many as take so long there. As a script it is the training:
python -m benchmarks.serving.beside SECONDS.
"""

from __future__ import annotations

import functools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from slurm_hadar.errors import ServingError
from slurm_hadar.serving.client import ServingClient
from slurm_hadar.serving.load import run_load
from slurm_hadar.serving.trace import intended_of
from slurm_hadar.sharing import iteration

__all__ = ["build", "measure"]

_FILE = Path(__file__).resolve()
_PORT = 8662
_ITERATION_S = 0.020
_TIMES_S = {"short": 0.005, "long": 0.050}
_MIX = {"short": 80.0, "long": 20.0}
_LOAD = 0.3
_SLO_S = 0.150
#: Matrix products a second, in the environment of both; without it they sleep.
_RATE = "BESIDE_PRODUCTS_PER_S"
_WIDTH = 2048


class _Gpu:
    """Products of matrices, ordered one after the other."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._a, self._b, self._c = (torch.randn(_WIDTH, _WIDTH, device="cuda") for _ in range(3))

    def order(self, count: int) -> None:
        for _ in range(count):
            self._torch.mm(self._a, self._b, out=self._c)

    def finish(self) -> None:
        self._torch.cuda.synchronize()


def _products_per_s() -> float:
    gpu = _Gpu()
    for count in (100, 2000):  # the first is to warm up
        began = time.perf_counter()
        gpu.order(count)
        gpu.finish()
    return count / (time.perf_counter() - began)


@functools.cache
def _gpu() -> _Gpu | None:
    return _Gpu() if os.environ.get(_RATE) else None


def _work(seconds: float) -> None:
    """Of the GPU; whoever needs its end waits for it."""
    if (gpu := _gpu()) is None:
        time.sleep(seconds)
    else:
        gpu.order(round(seconds * float(os.environ[_RATE])))


def _finish() -> None:
    """Wait until a real GPU has done what was ordered."""
    if (gpu := _gpu()) is not None:
        gpu.finish()


class Slept:
    """Takes as long as the longest of a batch, times (0.6 + 0.4 k)."""

    name = "slept"
    inputs = (("seconds", "FP64", [1]),)
    outputs = (("seconds", "FP64", [1]),)

    def infer(self, requests: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        _work(max(float(r["seconds"][0]) for r in requests) * (0.6 + 0.4 * len(requests)))
        _finish()
        return requests

    def examples(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {name: [{"seconds": np.array([seconds])}] for name, seconds in _TIMES_S.items()}


def build() -> Slept:
    return Slept()


def _train(seconds: float) -> None:
    """As many iterations as go into this time; how many a second is left in the file that BESIDE_OUT names."""
    began, count = time.monotonic(), 0
    while time.monotonic() < began + seconds:
        with iteration():
            _work(_ITERATION_S)
        count += 1
    _finish()
    Path(os.environ["BESIDE_OUT"]).write_text(str(count / (time.monotonic() - began)))


def measure(seconds: float, folder: Path, gpu: bool = False) -> dict[str, float]:
    """Finish rates and iterations per second, alone and together. The load lies within the training's time."""
    if gpu:
        command = [sys.executable, "-c", "from benchmarks.serving import beside; print(beside._products_per_s())"]
        os.environ[_RATE] = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    out = folder / "iterations"
    serve = f"{sys.executable} -m slurm_hadar.cli.main serve run {_FILE}:build --port {_PORT} --slo 10s"
    train = f"{sys.executable} -m benchmarks.serving.beside {seconds}"
    found = {"serving alone": _served(serve.split(), seconds)}
    subprocess.run(train.split(), env={**os.environ, "BESIDE_OUT": str(out)}, check=True, capture_output=True)
    found["training alone"] = float(out.read_text())
    serving = f"HADAR_SHARE_CLASS=serving {serve}"
    training = f"BESIDE_OUT={out} WAIT_FOR=http://127.0.0.1:{_PORT} {train}"
    share = ["-m", "slurm_hadar.cli.main", "share", "run", "--policy", "priority", "--share", "serving=9"]
    found["serving beside training"] = _served([sys.executable, *share, serving, training], seconds)
    found["training beside serving"] = float(out.read_text())
    return found


def _served(command: list[str], seconds: float) -> float:
    """The finish rate under load. The command is ended then."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    for line in iter(process.stderr.readline, ""):
        if re.search("is ready", line):
            break
    rest = threading.Thread(target=process.stderr.read, daemon=True)
    rest.start()
    with ServingClient(f"http://127.0.0.1:{_PORT}") as client:
        examples: dict[str, list[dict[str, Any]]] = {}
        for example in client.examples("slept"):
            examples.setdefault(example["parameters"]["application"], []).append(example)
    mean_s = sum(_TIMES_S[a] * w for a, w in _MIX.items()) / sum(_MIX.values())
    spec = f"poisson:rate={_LOAD / mean_s},seconds={0.9 * seconds:g},seed=100"
    result = run_load(f"http://127.0.0.1:{_PORT}", "slept", intended_of(spec, _SLO_S, _MIX), examples)
    time.sleep(0.2 * seconds)  # the training's last iterations, and its count
    os.killpg(process.pid, signal.SIGTERM)
    process.wait(60)
    return float(result.summary()["finish_rate"])


def _wait_for(url: str) -> None:
    while True:
        try:
            with ServingClient(url) as client:
                if client.ready():
                    return
        except ServingError:  # not there yet
            pass
        time.sleep(0.1)


if __name__ == "__main__":
    _gpu()  # which takes seconds, and no turn
    if os.environ.get("WAIT_FOR"):
        _wait_for(os.environ["WAIT_FOR"])
    _train(float(sys.argv[1]))
