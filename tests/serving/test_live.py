"""The server as a job of a real Slurm, by its template: asked from outside, and requeued while it works."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slurm_hadar.serving.client import ServingClient

pytestmark = pytest.mark.slurm
ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 180
TOKEN = "0123456789abcdef"
WAITING = 6


def test_a_server_in_a_job_answers_whom_it_has_accepted(
    make_cluster: Callable[..., Any], short_tmp: Path, poll: Any
) -> None:
    """Through a requeue; and serves again behind it."""
    cluster = make_cluster(nodes="v100:1x2")
    (short_tmp / "token").write_text(TOKEN)
    (short_tmp / "token").chmod(0o600)
    text = (ROOT / "sbatch_templates" / "serve.sbatch").read_text()
    for old, new in {
        "models.py:build": f"{ROOT}/tests/serving/models.py:build",
        "--port 8642 --token-file ~/serve.token": f"--port 0 --token-file {short_tmp}/token",
        "--workers 1-4": "--workers 2-4",
        '"$(hostname)"': "127.0.0.1",
        "--cpus-per-task=6": "--cpus-per-task=1",
        "--mem=32G": "--mem=200M",
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    (short_tmp / "serve.sbatch").write_text(text)
    path = f"{ROOT / 'wrappers'}:{Path(sys.executable).parent}:{cluster.env['PATH']}"
    env = {**cluster.env, "PATH": path, "HADAR_PYTHON": sys.executable, "PYTHONPATH": str(ROOT)}
    job = cluster.run(["sbatch", "--parsable", "serve.sbatch"], env=env, cwd=short_tmp).stdout.strip()
    log = short_tmp / f"my-server-{job}.log"

    def addresses(ready: int) -> list[str]:
        """All that it has listened at, once so many workers have been ready."""
        told = log.read_text() if log.exists() else ""
        return re.findall(r"serving at (http://[^/]+)", told) if told.count(" is ready ") >= ready else []

    (first,) = poll(lambda: addresses(2), DEADLINE_S)
    answers: list[Any] = []

    def ask() -> None:
        with ServingClient(first, TOKEN) as client:
            inputs = {"ms": np.array([1500.0], np.float32), "values": np.array([20, 22])}
            answers.append(client.infer("sleeper", inputs, deadline_ms=60_000).outputs["sum"].tolist())

    asking = [threading.Thread(target=ask) for _ in range(WAITING)]
    for thread in asking:
        thread.start()
    with ServingClient(first, TOKEN) as client:
        poll(lambda: client.status()["queued"] + sum(w["batch"] for w in client.status()["workers"]) == WAITING, 30)
    cluster.run(["scontrol", "requeue", job])
    for thread in asking:
        thread.join(DEADLINE_S)
    assert answers == [[42]] * WAITING

    poll(lambda: "PENDING" in cluster.run(["squeue", "-h", "-o", "%T", "-j", job]).stdout, DEADLINE_S)
    cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])  # else it waits for two minutes
    *_, again = poll(lambda: addresses(4), DEADLINE_S)
    with ServingClient(again, TOKEN) as client:
        assert client.ready()
