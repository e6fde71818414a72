"""Signals that no wait in the kernel is ended by, as one that comes a moment before it: here another thread's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.sharing.broker.client import Session
from tests.sharing.broker.conftest import WORK

HADAR = """
import signal, sys, threading, time
from pathlib import Path
from slurm_hadar.cli.main import main

def tell():
    while not Path(sys.argv[1]).exists():
        time.sleep(0.01)
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=tell, daemon=True).start()
main(sys.argv[2:])
"""
JOB = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(41))
open(sys.argv[1], "w").close()
time.sleep(600)
"""


@pytest.fixture
def hadar(short_tmp: Path) -> Any:
    """The command of these words; one of its threads is signalled once there is a file ``now``."""
    started = []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HADAR, str(short_tmp / "now"), *words]
        env = os.environ | {"TMPDIR": str(short_tmp)}
        started.append(subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True))
        return started[-1]

    yield start
    for one in started:
        one.kill()
        one.communicate()


def test_a_broker_ends_by_it(hadar: Any, short_tmp: Path, poll: Any) -> None:
    path = short_tmp / "s"
    broker = hadar("share", "broker", "--socket", str(path), "--policy", "fair", "--memory", "1000")
    poll(path.exists, deadline_s=120.0)
    session = Session(path, WORK, return_s=30.0)
    with session.iteration():  # nothing else happens
        (short_tmp / "now").touch()
        assert broker.wait(300) == 0
    session.close()
    assert not path.exists()


def test_it_is_passed_on_to_those_who_share(hadar: Any, short_tmp: Path, poll: Any) -> None:
    (short_tmp / "job.py").write_text(JOB)
    run = hadar("share", "run", f"{sys.executable} {short_tmp}/job.py {short_tmp}/up")
    poll((short_tmp / "up").exists, deadline_s=120.0)
    (short_tmp / "now").touch()

    assert run.wait(300) == 41
