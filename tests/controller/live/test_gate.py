"""What a stranger on the network can do to a controller of a real Slurm: nothing."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import zmq

from slurm_hadar.messages import ChannelInfo, Report, decode_order, encode

pytestmark = pytest.mark.slurm
DEADLINE_S = 60


def test_idle_connections_stop_neither_rounds_nor_reports(live: Any, poll: Any) -> None:
    """1,500 of them: rounds go on, and an agent that comes after them is heard."""
    file = live.cluster.conf.with_name("hadar-channel.json")
    file.unlink(missing_ok=True)
    live.daemon(settings=("controller.round_s=1",))
    poll(file.exists, deadline_s=DEADLINE_S)
    info = ChannelInfo.from_json(file.read_text())
    host, _, port = info.address.removeprefix("tcp://").rpartition(":")
    idle = [socket.create_connection((host, int(port)), timeout=10) for _ in range(1500)]
    before = _rounds(live.work)

    poll(lambda: _rounds(live.work) >= before + 3, deadline_s=DEADLINE_S)
    with zmq.Context() as context:
        agent = context.socket(zmq.DEALER)
        agent.curve_publickey, agent.curve_secretkey = zmq.curve_keypair()
        agent.curve_serverkey, agent.rcvtimeo = info.public_key.encode(), 5000
        agent.connect(info.address)
        agent.send(encode(Report("hello", "999999", 0, 1, "ab" * 32, 1.0, "n1")))
        assert decode_order(agent.recv()).kind == "welcome"
        agent.close(linger=0)
    assert "skipped" not in (live.work / "controller.log").read_text()
    for one in idle:
        one.close()


def _rounds(work: Path) -> int:
    return (work / "controller.log").read_text().count(" jobs, ")
