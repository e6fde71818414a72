"""What the tuner and the processes of its trials say to each other: JSON over ZeroMQ, encrypted, with a secret."""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

import zmq

from slurm_hadar.sharing.broker.queries import FOLDER

__all__ = ["MOST_BYTES", "SCRATCH", "VARIABLE", "Line", "Spec", "TunerGone", "line_to"]

#: The environment variable in which a process finds its :class:`Spec`.
VARIABLE = "HADAR_TRIAL"
#: How the paths begin of the folders in which the processes of a tuner have their sockets on a node, and what they pass
#: to each other. Not in ``TMPDIR``, whose paths may be too long for sockets.
SCRATCH = f"/tmp/{FOLDER}tune-"
MOST_BYTES = 1 << 20  # of a message: a connection that sends more is closed
_ENCRYPTION_BYTES = 1024  # more than it adds
_PATIENCE_S = 600.0  # longer than the tuner waits for its storage


@dataclass(frozen=True, slots=True)
class Spec:
    """One process of a trial's run.

    Parameters
    ----------
    address, server_key, token: of the tuner. trial: its number in the study. run: how often it was started before.
    file, function: the objective. folder: the trial's own, with its checkpoints.
    world: processes of this run. rank: which of them this is; None: as Slurm says.
    gpus: of the node, by their place among those that the allocation has there. gpu_type: their type.
    share: socket of the GPU's broker, where the trial may have to share it. meet: file where the ranks find each other,
    in the tuner's folder on the node (:data:`SCRATCH`).
    """

    address: str
    server_key: str
    token: str
    trial: int
    run: int
    file: str
    function: str
    folder: str
    gpus: tuple[int, ...]
    gpu_type: str
    world: int = 1
    rank: int | None = None
    share: str | None = None
    meet: str = ""

    def text(self) -> str:
        """As :meth:`read` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, text: str) -> Spec:
        """What :meth:`text` wrote."""
        said = json.loads(text)
        return cls(**{**said, "gpus": tuple(said["gpus"])})


def line_to(spec: Spec, kind: int, context: zmq.Context[Any]) -> Any:
    """A socket that is connected to the tuner; it does not keep the process from ending."""
    socket = context.socket(kind)
    public, secret = zmq.curve_keypair()
    socket.curve_publickey, socket.curve_secretkey = public, secret
    socket.curve_serverkey = spec.server_key.encode()
    socket.setsockopt(zmq.LINGER, 2000)
    socket.connect(spec.address)
    return socket


class TunerGone(Exception):
    """Nobody answers any more."""


class Line:
    """Questions to the tuner, one after the other, from whichever thread."""

    def __init__(self, spec: Spec, rank: int) -> None:
        self._one, self._gone = threading.Lock(), False
        self._spec, self._rank, self._parent = spec, rank, os.getppid()
        self._socket = line_to(spec, zmq.REQ, zmq.Context.instance())

    def ask(self, op: str, **said: Any) -> Any:
        """The answer. Raises ValueError with the tuner's reason where it refuses, or where a message is larger than it
        may be; TunerGone where no answer comes."""
        head = {"op": op, "token": self._spec.token, "trial": self._spec.trial, "run": self._spec.run}
        message = json.dumps({**head, "rank": self._rank, **said}).encode()
        if len(message) > MOST_BYTES - _ENCRYPTION_BYTES:
            raise ValueError(
                f"{op}: {len(message):,} bytes are more than the {MOST_BYTES - _ENCRYPTION_BYTES:,} allowed"
            )
        with self._one:
            answer = self._answer(message)
        if "gone" in answer:
            raise TunerGone("the tuner has given this run up")
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer.get("ok")

    def _answer(self, message: bytes) -> Any:
        if self._gone:  # the socket waits for an answer for ever
            raise TunerGone("the tuner does not answer")
        self._socket.send(message)
        until = time.monotonic() + _PATIENCE_S
        while not self._socket.poll(1000):
            if os.getppid() != self._parent or time.monotonic() > until:
                self._gone = True
                raise TunerGone("the tuner does not answer")
        return json.loads(self._socket.recv())
