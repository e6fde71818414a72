"""Worker processes: children of the server on its own node, job steps on the others."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from slurm_hadar.runtime.allocation.steps import end_step, environment, start_step
from slurm_hadar.serving.server.workers.line import VARIABLE, WorkerLine
from slurm_hadar.serving.server.workers.seats import Seat
from slurm_hadar.sharing.gpus import VISIBLE

__all__ = ["Addresses", "WorkerProcess"]

#: -P: a file of the working directory, such as json.py, is none of Python's modules.
_MODULE = ("-P", "-m", "slurm_hadar.serving.server.workers.worker")
#: Of the server's own environment what means nothing on another node.
_OF_THIS_NODE = (VISIBLE, "HADAR_RUN_DIR", "HADAR_SHARE")


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where the server listens: for processes of this node, and for those of others, with the key of that."""

    here: str
    elsewhere: str = ""
    server_key: str = ""


@dataclass(eq=False)
class WorkerProcess:
    """``popen``: the worker, or the srun of its step. ``heard_s``: when it was last heard of by time.monotonic(), of a
    step that has begun."""

    name: str
    seat: Seat
    identity: str
    popen: subprocess.Popen[bytes]
    pidfd: int
    why: str = ""
    retired: bool = False
    step: str | None = None
    heard_s: float | None = None

    @classmethod
    def start(cls, name: str, seat: Seat, command: Sequence[str], addresses: Addresses, workers: int) -> WorkerProcess:
        """``workers``: how many share the cores of this node."""
        identity = f"{name}-{secrets.token_hex(16)}"
        words = [sys.executable, *_MODULE, *command, name]
        if seat.node is None:
            environ = dict(os.environ)
            environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // max(1, workers))))
            if seat.gpu:
                environ[VISIBLE] = seat.gpu
            environ[VARIABLE] = WorkerLine(addresses.here, identity).text()
            popen = subprocess.Popen(words, env=environ, stdin=subprocess.DEVNULL)
        else:
            environ = environment(seat.cpus // max(1, seat.on_node))
            for variable in _OF_THIS_NODE:
                environ.pop(variable, None)
            line = WorkerLine(addresses.elsewhere, identity, addresses.server_key, int(seat.gpu))
            environ[VARIABLE] = line.text()
            popen = start_step(seat.node, seat.on_node, words, environ, name=f"worker-{name}")
        try:
            return cls(name, seat, identity, popen, os.pidfd_open(popen.pid))
        except OSError:
            popen.terminate()
            popen.wait()
            raise

    def heard(self, step: str | None) -> None:
        """It lives, as a step of this id."""
        self.heard_s, self.step = time.monotonic(), step

    def kill(self) -> None:
        """At once. A step's srun ends when its step has."""
        if self.seat.node is None:
            self.popen.kill()
        elif self.step is not None:
            end_step(self.step, self.popen)
        else:
            self.popen.terminate()

    def close(self, until_s: float) -> None:
        """End it, and wait for that: for one on another node until then, by time.monotonic()."""
        if self.seat.node is None:
            self.popen.kill()
            self.popen.wait()
        else:
            self.popen.terminate()  # srun ends its step
            try:
                self.popen.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()
        os.close(self.pidfd)
