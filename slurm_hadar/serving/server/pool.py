"""Worker processes on this machine: started, spoken to, and replaced when they end."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from slurm_hadar.serving.server.wire import unpack

__all__ = ["Pool", "WorkerEvents", "gpus_here"]

_BACK_OFF_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


@dataclass(frozen=True)
class WorkerEvents:
    """Whom a pool tells: of each message, and of each end with its reason."""

    message: Callable[[str, dict[str, Any], list[dict[str, Any]]], None]
    gone: Callable[[str, str], None]


@dataclass
class _Process:
    name: str
    popen: subprocess.Popen[bytes]
    pidfd: int
    why: str = ""
    retired: bool = False


class Pool:
    """Workers, each at a place, where another one follows when it has ended. Everything happens in the event loop that
    :meth:`start` is called in.

    Parameters
    ----------
    most: places that there may be.
    command: what a worker is told behind its address and its name.
    """

    def __init__(self, most: int, command: list[str], events: WorkerEvents) -> None:
        self._most, self._command, self._events = most, command, events
        self._folder = Path(tempfile.mkdtemp(prefix="hadar-serve-"))  # for this user only
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._address = f"ipc://{self._folder}/workers"
        self._socket.bind(self._address)
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._processes: dict[str, _Process] = {}
        self._started = 0
        self._failures = [0] * most
        self._places: set[int] = set()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._drain)
        self.add(count)

    @property
    def places(self) -> int:
        """Workers that there are, or that are about to be started."""
        return len(self._places)

    def add(self, count: int) -> None:
        """So many more workers."""
        for place in [place for place in range(self._most) if place not in self._places][:count]:
            self._places.add(place)
            self._start(place)

    def retire(self, name: str) -> None:
        """End a worker that runs nothing, without another one in its place. Nobody is told of its end."""
        process = self._processes[name]
        process.retired = True
        self._places.discard(self._place(name))
        process.popen.kill()

    def pids(self) -> dict[str, int]:
        """Of the living workers, by name."""
        return {name: process.popen.pid for name, process in self._processes.items() if not process.retired}

    def proved(self, name: str) -> None:
        """A worker has answered: if it ends, the next one need not wait."""
        self._failures[self._place(name)] = 0

    def send(self, name: str, frames: list[Any]) -> bool:
        """False where the worker cannot be told: it is gone, which :attr:`WorkerEvents.gone` says next."""
        try:
            self._socket.send_multipart([name.encode(), *frames], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:
            return False
        self._again()
        return True

    def kill(self, name: str, why: str) -> None:
        """It is told of as gone when it has ended."""
        process = self._processes.get(name)
        if process is not None:
            process.why = why
            process.popen.kill()

    def close(self) -> None:
        """End all workers and forget them."""
        self._closed = True
        assert self._loop is not None
        self._loop.remove_reader(self._descriptor)
        for process in self._processes.values():
            self._loop.remove_reader(process.pidfd)
            process.popen.kill()
            process.popen.wait()
            os.close(process.pidfd)
        self._processes.clear()
        self._socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _place(self, name: str) -> int:
        return int(name.partition(".")[0])

    def _start(self, place: int) -> None:
        if self._closed or place not in self._places:
            return
        assert self._loop is not None
        self._started += 1
        name = f"{place}.{self._started}"
        command = [sys.executable, "-m", "slurm_hadar.serving.server.worker", self._address, name, *self._command]
        popen = subprocess.Popen(command, env=_environment(place, self._most), stdin=subprocess.DEVNULL)
        process = _Process(name, popen, os.pidfd_open(popen.pid))
        self._processes[name] = process
        self._loop.add_reader(process.pidfd, self._ended, process)

    def _ended(self, process: _Process) -> None:
        assert self._loop is not None
        self._drain()  # what it said last
        self._loop.remove_reader(process.pidfd)
        os.close(process.pidfd)
        code = process.popen.wait()
        del self._processes[process.name]
        if process.retired:
            return
        place = self._place(process.name)
        delay_s = _BACK_OFF_S[min(self._failures[place], len(_BACK_OFF_S) - 1)]
        self._failures[place] += 1
        self._loop.call_later(delay_s, self._start, place)
        self._events.gone(process.name, process.why or f"ended with {code}")

    def _drain(self) -> None:
        """Everything that has come. ZeroMQ's descriptor tells of changes only: it is read until it is empty."""
        while not self._closed:
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            name = identity.bytes.decode(errors="replace")
            if name in self._processes and not self._processes[name].retired:
                self._events.message(name, *unpack([frame.buffer for frame in frames]))

    def _again(self) -> None:
        """Sending may have taken in what the descriptor then no longer tells of."""
        assert self._loop is not None
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._loop.call_soon(self._drain)


def gpus_here() -> list[str]:
    """The GPUs that this process may use, where that is said, as it is in a job."""
    return [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]


def _environment(place: int, count: int) -> Mapping[str, str]:
    """One GPU of those that we have for each worker, and a share of the cores."""
    given = dict(os.environ)
    if gpus := gpus_here():
        given["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]
    given.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // count)))
    return given
