"""The channel: who is heard, and what a message of the wrong kind, or too many of them, can do (nothing)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zmq

from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.controller.agents.channel_file import announce
from slurm_hadar.controller.agents.gate import Connections, Rates
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.errors import ChannelError
from slurm_hadar.messages import MAX_BYTES, ChannelInfo, decode_order, encode, token_fingerprint
from tests.controller.agents.test_reports import TOKEN, made, trusting


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Channel]:
    """A listening channel on loopback."""
    one = Channel(trusting(), tmp_path, "tcp://127.0.0.1:*", "127.0.0.1", tmp_path / "hadar-channel.json", MAX_BYTES)
    yield one
    one.close()


@pytest.fixture
def agent(channel: Channel) -> Iterator[zmq.Socket[bytes]]:
    """A connected client with the channel's public key."""
    info = ChannelInfo.from_json(channel.file.read_text())
    with zmq.Context() as context:
        socket = _client(context, info.address, info.public_key.encode())
        yield socket
        socket.close(linger=0)


def _client(context: zmq.Context[zmq.Socket[bytes]], address: str, server: bytes) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    public, secret = zmq.curve_keypair()
    socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = public, secret, server
    socket.rcvtimeo = 5000
    socket.connect(address)
    return socket


def test_hello_is_welcomed_and_orders_arrive(channel: Channel, agent: zmq.Socket[bytes]) -> None:
    """The agent hears of the controller, and gets its orders."""
    agent.send(encode(made(1, kind="hello", resumable=True)))

    assert decode_order(agent.recv()).kind == "welcome"
    assert channel.order("7", "save", "to v100-1", pause_s=5.0)
    order = decode_order(agent.recv())
    assert (order.kind, order.why, order.pause_s) == ("save", "to v100-1", 5.0)


def test_agents_of_one_that_stands_by_are_cut_off(channel: Channel, agent: zmq.Socket[bytes]) -> None:
    """An agent that was welcomed finds nobody there, and so looks where it is to report; until jobs are to report here
    again."""
    agent.immediate = True
    agent.send(encode(made(1, kind="hello")))
    assert decode_order(agent.recv()).kind == "welcome"
    gone = agent.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    channel.quiet = True
    assert gone.poll(10_000)
    gone.recv_multipart()
    assert gone.poll(10_000)  # nor does one that connects anew stay
    agent.disable_monitor()

    channel.tell_jobs()
    agent.sndtimeo, number = 10_000, 2
    deadline = time.monotonic() + 30
    agent.rcvtimeo = 500
    while True:
        agent.send(encode(made(number, kind="hello")))
        with contextlib.suppress(zmq.Again):
            assert decode_order(agent.recv()).kind == "welcome"
            break
        number += 1
        assert time.monotonic() < deadline


def test_an_unheard_job_cannot_be_ordered(channel: Channel) -> None:
    """The caller learns that the message did not go out."""
    assert not channel.order("99", "save", "")


@pytest.mark.parametrize(
    "bad",
    [b"", b"\xff\xfe", b"[]", b'{"version":2}', json.dumps({"version": 1, "kind": "report"}).encode(),
     b'{"version":1,"kind":"hello","job":"7","restart":0,"seq":-1,"token":"x","time":1,"node":"n"}'],
)  # fmt: skip
@pytest.mark.usefixtures("channel")
def test_bad_messages_do_no_harm(agent: zmq.Socket[bytes], bad: bytes) -> None:
    """Garbage is dropped and the next good message is served."""
    agent.send(bad)
    agent.send_multipart([b"a", b"b"])
    agent.send(encode(made(1, kind="hello")))

    assert decode_order(agent.recv()).kind == "welcome"


def test_an_oversized_message_does_no_harm(channel: Channel, agent: zmq.Socket[bytes]) -> None:
    """Larger than allowed: the connection that sent it is dropped, others are served."""
    agent.send(b"x" * (4 * MAX_BYTES))
    with zmq.Context() as context:
        info = ChannelInfo.from_json(channel.file.read_text())
        other = _client(context, info.address, info.public_key.encode())
        other.send(encode(made(1, kind="hello")))
        assert decode_order(other.recv()).kind == "welcome"
        other.close(linger=0)


def test_a_wrong_server_key_gets_no_word_in(channel: Channel) -> None:
    """Without the controller's public key nothing is received."""
    with zmq.Context() as context:
        stranger = _client(context, channel.info.address, zmq.curve_keypair()[0])
        stranger.rcvtimeo = 300
        stranger.send(encode(made(1, kind="hello")))
        with pytest.raises(zmq.Again):
            stranger.recv()
        stranger.close(linger=0)


