"""The controller's end of the channel to job agents: a ZeroMQ ROUTER with CURVE, in a thread of its own.

Everybody who has the public key may speak; what is believed is decided by the token of each job (reports.py).
"""

from __future__ import annotations

import logging
import queue
import socket
import struct
import threading
import time
from pathlib import Path

import zmq

from slurm_hadar.controller.agents.channel_file import ChannelFile, replace_file
from slurm_hadar.controller.agents.complaints import Complaints
from slurm_hadar.controller.agents.gate import Connections, Rates, raise_file_limit
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.errors import ChannelError
from slurm_hadar.messages import ChannelInfo, Order, decode_report, encode

__all__ = ["Channel"]

log = logging.getLogger(__name__)
KEY_FILE = "channel.key"
_BACKLOG = 1024  # connections that wait to be accepted, as when all agents come back at once
_WAITING = 8  # messages of one connection that are read ahead: what strangers say shall not fill the memory
_HANDSHAKE_MS = 5000
_HEARTBEAT_MS, _SILENT_MS = 10_000, 30_000
# An agent speaks once a second. From one address come the agents of a whole node: what strangers of it say beyond an
# agent's pace they share among them, and it keeps nobody out who speaks at that pace or is believed.
_PEER_PER_S, _PEER_BURST = 20.0, 60.0
_AGENT_PER_S, _AGENT_BURST = 2.0, 6.0
_ADDRESS_PER_S, _ADDRESS_BURST = 1000.0, 2000.0
_PAUSE_S = 0.02  # after a batch with messages of peers that say too much: they must not take all of a processor
_REVIEW_S = 60.0


