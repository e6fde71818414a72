"""Where the processes of trials ask and tell: one encrypted socket, read by the tuner's loop."""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import zmq

from slurm_hadar.tuning.trial.wire import MOST_BYTES

__all__ = ["Channel", "Message"]


@dataclass(frozen=True, slots=True)
class Message:
    """What a trial's process has said; ``sender``: where an answer goes. ``asks``: it waits for one."""

    sender: bytes
    asks: bool
    op: str
    trial: int
    run: int
    rank: int
    said: dict[str, Any]


class Channel:
    """``everywhere``: processes on other nodes are to reach it, too. Who has not the token is not heard."""

    def __init__(self, everywhere: bool) -> None:
        self.token = secrets.token_hex(32)
        public, secret = zmq.curve_keypair()
        self.server_key = public.decode()
        self._context: zmq.Context[Any] = zmq.Context()
        self.socket: Any = self._context.socket(zmq.ROUTER)
        self.socket.curve_server, self.socket.curve_secretkey = True, secret
        self.socket.setsockopt(zmq.MAXMSGSIZE, MOST_BYTES)
        self.socket.setsockopt(zmq.LINGER, 1000)
        host = socket.gethostname() if everywhere else "127.0.0.1"
        port = self.socket.bind_to_random_port("tcp://*" if everywhere else "tcp://127.0.0.1")
        self.address = f"tcp://{host}:{port}"

    def messages(self) -> Iterator[Message]:
        """All that have come, without waiting."""
        while self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            frames = self.socket.recv_multipart()
            asks = len(frames) == 3 and not frames[1]
            message = self._read(frames[0], asks, frames[-1])
            if message is not None:
                yield message

    def _read(self, sender: bytes, asks: bool, text: bytes) -> Message | None:
        try:
            said = json.loads(text)
            if not hmac.compare_digest(str(said.pop("token")), self.token):
                return None
            head = [said.pop(name) for name in ("op", "trial", "run", "rank")]
            return Message(sender, asks, str(head[0]), int(head[1]), int(head[2]), int(head[3]), said)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    def answer(self, message: Message, value: Any = None, error: str | None = None) -> None:
        """To one that asks; with an ``error`` it raises that."""
        said = {"ok": value} if error is None else {"error": error}
        self.socket.send_multipart([message.sender, b"", json.dumps(said).encode()])

    def say_gone(self, message: Message) -> None:
        """Nobody answers this process any more: it saves, and ends."""
        self.socket.send_multipart([message.sender, b"", json.dumps({"gone": True}).encode()])

    def tell_to_stop(self, sender: bytes) -> None:
        """A process saves at its next boundary, and ends."""
        self.socket.send_multipart([sender, json.dumps({"do": "stop"}).encode()])

    def close(self) -> None:
        self.socket.close()
        self._context.term()