def test_key_and_port_stay_over_a_restart(tmp_path: Path) -> None:
    """Jobs that run find the next controller where the last one was."""
    args = (tmp_path, "tcp://127.0.0.1:*", "127.0.0.1", tmp_path / "c.json", MAX_BYTES)
    first = Channel(ReportBook(), *args)
    first.close()

    second = Channel(ReportBook(), *args)
    second.close()

    assert second.info == first.info
    assert (tmp_path / "channel.key").stat().st_mode & 0o077 == 0


def greeted(channel: Channel, seq: int = 1) -> float:
    """Seconds until an agent that comes now is answered."""
    info = ChannelInfo.from_json(channel.file.read_text())
    with zmq.Context() as context:
        socket = _client(context, info.address, info.public_key.encode())
        began = time.monotonic()
        socket.send(encode(made(seq, kind="hello")))
        assert decode_order(socket.recv()).kind == "welcome"
        socket.close(linger=0)
        return time.monotonic() - began


def _idle(channel: Channel, count: int) -> list[socket.socket]:
    """Connections that say nothing."""
    host, _, port = channel.info.address.removeprefix("tcp://").rpartition(":")
    return [socket.create_connection((host, int(port)), timeout=10) for _ in range(count)]


def test_idle_connections_keep_nobody_out(channel: Channel, agent: zmq.Socket[bytes]) -> None:
    """The oldest are cut; an agent that comes after them is answered, and one that was heard keeps its own."""
    agent.send(encode(made(1, kind="hello")))
    assert decode_order(agent.recv()).kind == "welcome"
    idle = _idle(channel, 1500)
    try:
        assert greeted(channel, 2) < 2.0
        agent.send(encode(made(3, kind="hello")))
        assert decode_order(agent.recv()).kind == "welcome"
        assert channel._book.turned_away["connection"] >= 400 and len(channel._connections) <= 1100  # noqa: SLF001 what it keeps of strangers shows nowhere
    finally:
        for one in idle:
            one.close()


_FEW_FILES = """
import resource, sys, time
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
sys.path.insert(0, {root!r})
from pathlib import Path
from slurm_hadar.controller.agents.channel import Channel
from slurm_hadar.controller.agents.reports import ReportBook
book = ReportBook()
book.expect({{"7": {key!r}}})
channel = Channel(book, Path({folder!r}), "tcp://127.0.0.1:*", "127.0.0.1", Path({folder!r}) / "c.json", 65536)
print(flush=True)
for line in sys.stdin:
    files, until = [], time.monotonic() + 30
    while len(files) < 32 and time.monotonic() < until:
        try:
            files.append(open("/dev/null"))
        except OSError:  # the channel's thread is still at it
            time.sleep(0.05)
    channel.check()
    print(len(files), flush=True)
"""