class Channel:
    """Listens for reports, answers hellos, sends orders.

    Parameters
    ----------
    book: where reports go.
    state_dir: holds the secret key (0600), made at first use, so that jobs survive a restart of the controller.
    bind: ZeroMQ address; a port of ``*`` takes the port of last time if it is free, else any.
    host: name or address under which compute nodes reach this host.
    file: the channel file that jobs read; replaced atomically.
    quiet: keep the port, but answer nobody and do not tell jobs yet: :meth:`tell_jobs` does.
    shares_file: leave the file to another controller that answers, as it may be that of other users.
    """

    def __init__(
        self,
        book: ReportBook,
        state_dir: Path,
        bind: str,
        host: str,
        file: Path,
        max_bytes: int,
        quiet: bool = False,
        shares_file: bool = False,
    ) -> None:
        self._book = book
        self._orders: queue.SimpleQueue[tuple[bytes, Order]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._waking = threading.Lock()
        self._complaints = Complaints("bad message")
        public, secret = _keys(state_dir / KEY_FILE)
        self._context = zmq.Context()
        self._socket = _router(self._context, max_bytes)
        self._socket.curve_publickey, self._socket.curve_secretkey = public, secret
        self._connections = Connections(raise_file_limit())
        self._peers, self._addresses = Rates(_PEER_PER_S, _PEER_BURST), Rates(_ADDRESS_PER_S, _ADDRESS_BURST)
        self._calm = Rates(_AGENT_PER_S, _AGENT_BURST)
        self._comings = self._socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self.file = file
        #: Whether jobs are to report to another controller: then agents are cut off, as if nobody listened.
        self.quiet = quiet
        self._fault = ""
        try:
            port = _bind(self._socket, bind, state_dir / "channel.port")
            self.info = ChannelInfo(f"tcp://{host or socket.gethostname()}:{port}", public.decode())
            #: What is to be looked after, so that jobs go on finding it.
            self.told = ChannelFile(file, self.info)
            if not quiet and shares_file:
                self.told.claim()
            elif not quiet:
                self.told.write()
        except ChannelError:
            self._context.destroy(linger=0)  # a context that is collected with open sockets waits for them for ever
            raise
        self._wake, self._woken = _pair(self._context)
        self._thread = threading.Thread(target=self._live, name="channel", daemon=True)
        self._thread.start()

    def tell_jobs(self) -> None:
        """Write the channel file, whosever it was: jobs report here from now on. Raises ChannelError if it cannot be
        written."""
        self.told.write()
        self.quiet = False

    def order(self, job_id: str, kind: str, why: str, pause_s: float = 0.0, plan: str = "", **turns: float) -> bool:
        """Send an order to the job's agent; False if it has never been heard on the channel. From any thread."""
        news = self._book.get(job_id)
        if news is None or news.identity is None or not news.live:
            return False
        self._orders.put((news.identity, Order(kind, job_id, why, pause_s, plan, **turns)))
        with self._waking:  # ZeroMQ's sockets may pass from thread to thread, but not be used by two at once
            self._wake.send(b"")
        return True

    def check(self) -> None:
        """Raises ChannelError if nobody listens any more: a controller that hears nothing is better started again."""
        if not self._thread.is_alive() and not self._stop.is_set():
            raise ChannelError(f"the channel's thread has ended ({self._fault or 'nobody knows why'})")

    def close(self) -> None:
        """Stop listening. The channel file stays: agents spool until a controller is back at the same port."""
        self._stop.set()
        with self._waking:
            self._wake.send(b"")
        self._thread.join(timeout=30.0)
        if self._thread.is_alive():
            return  # it still uses the sockets; they end with the process
        self._socket.disable_monitor()
        for one in (self._wake, self._woken, self._comings, self._socket):
            one.close()
        self._context.term()

    def _live(self) -> None:
        try:
            self._serve()
        except Exception as error:  # whatever it is, the loop is to know
            self._fault = repr(error)

    def _serve(self) -> None:
        poller = zmq.Poller()
        for one in (self._socket, self._woken, self._comings):
            poller.register(one, zmq.POLLIN)
        reviewed = time.monotonic()
        while not self._stop.is_set():
            ready = dict(poller.poll(1000))
            if self._woken in ready:
                self._woken.recv()
                self._send_orders()
            if self._comings in ready:
                self._note_comings()
            if self.quiet:  # agents that find nobody here look where the channel file leads
                self._connections.cut_all()
            if self._socket in ready and self._receive():
                self._stop.wait(_PAUSE_S)
            if time.monotonic() - reviewed > _REVIEW_S:
                reviewed = time.monotonic()
                self._connections.review(lambda job: self._book.get(job) is not None)
        self._send_orders()  # who stands still for a move that will not come is told so

    def _note_comings(self) -> None:
        """Note new and ended connections, before messages are read: each of these is known by its connection."""
        cut = self._connections.cut
        while self._comings.poll(0):
            event, descriptor = struct.unpack("=hi", self._comings.recv_multipart()[0])
            if event == zmq.EVENT_ACCEPTED:
                self._connections.accepted(descriptor)
            else:
                self._connections.gone(descriptor)
        self._book.turn_away("connection", self._connections.cut - cut)

    def _receive(self) -> bool:
        """Whether some peer says too much."""
        flooded = False
        for _ in range(256):  # then look after the orders again, however many reports come
            if self._stop.is_set():
                break
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                break
            if not self._may_speak(frames[0]):
                flooded = True
                self._drop("more messages than a peer may send; dropped", "rate")
                continue
            try:
                self._take(frames)
            except ChannelError as error:
                self._drop(str(error))
            except Exception as error:  # one report must not end the channel, whatever it brings about
                self._drop(f"a report could not be taken in: {error!r}")
        return flooded

    def _may_speak(self, frame: zmq.Frame) -> bool:
        now, peer = time.monotonic(), frame.bytes
        return self._peers.allow(peer, now) and (
            self._connections.speaks(frame.get(zmq.SRCFD))
            or self._calm.allow(peer, now)
            or self._addresses.allow(frame.get("Peer-Address"), now)
        )

    def _drop(self, why: str, cause: str = "message") -> None:
        self._book.drop(cause)
        self._complaints.say(why)

    def _take(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 2:
            raise ChannelError(f"message of {len(frames) - 1} parts where one is expected; dropped")
        if self.quiet:  # said before it was cut off
            return
        identity, report = frames[0].bytes, decode_report(frames[1].bytes)
        believed = self._book.ingest(report, identity=identity)
        self._connections.heard(frames[1].get(zmq.SRCFD), report.job, believed)
        if report.kind == "hello":
            self._socket.send_multipart([identity, encode(Order("welcome", report.job))], zmq.NOBLOCK)

    def _send_orders(self) -> None:
        while True:
            try:
                identity, order = self._orders.get_nowait()
            except queue.Empty:
                return
            try:
                self._socket.send_multipart([identity, encode(order)], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                log.warning(
                    "order %s for job %s was not sent: %s", order.kind, order.job, error, extra={"job_id": order.job}
                )


def _keys(path: Path) -> tuple[bytes, bytes]:
    """The controller's key pair, made at first use."""
    try:
        public, secret = path.read_bytes().split()
        if len(public) == 40 and len(secret) == 40:
            return public, secret
        raise ValueError
    except (FileNotFoundError, ValueError):
        public, secret = zmq.curve_keypair()
        replace_file(path, f"{public.decode()}\n{secret.decode()}\n", 0o600)
        return public, secret


def _router(context: zmq.Context[zmq.Socket[bytes]], max_bytes: int) -> zmq.Socket[bytes]:
    """For all agents, authenticated by CURVE, with bounds on what each may keep waiting."""
    router = context.socket(zmq.ROUTER)
    router.setsockopt(zmq.LINGER, 200)
    router.setsockopt(zmq.MAXMSGSIZE, max_bytes)
    router.setsockopt(zmq.ROUTER_HANDOVER, 1)
    router.setsockopt(zmq.BACKLOG, _BACKLOG)
    router.setsockopt(zmq.RCVHWM, _WAITING)
    router.setsockopt(zmq.HANDSHAKE_IVL, _HANDSHAKE_MS)
    router.setsockopt(zmq.HEARTBEAT_IVL, _HEARTBEAT_MS)
    router.setsockopt(zmq.HEARTBEAT_TIMEOUT, _SILENT_MS)
    router.curve_server = True
    return router


def _bind(server: zmq.Socket[bytes], bind: str, memory: Path) -> int:
    """Bind; a free choice of port prefers the one of last time, which running jobs still know."""
    try:
        if bind.endswith(":*"):
            port = _rebind(server, bind, memory)
        else:
            server.bind(bind)
            port = int(bind.rsplit(":", 1)[1])
    except (zmq.ZMQError, ValueError) as error:
        raise ChannelError(f"cannot listen for reports at {bind}: {error}") from None
    return port


def _rebind(server: zmq.Socket[bytes], bind: str, memory: Path) -> int:
    base = bind.removesuffix(":*")
    try:
        last = int(memory.read_text())
        server.bind(f"{base}:{last}")
        return last
    except (OSError, ValueError, zmq.ZMQError):
        port = int(server.bind_to_random_port(base))
        replace_file(memory, str(port), 0o644)
        return port


def _pair(context: zmq.Context[zmq.Socket[bytes]]) -> tuple[zmq.Socket[bytes], zmq.Socket[bytes]]:
    """Two ends inside the process: ZeroMQ sockets may be used by one thread only, so orders wake the serving one."""
    name = f"inproc://wake-{time.monotonic_ns()}"
    one, two = context.socket(zmq.PAIR), context.socket(zmq.PAIR)
    one.bind(name)
    two.connect(name)
    return one, two
