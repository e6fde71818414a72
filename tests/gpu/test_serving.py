"""A server whose worker has a GPU."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.torch

MODELS = Path(__file__).resolve().parents[2] / "examples" / "serving" / "models.py"
READY_S = 120.0


@pytest.fixture
def url(environ: dict[str, str]) -> Iterator[str]:
    command = [sys.executable, "-m", "slurm_hadar.cli.main", "serve", "run", f"{MODELS}:build", "--slo", "30s"]
    server = subprocess.Popen([*command, "--port", "0"], env=environ, stderr=subprocess.PIPE, text=True)
    lines: list[str] = []
    threading.Thread(target=lambda: lines.extend(iter(server.stderr.readline, "")), daemon=True).start()
    end = time.monotonic() + READY_S
    while not any("is ready" in line for line in lines):
        assert time.monotonic() < end and server.poll() is None, lines
        time.sleep(0.02)
    yield re.search(r"https?://[^/]+", next(line for line in lines if "serving at" in line))[0]
    server.send_signal(signal.SIGTERM)
    assert server.wait(READY_S) == 0, lines


def test_models_answer_from_the_gpu_as_from_the_cpu(url: str) -> None:
    """The example models are on it; one is asked on the CPU for the same."""
    import importlib.util

    import torch

    from slurm_hadar.serving.client import ServingClient

    spec = importlib.util.spec_from_file_location("served", MODELS)
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.DEVICE.type == "cuda"
    module.DEVICE = torch.device("cpu")
    used = [int(line) for line in _memory_of_processes()]
    assert used and max(used) > 0
    with ServingClient(url) as client:
        for model in module.build():
            for application, requests in model.examples().items():
                expected = model.infer(requests)
                for request, answer in zip(requests, expected, strict=True):
                    told = client.infer(model.name, request, application=application)
                    np.testing.assert_allclose(told.outputs["scores"], answer["scores"], rtol=2e-2, atol=2e-2)


def _memory_of_processes() -> list[str]:
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
