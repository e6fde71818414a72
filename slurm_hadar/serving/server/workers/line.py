"""How a worker finds its server, and how its server knows that it is the worker: told to it in its environment."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping, MutableMapping
from dataclasses import asdict, dataclass
from typing import Any

import zmq

from slurm_hadar.dependent import die_with_parent
from slurm_hadar.messages import step_id
from slurm_hadar.serving.server.wire import pack
from slurm_hadar.sharing.gpus import VISIBLE, named

__all__ = ["BEAT_S", "VARIABLE", "WorkerLine", "connect", "keep_beating", "take_gpu"]

#: The environment variable in which a worker finds its :class:`WorkerLine`.
VARIABLE = "HADAR_SERVE_WORKER"
BEAT_S = 1.0
_BEATS = b"~"


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """``identity``: of its socket, a secret, since what comes under it is believed. ``server_key``: of a server on
    another node, with which all is encrypted; None: it is on this one. ``gpu``: its place among those of the step."""

    address: str
    identity: str
    server_key: str | None = None
    gpu: int | None = None

    def text(self) -> str:
        """As :meth:`take` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def take(cls, environ: MutableMapping[str, str]) -> WorkerLine:
        """Out of the environment, which the models' code and its children need not know."""
        return cls(**json.loads(environ.pop(VARIABLE)))


def connect(line: WorkerLine, context: zmq.Context[Any], beats: bool = False) -> Any:
    """A socket to the server; ``beats``: the one by which it is known to live."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, (_BEATS if beats else b"") + line.identity.encode())
    socket.setsockopt(zmq.LINGER, 0 if beats else 1000)
    if line.server_key is not None:
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
        socket.curve_serverkey = line.server_key.encode()
    socket.connect(line.address)
    return socket


def sender(identity: bytes) -> tuple[str, bool]:
    """Whose message it is, and whether it is a beat."""
    beats = identity.startswith(_BEATS)
    return identity.removeprefix(_BEATS).decode(errors="replace"), beats


def take_gpu(line: WorkerLine, environ: MutableMapping[str, str]) -> None:
    """A step of ours sees all GPUs that the job has on its node: the worker takes its own."""
    if line.gpu is not None:
        (environ[VISIBLE],) = named(environ, [line.gpu])


def keep_beating(line: WorkerLine, environ: Mapping[str, str]) -> None:
    """Tell a server on another node each second that this one lives: from a process of its own, since a model may hold
    up all threads of this one for as long as it likes. It ends with this process."""
    if line.server_key is None:
        return
    parent, step = os.getpid(), step_id(environ)
    if os.fork():
        return
    try:
        die_with_parent(parent)
        _beat(line, step)
    finally:
        os._exit(0)


def _beat(line: WorkerLine, step: str | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with zmq.Context() as context, connect(line, context, beats=True) as socket:
        while True:
            socket.send_multipart(pack({"kind": "beat", "step": step}))
            time.sleep(BEAT_S)
