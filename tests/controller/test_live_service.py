"""The daemon as systemd runs it, on a real Slurm: what it tells, what a SIGHUP changes, what is on record."""

from __future__ import annotations

import json
import re
import signal
import socket
import urllib.request
from pathlib import Path

import pytest

from slurm_hadar.cluster import PrivateCluster

pytestmark = pytest.mark.slurm


class Manager:
    """The service manager's end of the notification socket."""

    def __init__(self, address: Path) -> None:
        self.address, self.heard = str(address), {}
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)
        self._socket.setblocking(False)
        self.count: dict[str, int] = {}

    def fields(self) -> dict[str, str]:
        """The newest value of everything that was ever said."""
        while True:
            try:
                text = self._socket.recv(8192).decode()
            except BlockingIOError:
                return self.heard
            for line in text.splitlines():
                name, _, value = line.partition("=")
                self.heard[name] = value
                self.count[name] = self.count.get(name, 0) + 1

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(short_tmp: Path):
    made = Manager(short_tmp / "notify")
    yield made
    made.close()


def test_a_life_under_systemd(live, manager: Manager, poll) -> None:
    """Ready, watched, reloaded twice (once with a wrong file), and stopped; every write is in the audit log."""
    me, file = live.cluster.user, live.work / "hadar.toml"
    file.write_text(f'[guard]\nexempt_users = ["{me}"]\n')
    job = live.submit("--gres=gpu:1", "--begin=now+600")
    live.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
    poll(lambda: live.state_of(job) == "RUNNING")
    daemon = live.daemon(
        "--config", str(file), settings=("controller.round_s=2", "metrics.listen=127.0.0.1:0", "log.format=json"),
        NOTIFY_SOCKET=manager.address, WATCHDOG_USEC="20000000",
    )  # fmt: skip
    log = live.work / "controller.log"

    poll(lambda: "1 jobs, 0 steered" in manager.fields().get("STATUS", ""), 60)
    assert manager.heard["READY"] == "1" and manager.heard["WATCHDOG"] == "1"

    file.write_text("[guard]\nexempt_user = []\n")
    daemon.send_signal(signal.SIGHUP)
    poll(lambda: "unknown key guard.exempt_user;" in manager.fields().get("STATUS", ""))
    assert manager.heard["RELOADING"] == "1" and int(manager.heard["MONOTONIC_USEC"]) > 0
    file.write_text("")
    daemon.send_signal(signal.SIGHUP)
    poll(lambda: "1 jobs, 1 steered" in manager.fields().get("STATUS", ""))
    assert manager.count["READY"] == 3 and "unknown key" not in manager.heard["STATUS"]

    waiting = live.submit("--gres=gpu:4", "--nodes=6", comment="hadar:model=resnet18,batch=64,steps=1000000")
    audit = live.state / "audit.jsonl"
    poll(lambda: waiting in audit.read_text())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (url,) = [m[0] for line in lines if (m := re.search(r"http://127.0.0.1:\d+/metrics", line["message"]))]
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert 'hadar_config_reloads_total{result="failed"} 1.0' in answer.read().decode()

    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(60) == 0
    assert manager.fields()["STOPPING"] == "1"
    told = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [e["event"] for e in told if e["event"] in ("start", "config", "stop")] == ["start", "config", "config", "stop"]
    assert all({"time", "level", "message"} <= set(line) for line in lines)

    released = live.hadar("release")
    assert released.returncode == 0
    assert [e["by"] for e in map(json.loads, audit.read_text().splitlines()) if e["event"] == "release"]
    live.finish()


def test_beside_a_backup_slurmctld(make_cluster, make_live, monkeypatch: pytest.MonkeyPatch) -> None:
    """With two SlurmctldHost, of which the other is down, this host's controller acts, and the other's would not."""
    cluster: PrivateCluster = make_cluster("v100:1x2", extra_conf=("SlurmctldHost=elsewhere(127.0.0.2)",))
    live = make_live(cluster)
    live.submit("--gres=gpu:2")

    here = live.hadar("run", "--once", "--json")
    assert here.returncode == 0 and json.loads(here.stdout)["mode"] == "act", here.stderr

    elsewhere = [d.host for d in live.backend.daemons()]
    assert elsewhere == [socket.gethostname().split(".")[0], "elsewhere"]
    assert [d.up for d in live.backend.daemons()] == [True, False]
