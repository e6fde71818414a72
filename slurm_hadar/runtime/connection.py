"""A job's side of the channel to the controller: messages out, orders in; the spool file while nobody answers."""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_hadar import messages
from slurm_hadar.errors import ChannelError
from slurm_hadar.joblog import say
from slurm_hadar.messages import Order

BUSY_TICK_S = 0.05
WELCOME_S = 3.0
RETRY_S = 10.0
FAREWELL_MS = 1000
MAX_SPOOL_BYTES = 8 * 2**20


class Connection:
    """Messages out, orders in: ZeroMQ while the controller answers, else the spool file.

    ``live`` says that the controller has answered a hello since the connection was made. Until then nothing but hellos
    is sent, each with all that is known by then, and every other message goes to the spool.
    """

    def __init__(self, spool: Path) -> None:
        self._spool = spool
        self._socket: Any = None
        self._info: messages.ChannelInfo | None = None
        self._unspooled: list[bytes] = []
        self._silent_since = time.monotonic()
        self._greeted_at: float | None = None
        self._tried_at = 0.0
        self.live = False
        self._zmq: Any = None
        try:
            import zmq
        except ImportError as error:
            say(f"no pyzmq in this Python ({error}): reports go to {spool}")
        else:
            self._zmq = zmq
        self._connect()

    def _connect(self) -> None:
        """Connect to the controller of the channel file; anew if another controller has written another file."""
        self._tried_at = time.monotonic()
        try:
            info = messages.find_channel(os.environ)
        except ChannelError as error:
            if not self.live:
                say(str(error))
            return
        if self._zmq is None or info is None or info == self._info:
            return
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        self._begin_anew()
        self._info, zmq = info, self._zmq
        if not info.listens:
            return
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.curve_publickey, self._socket.curve_secretkey = zmq.curve_keypair()
        self._socket.curve_serverkey = info.public_key.encode()
        self._socket.immediate = 1  # without a connection a send fails, instead of filling a queue that may be lost
        self._socket.sndhwm = 64
        self._socket.maxmsgsize = messages.MAX_BYTES
        self._socket.heartbeat_ivl, self._socket.heartbeat_timeout = 5000, 15000
        self._socket.reconnect_ivl, self._socket.reconnect_ivl_max = 1000, 5000  # one that stands by cuts each off
        self._socket.connect(info.address)

    def wait(self, pipe: int, seconds: float) -> bool:
        """Sleep until something is there; True if it is from the agent."""
        if not self.live and time.monotonic() - self._silent_since < WELCOME_S:
            seconds = min(seconds, BUSY_TICK_S)
        if self._socket is None:
            return bool(select.select([pipe], [], [], seconds)[0])
        poller = self._zmq.Poller()
        poller.register(self._socket, self._zmq.POLLIN)
        poller.register(pipe, self._zmq.POLLIN)
        return pipe in dict(poller.poll(int(seconds * 1000)))

    def send(self, data: bytes) -> None:
        """Send, or keep for the spool; never waits."""
        if self.live and self._try(data):
            return
        if self.live:
            self._begin_anew()
        self._unspooled.append(data)

    def _begin_anew(self) -> None:
        """Nobody has answered yet: whoever is there now is to be greeted first."""
        self.live, self._greeted_at, self._silent_since = False, None, time.monotonic()

    def keep_up(self, hello: Callable[[], bytes]) -> None:
        """While nobody answers: say hello from time to time, and spool what could not be said for WELCOME_S. In any
        case see whether another controller is to be told: the one that was may go on listening while it stands by."""
        now = time.monotonic()
        if now - self._tried_at > RETRY_S:
            self._connect()
        if self.live:
            return
        if self._greeted_at is None or now - self._greeted_at > RETRY_S:
            self._greeted_at = now if self._try(hello()) else None
        if self._unspooled and now - self._silent_since > WELCOME_S:
            self._write_spool()

    def orders(self, job: str) -> list[Order]:
        """What the controller has said; anything unacceptable is named and dropped."""
        found: list[Order] = []
        while self._socket is not None:
            try:
                order = messages.decode_order(self._socket.recv_multipart(self._zmq.NOBLOCK)[-1])
            except self._zmq.ZMQError:
                break
            except ChannelError as error:
                say(f"dropped an order: {error}")
                continue
            if order.job != job:
                say(f"dropped an order for job {order.job}")
                continue
            if not self.live:
                self.live = True
                self._unspooled.clear()  # the hello that was answered said it all
            found.append(order)
        return found

    def close(self) -> None:
        """Spool what nobody has taken; give a live connection a moment for the last message."""
        if self._unspooled:
            self._write_spool()
        if self._socket is not None:
            self._socket.close(linger=FAREWELL_MS if self.live else 0)
            self._socket = None
            self._zmq.Context.instance().term()

    def _try(self, data: bytes) -> bool:
        if self._socket is None:
            return False
        try:
            self._socket.send(data, self._zmq.NOBLOCK)
        except self._zmq.ZMQError:
            return False
        return True

    def _write_spool(self) -> None:
        lines = b"".join(data + b"\n" for data in self._unspooled)
        self._unspooled.clear()
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
            descriptor = os.open(self._spool, flags, 0o600)
            try:
                found = os.fstat(descriptor)
                if stat.S_ISREG(found.st_mode) and found.st_size < MAX_SPOOL_BYTES:
                    os.write(descriptor, lines)
            finally:
                os.close(descriptor)
        except OSError as error:
            say(f"cannot write {self._spool}: {error.strerror}")
