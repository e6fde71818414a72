"""What the server itself costs: a model that does nothing, against a bare web server that answers the same JSON."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from slurm_hadar.procstat import stat_of

__all__ = ["Empty", "bare", "build", "measure"]

_HERE = Path(__file__)
_BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1.0]}], "parameters": {"deadline_ms": 10_000}}
).encode()
_AT_ONCE = 32


class Empty:
    """Answers what it was sent."""

    name = "empty"
    inputs = (("x", "FP32", [1]),)
    outputs = (("x", "FP32", [1]),)

    def infer(self, requests: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return requests

    def examples(self) -> Mapping[str, list[dict[str, Any]]]:
        return {"any": [{"x": np.zeros(1, np.float32)}]}


def build() -> Empty:
    return Empty()


async def _echo(request: Request) -> JSONResponse:
    asked = json.loads(await request.body())
    return JSONResponse({"model_name": "empty", "outputs": asked["inputs"]})


bare = Starlette(routes=[Route("/v2/models/empty/infer", _echo, methods=["POST"])])


@contextlib.contextmanager
def _running(command: list[str], ready: str) -> Iterator[tuple[str, int]]:
    """Its address and process."""
    with subprocess.Popen([sys.executable, *command], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        url = ""
        for line in iter(process.stderr.readline, ""):
            found = re.search(r"http://[\d.:]+", line)
            url = found[0] if found else url
            if ready in line:
                break
        try:
            yield url, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _cpu_s(pid: int) -> float:
    return stat_of(pid).cpu_ticks / os.sysconf("SC_CLK_TCK")


async def _ask(url: str, seconds: float) -> tuple[list[float], float]:
    """Latencies of one client alone, and requests per second of many at once, who each wait for their answers."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one() -> float:
            began = time.perf_counter()
            async with session.post(url, data=_BODY) as answer:
                await answer.read()
                if answer.status != 200:
                    raise RuntimeError(f"{url} answered {answer.status}")
            return time.perf_counter() - began

        alone = [await one() for _ in range(500)][100:]
        ends = time.perf_counter() + seconds

        async def again() -> int:
            count = 0
            while time.perf_counter() < ends:
                await one()
                count += 1
            return count

        counts = await asyncio.gather(*(again() for _ in range(_AT_ONCE)))
    return alone, sum(counts) / seconds


def measure(seconds: float) -> dict[str, dict[str, float]]:
    """By what was asked: median latency of one client, requests per second of 32, CPU of the server per request."""
    module = "benchmarks.serving.server:bare"
    commands = {
        "bare uvicorn and Starlette": (["-m", "uvicorn", module, "--port", "8661", "--no-access-log"], "running on"),
        "hadar serve run": (
            ["-m", "slurm_hadar.cli.main", "serve", "run", f"{_HERE}:build", "--port", "0", "--slo", "10s"],
            "is ready",
        ),
    }
    found = {}
    for name, (command, ready) in commands.items():
        with _running(command, ready) as (url, pid):
            before_s = _cpu_s(pid)
            alone, rate = asyncio.run(_ask(f"{url}/v2/models/empty/infer", seconds))
            used_s = _cpu_s(pid) - before_s
        found[name] = {
            "median latency, ms": statistics.median(alone) * 1e3,
            "requests/s": rate,
            "CPU of the server's process, ms a request": 1e3 * used_s / (rate * seconds + 500),
        }
    return found