def test_files_are_left_for_the_controller_itself(tmp_path: Path) -> None:
    """Where a process may open few files, most connections are cut."""
    script = _FEW_FILES.format(
        root=str(Path(__file__).resolve().parents[3]), folder=str(tmp_path), key=token_fingerprint(TOKEN)
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdout.readline()
        info = ChannelInfo.from_json((tmp_path / "c.json").read_text())
        host, _, port = info.address.removeprefix("tcp://").rpartition(":")
        with contextlib.ExitStack() as stack:
            for _ in range(600):
                with contextlib.suppress(OSError):
                    stack.enter_context(socket.create_connection((host, int(port)), timeout=5))
            print(file=process.stdin, flush=True)
            assert process.stdout.readline() == "32\n"
        process.stdin.close()


def test_a_flood_of_one_peer_does_not_drown_others(channel: Channel, agent: zmq.Socket[bytes]) -> None:
    """What is beyond a peer's rate is dropped unread; an honest agent is answered as fast as ever."""
    over, sent = threading.Event(), [0]
    info = ChannelInfo.from_json(channel.file.read_text())

    def flood() -> None:
        with zmq.Context() as context:
            loud = _client(context, info.address, info.public_key.encode())
            loud.sndtimeo, message = 100, encode(made(1, job="8", node="n" * 255))
            while not over.is_set():
                with contextlib.suppress(zmq.Again):
                    loud.send(message)
                    sent[0] += 1
            loud.close(linger=0)

    floods = [threading.Thread(target=flood) for _ in range(3)]
    for one in floods:
        one.start()
    try:
        time.sleep(1.0)
        book, spent = channel._book, []  # noqa: SLF001 what it keeps of strangers shows nowhere
        for seq in range(1, 11):
            began = time.monotonic()
            agent.send(encode(made(seq, kind="hello")))
            assert decode_order(agent.recv()).kind == "welcome"
            spent.append(time.monotonic() - began)
            time.sleep(0.1)
    finally:
        over.set()
        for one in floods:
            one.join()
    assert max(spent) < 1.0 and book.dropped > 1000 > book.accepted


def test_many_strangers_of_an_address_silence_no_agent_of_it(channel: Channel, agent: zmq.Socket[bytes]) -> None:
    """Neither one whose job no round has seen yet nor one that is believed."""
    over = threading.Event()
    info = ChannelInfo.from_json(channel.file.read_text())

    def flood() -> None:
        with zmq.Context() as context:
            loud = [_client(context, info.address, info.public_key.encode()) for _ in range(300)]
            while not over.wait(0.05):
                for one in loud:
                    with contextlib.suppress(zmq.Again):
                        one.send(b'{"x":1}', zmq.NOBLOCK)
            for one in loud:
                one.close(linger=0)

    strangers = threading.Thread(target=flood)
    strangers.start()
    book = channel._book  # noqa: SLF001 what it keeps of strangers shows nowhere
    try:
        until = time.monotonic() + 60.0
        while not book.turned_away["rate"]:  # what the address may say is used up
            assert time.monotonic() < until
            time.sleep(0.1)
        for seq in range(1, 6):
            agent.send(encode(made(seq, job="99", kind="hello")))
            assert decode_order(agent.recv()).kind == "welcome"
            time.sleep(0.5)
        for seq in range(1, 31):  # believed, so as fast as a peer may speak
            agent.send(encode(made(seq, kind="hello")))
            assert decode_order(agent.recv()).kind == "welcome"
    finally:
        over.set()
        strangers.join()


def test_a_listener_that_fails_does_not_end_the_channel(channel: Channel, agent: zmq.Socket[bytes]) -> None:
    """The report is dropped and the next one served."""
    channel._book.listener = lambda report: 10 ** (400 * report.seq) / 1.5  # noqa: SLF001 what it keeps of strangers shows nowhere
    agent.send(encode(made(1, kind="hello")))
    channel._book.listener = None  # noqa: SLF001 what it keeps of strangers shows nowhere
    agent.send(encode(made(2, kind="hello")))

    assert decode_order(agent.recv()).kind == "welcome"
    channel.check()


def test_a_thread_that_dies_is_noticed(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever asks: the loop does between rounds."""
    monkeypatch.setattr(channel, "_receive", lambda: 1 / 0)
    info = ChannelInfo.from_json(channel.file.read_text())
    with zmq.Context() as context:
        one = _client(context, info.address, info.public_key.encode())
        one.send(encode(made(1)))
        channel._thread.join(5.0)  # noqa: SLF001 what it keeps of strangers shows nowhere
        one.close(linger=0)

    with pytest.raises(ChannelError, match=r"the channel's thread has ended \(ZeroDivisionError"):
        channel.check()


def test_rates() -> None:
    """A burst, then as much as time allows; each peer for itself, and only so many are remembered."""
    rates = Rates(2.0, 3.0)
    assert [rates.allow("a", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert rates.allow("b", 0.0)
    assert [rates.allow("a", 1.0) for _ in range(3)] == [True, True, False]
    assert [rates.allow("a", 100.0) for _ in range(4)] == [True, True, True, False]
    for n in range(10_000):
        rates.allow(n, 100.0)
    assert len(rates._left) <= 4096  # noqa: SLF001 what it keeps of strangers shows nowhere


def test_one_connection_speaks_for_a_job() -> None:
    """Another one for the same job makes the first a stranger, which is cut before who speaks for a job."""
    pairs = [socket.socketpair() for _ in range(6)]
    numbers = [a.fileno() for a, _ in pairs]
    gate = Connections(files=16)  # 4 strangers
    for number in numbers[:3]:
        gate.accepted(number)
    gate.heard(numbers[0], "7", True)
    gate.heard(numbers[1], "7", True)
    gate.heard(numbers[0], "7", False)
    assert gate._speakers.keys() == {numbers[1]} and list(gate._strangers) == [numbers[2], numbers[0]]  # noqa: SLF001 what it keeps of strangers shows nowhere

    gate.review(lambda _job: False)
    assert not gate._speakers and len(gate) == 3  # noqa: SLF001 what it keeps of strangers shows nowhere
    gate.gone(numbers[2])
    for number in numbers[2:]:
        gate.accepted(number)
    assert gate.cut == 2 and len(gate) == 4
    for a, b in pairs:
        a.close()
        b.close()


def test_what_became_another_file_is_not_cut() -> None:
    """A descriptor that was closed may stand for anything."""
    gate = Connections(files=4)  # 1 stranger
    server = socket.create_server(("127.0.0.1", 0))
    first, second = (socket.create_connection(server.getsockname()) for _ in range(2))
    here, there = server.accept()[0], server.accept()[0]
    gate.accepted(here.fileno())
    os.dup2(there.fileno(), here.fileno())

    another = os.dup(there.fileno())
    gate.accepted(another)

    assert gate.cut == 0
    second.send(b"x")
    assert there.recv(1) == b"x"
    os.close(another)
    for one in (server, first, second, here, there):
        one.close()


@pytest.fixture
def made_in(tmp_path: Path) -> Callable[[str], contextlib.closing[Channel]]:
    """Makes channels with one file, of controllers with other memories: ``with made_in("a") as channel``."""

    def make(name: str) -> contextlib.closing[Channel]:
        (tmp_path / name).mkdir(exist_ok=True)
        file = tmp_path / "hadar-channel.json"
        args = (tmp_path / name, "tcp://127.0.0.1:*", "127.0.0.1", file, MAX_BYTES)
        one = Channel(ReportBook(), *args, shares_file=name != "all")
        return contextlib.closing(one)

    return make


def told_by(channel: Channel) -> ChannelInfo:
    return ChannelInfo.from_json(channel.file.read_text())


@pytest.mark.parametrize(
    ("done", "said"),
    [
        (lambda file: file.unlink(), "was removed"),
        (lambda file: file.write_text("{"), "cannot be read"),
        (lambda file: announce(file, ChannelInfo("", "")), "named no controller"),
        (lambda file: announce(file, ChannelInfo("tcp://127.0.0.1:1", "x" * 40)), "where no other controller answers"),
    ],
)
def test_a_file_that_was_changed_is_written_again(
    channel: Channel, caplog: pytest.LogCaptureFixture, done: Callable[[Path], None], said: str
) -> None:
    """Jobs that start afterwards find the controller; the log has one line."""
    channel.told.look_after()
    assert not caplog.records
    done(channel.file)

    for _ in range(3):
        channel.told.look_after()

    assert told_by(channel) == channel.info
    (line,) = [r for r in caplog.records if r.levelname == "WARNING"]
    assert said in line.getMessage() and "written again" in line.getMessage()


def test_a_file_that_cannot_be_written_is_told_once(channel: Channel, caplog: pytest.LogCaptureFixture) -> None:
    """Rounds go on, and it is written as soon as it can be."""
    channel.file.unlink()
    channel.file.mkdir()
    for _ in range(3):
        channel.told.look_after()
    assert len(caplog.records) == 1 and "cannot write" in caplog.text

    channel.file.rmdir()
    channel.told.look_after()
    assert told_by(channel) == channel.info


def test_one_of_other_users_is_left_its_file(
    made_in: Callable[[str], contextlib.closing[Channel]], caplog: pytest.LogCaptureFixture
) -> None:
    """Who comes second says so, once, and takes the file when the first has ended; and so does the first then."""
    with contextlib.ExitStack() as stack:
        with made_in("a") as first:
            second = stack.enter_context(made_in("b"))
            for _ in range(3):
                first.told.look_after()
                second.told.look_after()
            assert told_by(first) == first.info
            assert [r.getMessage().count(first.info.address) for r in caplog.records] == [1]

        second.told.look_after()
        with made_in("a") as again:  # comes back to the same key and port
            again.told.look_after()
            assert told_by(second) == second.info
            stack.close()
            again.told.look_after()
            assert told_by(again) == again.info


def test_a_controller_with_the_same_memory_is_the_one_before(
    made_in: Callable[[str], contextlib.closing[Channel]],
) -> None:
    """It is no other, also where it still answers."""
    with made_in("a"), made_in("a") as second:
        assert told_by(second) == second.info


def test_who_takes_over_or_shares_with_nobody_does_not_ask(
    made_in: Callable[[str], contextlib.closing[Channel]],
) -> None:
    """Those that stand by answer as well."""
    with made_in("a") as first, made_in("b") as second:
        assert told_by(first) == first.info
        second.tell_jobs()
        assert told_by(second) == second.info
        with made_in("all") as third:
            assert told_by(third) == third.info


def test_a_channel_file_that_cannot_be_written_leaves_nothing_beside_it(tmp_path: Path) -> None:
    """It is tried again each round."""
    (tmp_path / "hadar-channel.json").mkdir()
    with pytest.raises(ChannelError, match="cannot write"):
        announce(tmp_path / "hadar-channel.json", ChannelInfo("", ""))

    assert [path.name for path in tmp_path.iterdir()] == ["hadar-channel.json"]
