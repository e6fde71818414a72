"""The daemon as systemd runs it, on a real Slurm: what it tells, what a SIGHUP changes, what is on record."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.cluster import PrivateCluster

pytestmark = pytest.mark.slurm


class Manager:
    """The service manager's end of the notification socket."""

    def __init__(self, address: Path) -> None:
        self.address = str(address)
        self.heard: dict[str, str] = {}
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
def manager(short_tmp: Path) -> Iterator[Any]:
    made = Manager(short_tmp / "notify")
    yield made
    made.close()


def test_a_life_under_systemd(live: Any, manager: Manager, poll: Callable[..., Any]) -> None:
    """Ready, watched, reloaded twice (once with a wrong file), and stopped; every write is in the audit log."""
    me, file = live.cluster.user, live.work / "hadar.toml"
    file.write_text(f'[guard]\nexempt_users = ["{me}"]\n')
    job = live.submit("--gres=gpu:1", "--begin=now+600")
    live.cluster.run(["scontrol", "update", f"JobId={job}", "StartTime=now"])
    poll(lambda: live.state_of(job) == "RUNNING")
    daemon = live.daemon(
        "--config",
        str(file),
        settings=("controller.round_s=2", "metrics.listen=127.0.0.1:0", "log.format=json"),
        NOTIFY_SOCKET=manager.address,
        WATCHDOG_USEC="20000000",
    )
    log = live.work / "controller.log"

    poll(lambda: "1 job, 0 steered" in manager.fields().get("STATUS", ""), 60)
    assert manager.heard["READY"] == "1" and manager.heard["WATCHDOG"] == "1"

    file.write_text("[guard]\nexempt_user = []\n")
    daemon.send_signal(signal.SIGHUP)
    poll(lambda: "unknown key guard.exempt_user;" in manager.fields().get("STATUS", ""))
    assert manager.heard["RELOADING"] == "1" and int(manager.heard["MONOTONIC_USEC"]) > 0
    file.write_text("")
    daemon.send_signal(signal.SIGHUP)
    poll(lambda: "1 job, 1 steered" in manager.fields().get("STATUS", ""))
    assert manager.count["READY"] == 3 and "unknown key" not in manager.heard["STATUS"]

    waiting = live.submit("--gres=gpu:4", "--nodes=6", comment="hadar:model=resnet18,batch=64,steps=1000000,types=v100")
    audit = live.state / "audit.jsonl"
    poll(lambda: f'"jobs":{{"{waiting}":' in audit.read_text())
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    (url,) = [m[0] for line in lines if (m := re.search(r"http://127.0.0.1:\d+/metrics", line["message"]))]
    with urllib.request.urlopen(url, timeout=300) as answer:
        assert 'hadar_config_reloads_total{result="failed"} 1.0' in answer.read().decode()

    daemon.send_signal(signal.SIGTERM)
    assert daemon.wait(300) == 0
    assert manager.fields()["STOPPING"] == "1"
    told = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [e["event"] for e in told if e["event"] in ("start", "config", "stop")] == [
        "start",
        "config",
        "config",
        "stop",
    ]
    assert all({"time", "level", "message"} <= set(line) for line in lines)

    released = live.hadar("release")
    assert released.returncode == 0
    assert [e for e in map(json.loads, audit.read_text().splitlines()) if e["event"] == "release"]
    live.finish()


def _may_unshare() -> bool:
    """Whether this process may have a host name and an /etc/hosts of its own."""
    done = subprocess.run(["unshare", "--uts", "--mount", "hostname", "spare"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(not _may_unshare(), reason="two hosts on one machine need namespaces, which need root")
def test_the_controller_follows_slurmctld_to_the_backup(
    make_cluster: Callable[..., PrivateCluster], make_live: Any, short_tmp: Path, poll: Callable[..., Any]
) -> None:
    """Two slurmctld, the second under a host name of its own. While the first acts, the second host's controller only
    observes; when the first is killed it takes over, without the other's journal, and decides what
    comes next."""
    extra = ("SlurmctldHost=spare(127.0.0.2)", "SlurmctldTimeout=3")
    live = make_live(make_cluster("v100:1x2", extra_conf=extra))
    cluster, hosts, conf = live.cluster, short_tmp / "hosts", live.cluster.conf.with_name("spare.conf")
    hosts.write_text(f"127.0.0.1 localhost {socket.gethostname()}\n127.0.0.2 spare\n")
    text = cluster.conf.read_text()
    conf.write_text(text.replace("run/slurmctld.pid", "run/spare.pid").replace("log/slurmctld.log", "log/spare.log"))
    namespaces = ["unshare", "--uts", "--mount", "sh", "-c",
                  f'mount --bind {hosts} /etc/hosts && hostname spare && exec "$@"', "sh"]  # fmt: skip

    def there(*arguments: str) -> dict[str, Any]:
        argv = live.argv(("run", "--once", "--json", *arguments), (f"controller.state_dir={short_tmp}/spare",))
        done = subprocess.run(
            [*namespaces, *argv],
            env=live.environment({}),
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.stdout, done.stderr
        return json.loads(done.stdout)

    spare = subprocess.Popen(
        [*namespaces, "slurmctld", "-D", "-f", str(conf)],
        env=cluster.env,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        poll(lambda: [d.up for d in live.backend.daemons()] == [True, True])
        job = live.submit("--gres=gpu:2", script="sleep 1\n")
        standby = there()
        assert standby["mode"] == "observe" and standby["writes"] == 0
        assert standby["note"].startswith("standby: slurmctld acts on ") and standby["note"].endswith(
            "this host is backup"
        )
        assert json.loads(live.hadar("run", "--once", "--json").stdout)["mode"] == "act"
        poll(lambda: live.state_of(job) == "COMPLETED")
        # what comes finds no GPU, else Slurm might start it before any controller does
        busy = live.submit("--gres=gpu:2")
        poll(lambda: live.state_of(busy) == "RUNNING")
        # written down, else the second slurmctld starts it once more, and drains the node for that
        saved, running = cluster.conf.parents[1] / "state" / "job_state", time.time()
        cluster.run(["scontrol", "update", f"JobId={busy}", "JobName=known"])  # brings it about
        poll(lambda: saved.stat().st_mtime > running, 60)

        cluster.kill_slurmctld()
        poll(lambda: cluster.run(["squeue"], check=False).returncode == 0, 60)
        waiting = live.submit("--gres=gpu:2")
        poll(lambda: (found := there()) and found["mode"] == "act" and not found["note"], 120, every_s=3)
        audit = short_tmp / "spare" / "audit.jsonl"
        poll(lambda: there()["mode"] == "act" and f'"{waiting}"' in audit.read_text(), 120, every_s=3)
    finally:
        spare.terminate()
        spare.wait(300)
