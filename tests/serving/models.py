"""Models without PyTorch, for tests of the server."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Sleeper:
    """Takes as many milliseconds as it is told, the longest of a batch; what it can be told to do besides is below."""

    name = "sleeper"
    inputs = (("ms", "FP32", [1]), ("values", "INT64", [-1]))
    outputs = (("sum", "INT64", [1]),)

    def infer(self, requests: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        longest = max(float(r["ms"][0]) for r in requests)
        if any(r["ms"][0] == -1 for r in requests):
            raise ValueError("minus one")
        if any(r["ms"][0] == -2 for r in requests):
            os._exit(3)
        time.sleep(max(0.0, longest) / 1e3)
        return [{"sum": np.array([r["values"].sum()])} for r in requests]

    def examples(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {name: [self._example(ms)] for name, ms in (("short", 1.0), ("long", 20.0))}

    def _example(self, ms: float) -> dict[str, Any]:
        return {"ms": np.array([ms], np.float32), "values": np.arange(3)}


class Empty:
    """Costs nothing: what is left is the server's."""

    name = "empty"
    inputs = (("x", "FP32", [1]),)
    outputs = (("y", "FP32", [1]),)

    def infer(self, requests: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{"y": r["x"]} for r in requests]

    def examples(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"any": [{"x": np.zeros(1, np.float32)}]}


class Halting(Empty):
    """Fails at once where the first worker was, as on a GPU that is out of order; elsewhere it loads for a while."""

    def __init__(self) -> None:
        place = os.environ["CUDA_VISIBLE_DEVICES"]
        failures = Path(os.environ["FAILURES"])
        if place == "0":
            with failures.open("a") as file:
                file.write("x")
            raise RuntimeError("this GPU is out of order")
        while not failures.exists() or failures.stat().st_size < 3:
            time.sleep(0.02)


class Unlike(Empty):
    """On the first worker that comes it takes 20 ms, on the others 20 times as long, as on another type of GPU."""

    def __init__(self) -> None:
        try:
            Path(os.environ["FIRST_WORKER"]).touch(exist_ok=False)
        except FileExistsError:
            self._seconds = 0.4
        else:
            self._seconds = 0.02

    def infer(self, requests: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        time.sleep(self._seconds)
        return super().infer(requests)


class Wide(Empty):
    """Answers as many numbers as it is asked for."""

    name = "wide"
    inputs = (("n", "INT64", [1]),)
    outputs = (("y", "INT64", [-1]),)

    def infer(self, requests: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [{"y": np.zeros(int(r["n"][0]), np.int64)} for r in requests]

    def examples(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {"any": [{"n": np.ones(1, np.int64)}]}


def build() -> list[Any]:
    return [Sleeper(), Empty()]


def dies() -> Any:
    os._exit(7)


def broken() -> Any:
    raise RuntimeError("no weights")
