"""Workers on several nodes, without a Slurm: which GPUs they have, and whom the server believes."""

from __future__ import annotations

import asyncio
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import zmq

from slurm_hadar.runtime.allocation.gpus import NodeGpus
from slurm_hadar.serving.server.wire import pack
from slurm_hadar.serving.server.workers import pool as pools
from slurm_hadar.serving.server.workers import processes, seats
from slurm_hadar.serving.server.workers.line import WorkerLine, connect, sender, take_gpu
from slurm_hadar.serving.server.workers.pool import Pool, WorkerEvents
from slurm_hadar.serving.server.workers.seats import Seat, seats_here

MODELS = Path(__file__).parents[1] / "models.py"
WAIT_S = 60.0
JOB = [NodeGpus("a", "v100", (0, 1), 8, 3), NodeGpus("a", "k80", (2,), 8, 3), NodeGpus("b", "k80", (0, 1), 6, 2)]


@pytest.fixture
def _in_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seats, "in_allocation", lambda _environ: True)
    monkeypatch.setattr(seats, "gpus_of_job", lambda _environ: JOB)


@pytest.mark.usefixtures("_in_a_job")
def test_this_nodes_gpus_come_first() -> None:
    there = [Seat("0", "b", 2, 6), Seat("1", "b", 2, 6)]
    job = {"SLURM_JOB_NUM_NODES": "2", "SLURMD_NODENAME": "a"}
    assert seats_here({**job, "CUDA_VISIBLE_DEVICES": "4,5"}) == [Seat("4"), Seat("5"), *there]
    assert seats_here(job) == [Seat("0"), Seat("1"), Seat("2"), *there]


@pytest.mark.usefixtures("_in_a_job")
@pytest.mark.parametrize("nodes", [{}, {"SLURM_JOB_NUM_NODES": "1"}])
def test_on_one_node_slurm_is_not_asked(nodes: dict[str, str]) -> None:
    assert seats_here({**nodes, "CUDA_VISIBLE_DEVICES": "0,1"}) == [Seat("0"), Seat("1")]
    assert seats_here(nodes) == []


@pytest.mark.parametrize(("visible", "own"), [("4,6", "6"), ("", "1")])
def test_a_worker_of_a_step_takes_its_own_gpu(visible: str, own: str) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": visible}
    take_gpu(WorkerLine("", "", "key", 1), environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == own
    take_gpu(WorkerLine("", ""), environ)
    assert environ["CUDA_VISIBLE_DEVICES"] == own


def test_a_beat_is_known_by_its_sender() -> None:
    assert sender(b"~0.1-secret") == ("0.1-secret", True) and sender(b"0.1-secret") == ("0.1-secret", False)


def test_strangers_are_not_heard() -> None:
    """Neither without the server's key, nor under a worker's name without its secret."""
    heard: list[tuple[str, str]] = []

    def message(name: str, header: dict[str, Any], _groups: object) -> None:
        heard.append((name, header["kind"]))

    async def play() -> None:
        events = WorkerEvents(message, lambda name, why: heard.append((name, why)), print)
        pool = Pool(2, [Seat(""), Seat("0", "elsewhere", 1)], [f"{MODELS}:build", "1"], events)
        addresses = pool.addresses
        _, port = addresses.elsewhere.rsplit(":", 1)
        pool.start(1)
        with zmq.Context() as context:
            for key in (None, addresses.server_key):
                with connect(WorkerLine(f"tcp://127.0.0.1:{port}", "0.1", key), context) as stranger:
                    stranger.setsockopt(zmq.LINGER, 0 if key is None else 1000)
                    stranger.send_multipart(pack({"kind": "ready", "models": []}))
            until = time.monotonic() + WAIT_S
            while not heard and time.monotonic() < until:
                await asyncio.sleep(0.02)
        pool.close()

    asyncio.run(play())
    assert heard == [("0.1", "ready")]


def test_workers_of_one_node_are_spoken_to_by_files_alone() -> None:
    pool = Pool(1, [Seat("0")], [], WorkerEvents(lambda *_: None, lambda *_: None, print))
    assert pool.addresses.here.startswith("ipc://") and not pool.addresses.elsewhere


def test_a_step_that_is_never_heard_of_is_told_of_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where this node's name does not resolve there: the step runs, and its words do not come."""

    def silent(*_args: object, **_named: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sleep", "60"])

    monkeypatch.setattr(processes, "start_step", silent)
    monkeypatch.setattr(pools, "_UNHEARD_S", 0.1)
    monkeypatch.setattr(pools, "BEAT_S", 0.05)
    told: list[str] = []

    async def play() -> str:
        pool = Pool(1, [Seat("0", "elsewhere", 1)], ["models.py:build", "1"], _events(told))
        pool.start(1)
        until = time.monotonic() + WAIT_S
        while not told and time.monotonic() < until:
            await asyncio.sleep(0.02)
        for _ in range(10):  # more looks
            await asyncio.sleep(0.05)
        pool.close()
        return pool.addresses.elsewhere

    address = asyncio.run(play())
    assert len(told) == 1 and told[0].startswith("worker 0.1 on elsewhere has not been heard of") and address in told[0]
    assert "firewall" in told[0]


def _events(told: list[str]) -> WorkerEvents:
    return WorkerEvents(lambda *_: None, lambda name, why: told.append(f"{name} is gone: {why}"), told.append)
