"""Reports: who is believed, and what a message of the wrong kind can do (nothing)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from slurm_hadar.controller.channel import Channel
from slurm_hadar.controller.reports import ReportBook
from slurm_hadar.errors import ChannelError
from slurm_hadar.messages import MAX_BYTES, ChannelInfo, Report, decode_order, encode, token_fingerprint

TOKEN = "ab" * 32


def made(seq: int = 1, **fields) -> Report:
    """A report of job 7."""
    base = {"kind": "report", "job": "7", "restart": 0, "seq": seq, "token": TOKEN, "time": 1.0, "node": "n1"}
    return Report(**{**base, **fields})


def trusting() -> ReportBook:
    """A book that knows job 7, whose comment names :data:`TOKEN`."""
    book = ReportBook()
    book.expect({"7": token_fingerprint(TOKEN)})
    return book


def test_the_token_must_match_the_comment() -> None:
    """The fingerprint in the job's comment decides who speaks for the job."""
    book = ReportBook()
    book.expect({"7": token_fingerprint("cd" * 32)})

    with pytest.raises(ChannelError, match="wrong token"):
        book.ingest(made())

    assert book.get("7") is None and book.refused == 1


def test_nobody_is_believed_before_the_comment_vouches_for_them() -> None:
    """Anybody can report for a job that does not report by itself: it cannot be made to look as if it could save."""
    book, told = ReportBook(), []
    book.listener = told.append
    book.expect({"7": None})
    book.ingest(made(1, resumable=True, steps=10**9))

    assert book.get("7") is None and not book.saved_since("7", 0, 0.0) and not told

    book.expect({"7": token_fingerprint(TOKEN)})
    assert book.get("7").report.steps == 10**9, "hadar-srun has named this very token meanwhile"


def test_who_came_first_is_forgotten_when_the_comment_names_another() -> None:
    """A stranger may be faster than the job's own agent, and gains nothing."""
    book = ReportBook()
    book.expect({"7": None})
    book.ingest(made(2**60, token="cd" * 32, steps=10**9))
    with pytest.raises(ChannelError, match="another token"):
        book.ingest(made(1, steps=5))

    book.expect({"7": token_fingerprint(TOKEN)})
    assert book.get("7") is None
    book.ingest(made(2, steps=6))

    assert book.get("7").report.steps == 6


def test_replays_and_dead_incarnations_are_dropped() -> None:
    """A message that came before, or from a run that is over, changes nothing."""
    book = trusting()
    book.ingest(made(5, restart=1, steps=50))

    for old in (made(5, restart=1, steps=1), made(4, restart=1, steps=1), made(9, restart=0, steps=1)):
        with pytest.raises(ChannelError):
            book.ingest(old)

    assert book.get("7").report.steps == 50


def test_a_save_counts_from_when_it_was_asked() -> None:
    """Only a checkpoint heard of after the request, from this run, acknowledges it."""
    book = trusting()
    book.ingest(made(1, kind="saved", saved_step=10))
    asked = time.time()

    assert not book.saved_since("7", 0, asked)
    book.ingest(made(2, kind="saved", saved_step=20))
    assert book.saved_since("7", 0, asked) and not book.saved_since("7", 1, asked)


def test_events_bring_the_round_forward() -> None:
    """A first word and an end are events; progress is not."""
    book = trusting()
    book.ingest(made(1, kind="hello"))
    assert book.event.is_set()
    book.event.clear()
    book.ingest(made(2, steps=1))
    assert not book.event.is_set()
    book.ingest(made(3, kind="bye", exit_code=0))
    assert book.event.is_set() and book.get("7").ended


@pytest.fixture
def channel(tmp_path: Path) -> Iterator[Channel]:
    """A listening channel on loopback."""
    one = Channel(trusting(), tmp_path, "tcp://127.0.0.1:*", "127.0.0.1", tmp_path / "hadar-channel.json", MAX_BYTES)
    yield one
    one.close()


@pytest.fixture
def agent(channel: Channel) -> Iterator[zmq.Socket]:
    """A connected client with the channel's public key."""
    info = ChannelInfo.from_json(channel.file.read_text())
    with zmq.Context() as context:
        socket = _client(context, info.address, info.public_key.encode())
        yield socket
        socket.close(linger=0)


def _client(context: zmq.Context, address: str, server: bytes) -> zmq.Socket:
    socket = context.socket(zmq.DEALER)
    public, secret = zmq.curve_keypair()
    socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = public, secret, server
    socket.rcvtimeo = 5000
    socket.connect(address)
    return socket


def test_hello_is_welcomed_and_orders_arrive(channel: Channel, agent: zmq.Socket) -> None:
    """The agent hears of the controller, and gets its orders."""
    agent.send(encode(made(1, kind="hello", resumable=True)))

    assert decode_order(agent.recv()).kind == "welcome"
    assert channel.order("7", "save", "to v100-1", pause_s=5.0)
    order = decode_order(agent.recv())
    assert (order.kind, order.why, order.pause_s) == ("save", "to v100-1", 5.0)


def test_an_unheard_job_cannot_be_ordered(channel: Channel) -> None:
    """The caller learns that the message did not go out."""
    assert not channel.order("99", "save", "")


@pytest.mark.parametrize(
    "bad",
    [b"", b"\xff\xfe", b"[]", b'{"version":2}', json.dumps({"version": 1, "kind": "report"}).encode(),
     b'{"version":1,"kind":"hello","job":"7","restart":0,"seq":-1,"token":"x","time":1,"node":"n"}'],
)  # fmt: skip
def test_bad_messages_do_no_harm(channel: Channel, agent: zmq.Socket, bad: bytes) -> None:
    """Garbage is dropped and the next good message is served."""
    agent.send(bad)
    agent.send_multipart([b"a", b"b"])
    agent.send(encode(made(1, kind="hello")))

    assert decode_order(agent.recv()).kind == "welcome"


def test_an_oversized_message_does_no_harm(channel: Channel, agent: zmq.Socket) -> None:
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
