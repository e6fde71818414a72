"""Workers at their places: started, spoken to, and replaced when they end or are heard of no more."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import zmq

from slurm_hadar import scratch
from slurm_hadar.errors import AllocationLost, ConfigError
from slurm_hadar.serving.server.wire import unpack
from slurm_hadar.serving.server.workers.line import BEAT_S, sender
from slurm_hadar.serving.server.workers.processes import Addresses, WorkerProcess
from slurm_hadar.serving.server.workers.seats import Seat, seats_here

__all__ = ["Pool", "WorkerEvents"]

_FOLDER, _SOCKET = "hadar-serve-", "workers"
_BACK_OFF_S = (0.0, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_SILENCE_S = 8.0  # of a worker on another node: it is gone
_END_S = 5.0  # for the steps on other nodes, all together
_UNHEARD_S = 60.0  # of one that was never heard of: somebody is to look why


@dataclass(frozen=True)
class WorkerEvents:
    """Whom a pool tells: of each message, of each end with its reason, and, in a line for people, of places where no
    worker comes up."""

    message: Callable[[str, dict[str, Any], list[dict[str, Any]]], None]
    gone: Callable[[str, str], None]
    absent: Callable[[str], None]


class Pool:
    """Workers, each at a place, where another one follows when it has ended. Everything happens in the event loop that
    :meth:`start` is called in.

    Parameters
    ----------
    most: places that there may be. seats: the GPUs that they have, in turn; empty: nothing says which there are.
    command: what a worker is told of the models.

    ``addresses``: where it listens.
    """

    def __init__(self, most: int, seats: Sequence[Seat], command: list[str], events: WorkerEvents) -> None:
        self._most, self._seats, self._command, self._events = most, seats or [Seat("")], command, events
        scratch.remove_abandoned(_FOLDER)
        self._folder = scratch.make_for_sockets(_FOLDER, [_SOCKET])
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.addresses = self._listen()
        self._beside = min(most, sum(seat.node is None for seat in self._seats)) if self.addresses.elsewhere else most
        self._descriptor = int(self._socket.getsockopt(zmq.FD))
        self._processes: dict[str, WorkerProcess] = {}
        self._senders: dict[str, WorkerProcess] = {}
        self._leaving: set[WorkerProcess] = set()
        self._started = 0
        self._failures = [0] * most
        self._places: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._listener: asyncio.TimerHandle | None = None

    def _listen(self) -> Addresses:
        """A socket of this node's file system, which only we can open; with seats on other nodes also an encrypted one,
        for who has been told its key."""
        here = f"ipc://{self._folder / _SOCKET}"
        self._socket.bind(here)
        if all(seat.node is None for seat in self._seats):
            return Addresses(here)
        public, secret = zmq.curve_keypair()
        self._socket.curve_server, self._socket.curve_secretkey = True, secret  # of what is bound from now on
        port = self._socket.bind_to_random_port("tcp://*")
        return Addresses(here, f"tcp://{socket.gethostname()}:{port}", public.decode())

    def start(self, count: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._drain)
        if self.addresses.elsewhere:
            self._listener = self._loop.call_later(BEAT_S, self._look)
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
        self._places.discard(self.place(name))
        process.kill()

    def pids(self) -> dict[str, int]:
        """Of the living workers, by name; of one on another node that of its srun."""
        return {name: process.popen.pid for name, process in self._processes.items() if not process.retired}

    def nodes(self) -> dict[str, str | None]:
        """The node of each living worker; None: this one."""
        return {name: process.seat.node for name, process in self._processes.items()}

    def proved(self, name: str) -> None:
        """A worker has answered: if it ends, the next one need not wait."""
        self._failures[self.place(name)] = 0

    def send(self, name: str, frames: list[Any]) -> bool:
        """False where the worker cannot be told: it is gone, which :attr:`WorkerEvents.gone` says next."""
        process = self._processes.get(name)
        try:
            if process is None:
                return False
            self._socket.send_multipart([process.identity.encode(), *frames], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError:
            return False
        self._again()
        return True

    def kill(self, name: str, why: str) -> None:
        """It is told of as gone when it has ended; one on another node at once, since that may not answer."""
        process = self._processes.get(name)
        if process is not None:
            process.why = why
            process.kill()
            if process.seat.node is not None:
                self._is_gone(process, why)

    def close(self) -> None:
        """End all workers and forget them."""
        self._closed = True
        assert self._loop is not None
        self._loop.remove_reader(self._descriptor)
        if self._listener is not None:
            self._listener.cancel()
        for task in self._tasks:
            task.cancel()
        everyone = [*self._processes.values(), *self._leaving]
        for process in everyone:
            self._loop.remove_reader(process.pidfd)
            process.kill()
        until_s = time.monotonic() + _END_S
        for process in everyone:
            process.close(until_s)
        self._processes.clear()
        self._socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)

    def place(self, name: str) -> int:
        """Which of its places a worker of this name has."""
        return int(name.partition(".")[0])

    def _seat(self, place: int) -> Seat:
        return self._seats[place % len(self._seats)]

    def _start(self, place: int) -> None:
        """Another worker there. Where one on another node has ended without a word of its own, first look whether that
        node is still the job's."""
        if self._closed or place not in self._places:
            return
        assert self._loop is not None
        if self._seat(place).node is not None and self._failures[place]:
            task = self._loop.create_task(self._start_if_ours(place))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._start_now(place)

    async def _start_if_ours(self, place: int) -> None:
        assert self._loop is not None
        try:
            ours = self._seat(place).node in {seat.node for seat in await asyncio.to_thread(seats_here)}
            if ours and place in self._places and not self._closed:
                self._start_now(place)
        except AllocationLost as error:
            self._places.discard(place)
            self._events.absent(f"no more workers on {self._seat(place).node}: {error}")
            return
        except (ConfigError, OSError):  # Slurm does not answer now, or this machine has no room for a process
            ours = False
        if not ours:  # it may come back
            self._loop.call_later(_BACK_OFF_S[-1], self._start, place)

    def _start_now(self, place: int) -> None:
        assert self._loop is not None
        self._started += 1
        name = f"{place}.{self._started}"
        try:
            process = WorkerProcess.start(name, self._seat(place), self._command, self.addresses, self._beside)
        except OSError as error:
            self._follow(name, f"could not be started: {error.strerror}")
            return
        self._processes[name] = self._senders[process.identity] = process
        self._loop.add_reader(process.pidfd, self._ended, process)
        if process.seat.node is not None:
            self._loop.call_later(_UNHEARD_S, self._tell_if_unheard, process)

    def _tell_if_unheard(self, process: WorkerProcess) -> None:
        if process.heard_s is None and process.name in self._processes:
            self._events.absent(
                f"worker {process.name} on {process.seat.node} has not been heard of for {_UNHEARD_S:.0f} s: "
                f"{self.addresses.elsewhere} may not be reached from there (its name, a firewall), "
                "or srun waits for its step"
            )

    def _look(self) -> None:
        """Who is on another node, and has not been heard of, is gone with it."""
        assert self._loop is not None
        self._drain()  # what has come while this loop was held up counts
        silent_s = time.monotonic() - _SILENCE_S
        for process in list(self._processes.values()):
            if process.heard_s is not None and process.heard_s < silent_s:
                process.kill()
                self._is_gone(process, f"on {process.seat.node} has not been heard of for {_SILENCE_S:.0f} s")
        self._listener = self._loop.call_later(BEAT_S, self._look)

    def _is_gone(self, process: WorkerProcess, why: str) -> None:
        """It counts no more, and another one follows."""
        del self._processes[process.name], self._senders[process.identity]
        self._leaving.add(process)
        if process.retired:
            return
        self._follow(process.name, why)

    def _follow(self, name: str, why: str) -> None:
        """Another worker comes in its place."""
        assert self._loop is not None
        place = self.place(name)
        delay_s = _BACK_OFF_S[min(self._failures[place], len(_BACK_OFF_S) - 1)]
        self._failures[place] += 1
        self._loop.call_later(delay_s, self._start, place)
        self._events.gone(name, why)

    def _ended(self, process: WorkerProcess) -> None:
        """Its process has."""
        assert self._loop is not None
        self._drain()  # what it said last
        self._loop.remove_reader(process.pidfd)
        os.close(process.pidfd)
        code = process.popen.wait()
        if process.name in self._processes:
            self._is_gone(process, process.why or f"ended with {code}")
        self._leaving.discard(process)

    def _drain(self) -> None:
        """Everything that has come. ZeroMQ's descriptor tells of changes only: it is read until it is empty."""
        while not self._closed:
            try:
                identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return
            name, beats = sender(identity.bytes)
            process = self._senders.get(name)
            if process is None or process.retired:
                continue
            header, groups = unpack([frame.buffer for frame in frames])
            if beats:
                process.heard(header["step"])
            else:
                self._events.message(process.name, header, groups)

    def _again(self) -> None:
        """Sending may have taken in what the descriptor then no longer tells of."""
        assert self._loop is not None
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._loop.call_soon(self._drain)
