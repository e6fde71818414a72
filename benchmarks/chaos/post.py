"""The way between jobs and controller, which this can cut; and somebody who sends what nobody should."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import secrets
import socket
import threading
import time
from pathlib import Path

import zmq

from slurm_hadar.errors import ChannelError
from slurm_hadar.messages import ChannelInfo, Report, encode

__all__ = ["Proxy", "send_bad_messages"]


class Proxy:
    """Passes TCP connections on to where the controller's channel file points, under an address that stays.

    ``real`` is the file that the controller writes, ``shown`` the one that jobs read. While it is cut all connections
    are closed, what was on its way is lost, and new ones are closed at once.
    """

    def __init__(self, real: Path, shown: Path) -> None:
        self._real, self._shown = real, shown
        self._server = socket.create_server(("127.0.0.1", 0))
        self._server.settimeout(0.2)
        self.port = self._server.getsockname()[1]
        self._cut = threading.Event()
        self._stop = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name="proxy", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Close everything, and let nobody through."""
        self._cut.set()
        with self._lock:
            for one in self._open:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self._cut.clear()

    def close(self) -> None:
        self._stop.set()
        self.cut()
        self._thread.join(5.0)
        self._server.close()

    def target(self) -> ChannelInfo | None:
        """Where the controller says that it listens, and with which key."""
        try:
            return ChannelInfo.from_json(self._real.read_bytes())
        except (OSError, ChannelError):
            return None

    def _publish(self) -> None:
        info = self.target()
        if info is None or not info.listens:
            return
        text = ChannelInfo(f"tcp://127.0.0.1:{self.port}", info.public_key).to_json()
        if not self._shown.exists() or self._shown.read_text() != text:
            fresh = self._shown.with_suffix(".new")
            fresh.write_text(text)
            fresh.replace(self._shown)

    def _serve(self) -> None:
        while not self._stop.is_set():
            self._publish()
            try:
                client, _ = self._server.accept()
            except TimeoutError:
                continue
            info = self.target()
            try:
                if self._cut.is_set() or info is None:
                    raise ConnectionRefusedError
                host, port = info.address.removeprefix("tcp://").rsplit(":", 1)
                server = socket.create_connection((host, int(port)), timeout=2.0)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open |= {client, server}
            for one, other in ((client, server), (server, client)):
                threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        source.settimeout(None)
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open.discard(source)
        source.close()


def send_bad_messages(info: ChannelInfo, tokens: dict[str, str], rng: random.Random) -> int:
    """Send, over real ZeroMQ connections: garbage, halves of messages, too many frames, wrong tokens, old and repeated
    reports that bear the right one, and connections without or with a wrong key. Returns how many were sent.

    ``tokens`` are the jobs' own, by job.
    """
    good = zmq.curve_keypair()
    sent = 0
    with contextlib.closing(_client(info.address, info.public_key.encode(), good)) as client:
        for frames in _bad(tokens, rng):
            with contextlib.suppress(zmq.Again):
                client.send_multipart(frames)
                sent += 1
        time.sleep(0.2)
    for server_key, keys in ((zmq.curve_keypair()[0], good), (None, None)):
        with contextlib.closing(_client(info.address, server_key, keys)) as stranger, contextlib.suppress(zmq.Again):
            stranger.send(b"{}")
            sent += 1
    host, port = info.address.removeprefix("tcp://").rsplit(":", 1)
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2.0) as raw:
        raw.sendall(rng.randbytes(512))
        sent += 1
    return sent


def _client(address: str, server_key: bytes | None, keys: tuple[bytes, bytes] | None) -> zmq.Socket[bytes]:
    client: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    client.setsockopt(zmq.LINGER, 200)
    client.setsockopt(zmq.SNDTIMEO, 1000)
    if keys is not None:
        client.curve_publickey, client.curve_secretkey = keys
        client.curve_serverkey = server_key
    client.connect(address)
    return client


def _bad(tokens: dict[str, str], rng: random.Random) -> list[list[bytes]]:
    """Messages that must all be refused."""
    jobs = sorted(tokens) or ["1"]
    batch: list[list[bytes]] = []
    for _ in range(40):
        job = rng.choice(jobs)
        real = Report("report", job, 0, rng.randrange(1, 1000), tokens.get(job, "0" * 64), time.time(), "node", steps=1)
        # newer than all before, so that only the token can tell; believed, it would spoil what is known of the job
        forged = dataclasses.replace(
            real,
            token=secrets.token_hex(32),
            seq=time.time_ns() // 1000 + 10**12,
            steps=10**9,
            total_steps=10**9,
            saved_step=10**9,
        )
        data = encode(forged)
        batch += [
            [data],
            [data[: rng.randrange(len(data))]],
            [data, data],
            [rng.randbytes(rng.randrange(1, 300))],
            [os.urandom(70_000)],
            [data.replace(b'"report"', b'"bye"')],
            [data.replace(b'"version":', b'"Version":')],
        ]
        if job in tokens:  # a repetition from long ago: its number has passed
            batch += [[encode(real)], [encode(real)]]
    rng.shuffle(batch)
    return batch
