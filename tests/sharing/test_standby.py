"""The broker that jobs with shards of a GPU keep up between them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.errors import ConfigError
from slurm_hadar.sharing import standby
from slurm_hadar.sharing.broker.client import Session, Work
from slurm_hadar.sharing.broker.queries import status_of
from slurm_hadar.sharing.broker.settings import Limits
from slurm_hadar.sharing.broker.wire import credentials
from slurm_hadar.sharing.lanes import Demand
from slurm_hadar.sharing.standby import Post, post_of, stand_by
from slurm_hadar.sharing.turns import Policy

ROOT = Path(__file__).resolve().parents[2]
WORK = Work(Demand(0, 0))


@pytest.fixture
def task(short_tmp: Path) -> dict[str, str]:
    """The environment of a step that has shards."""
    return {
        "SLURM_SHARDS_ON_NODE": "1", "SLURM_STEP_GPUS": "3", "SLURM_JOB_GPUS": "0", "CUDA_VISIBLE_DEVICES": "0",
        "SLURM_CLUSTER_NAME": "c", "SLURMD_NODENAME": "n/1", "HADAR_SHARE_DIR": str(short_tmp / "share"),
    }  # fmt: skip


def test_a_gpu_has_one_place_for_all_its_jobs_by_its_physical_number(task: dict[str, str], short_tmp: Path) -> None:
    post = post_of(task | {"HADAR_SHARE_POLICY": "srtf", "HADAR_SHARE_MEMORY": "16G", "HADAR_SHARE_KILL_AFTER": "9"})

    assert post.path == short_tmp / "share" / "c-n_1-gpu3"
    assert post.rules is not None and post.limits.kill_s == 9
    assert (post.rules.policy, post.rules.memory_bytes) == (Policy.SRTF, 16 * 10**9)
    assert (short_tmp / "share").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"SLURM_STEP_GPUS": "0,1"}, "has shards of the GPUs 0,1, and takes turns on one only"),
        ({"SLURM_STEP_GPUS": "", "SLURM_JOB_GPUS": "", "CUDA_VISIBLE_DEVICES": ""}, r"of the GPUs \(none\)"),
        ({"HADAR_SHARE_POLICY": "best"}, "HADAR_SHARE_POLICY must be one of fifo, .*'best'"),
        ({"HADAR_SHARE_KILL_AFTER": "soon"}, "HADAR_SHARE_KILL_AFTER must be a number of seconds"),
        ({"HADAR_SHARE_MEMORY": "much"}, "'much' is no size"),
        ({"SLURMD_NODENAME": "n" * 100}, "too long for a socket's path: set HADAR_SHARE_DIR"),
        ({"HADAR_SHARE_DIR": "/proc/none"}, "/proc/none cannot be made"),
    ],
)
def test_what_does_not_do_is_said(task: dict[str, str], changes: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        post_of(task | changes)


@pytest.mark.parametrize("wrong", ["open", "link", "file"])
def test_a_folder_that_others_could_write_is_not_used(task: dict[str, str], short_tmp: Path, wrong: str) -> None:
    folder = short_tmp / "share"
    if wrong == "open":
        folder.mkdir()
        folder.chmod(0o770)
    elif wrong == "link":
        (short_tmp / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(short_tmp / "elsewhere")
    else:
        folder.touch()
    with pytest.raises(ConfigError, match=r"is not a folder of this user alone|cannot be made"):
        post_of(task)


def test_an_administrators_broker_goes_before(
    task: dict[str, str], short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "COMMON", short_tmp / "run")
    (short_tmp / "run").mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(str(short_tmp / "run" / "c-n_1-gpu3"))

        assert post_of(task) == Post(short_tmp / "run" / "c-n_1-gpu3", None, Limits())


def test_an_administrators_broker_that_was_killed_is_none(
    task: dict[str, str],
    short_tmp: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    poll: Any,
) -> None:
    """Its socket and its lock are still there, and nobody answers."""
    monkeypatch.setattr(standby, "COMMON", short_tmp / "run")
    monkeypatch.setattr(standby, "STILL_S", 1.0)
    (short_tmp / "run").mkdir()
    common = short_tmp / "run" / "c-n_1-gpu3"
    with subprocess.Popen([sys.executable, "-c", KEEPER, str(common)], stdin=subprocess.PIPE) as killed:
        poll(common.is_socket)
        assert post_of(task).path == common
        killed.kill()
    assert post_of(task).path == short_tmp / "share" / "c-n_1-gpu3"
    assert "was killed: this user's jobs take turns by one of their own" in capfd.readouterr().err


def test_who_stands_by_serves_when_the_first_has_gone(task: dict[str, str], poll: Any) -> None:
    post, pipes, threads = post_of(task), [os.pipe(), os.pipe()], []
    for read_end, _ in pipes:
        threads.append(threading.Thread(target=stand_by, args=(post, read_end, print)))
        threads[-1].start()
    poll(post.path.is_socket)
    session = Session(post.path, WORK)
    with session.iteration():
        pass

    for number, (_, write_end) in enumerate(pipes):
        os.close(write_end)
        if not number:
            poll(lambda: sum(thread.is_alive() for thread in threads) == 1)
            poll(lambda: _turn(session))
            assert not session.alone
    for thread in threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in threads) and not post.path.exists()
    session.close()
    for read_end, _ in pipes:
        os.close(read_end)


KEEPER = """
import os, sys
from pathlib import Path
from slurm_hadar.sharing.broker.settings import Limits, Rules
from slurm_hadar.sharing.standby import Post, stand_by
from slurm_hadar.sharing.turns import Policy
stand_by(Post(Path(sys.argv[1]), Rules(Policy.FAIR, 1000), Limits(linger_s=None)), 0, print)
"""


def test_a_broker_that_stands_still_is_deposed(task: dict[str, str], poll: Any) -> None:
    """Slurm has suspended its job. Who waits for a turn, and who keeps one, goes on with the next one, and so does the
    first when its job does: it takes nothing from the next."""
    post, (read_end, write_end) = post_of(task), os.pipe()
    with subprocess.Popen([sys.executable, "-c", KEEPER, str(post.path)], stdin=subprocess.PIPE) as first:
        try:
            poll(post.path.is_socket)
            keeps, waits = Session(post.path, WORK), Session(post.path, WORK)
            assert _turn(keeps)  # and nobody else wants it
            said: list[str] = []
            stands_by = threading.Thread(target=stand_by, args=(post, read_end, said.append))
            stands_by.start()
            first.send_signal(signal.SIGSTOP)
            turn = threading.Thread(target=_turn, args=(waits,))
            turn.start()
            turn.join(30)
            assert not turn.is_alive() and not waits.alone
            poll(lambda: _turn(keeps) and len(status_of(post.path)["sessions"]) == 2)
            assert any("stands still" in line for line in said)
            first.send_signal(signal.SIGCONT)
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(post.path))
                assert credentials(sock)[0] == os.getpid()
            first.stdin.close()
            assert first.wait(300) == 0 and post.path.is_socket() and _turn(waits)
        finally:
            first.send_signal(signal.SIGCONT)
            first.kill()
            os.close(write_end)
        stands_by.join(20)
        assert not stands_by.is_alive() and not post.path.exists()
        for session in (keeps, waits):
            session.close()
        os.close(read_end)


def _turn(session: Session) -> bool:
    with session.iteration():
        return True


JOB = """
import sys, time
from slurm_hadar import sharing
until = time.monotonic() + float(sys.argv[1])
while time.monotonic() < until:
    with sharing.iteration():
        time.sleep(0.002)
"""


def test_an_agent_keeps_a_broker_up_for_its_command_and_for_others(task: dict[str, str], poll: Any) -> None:
    """One that is killed is followed by another; signals of the job are not for it; it ends with the command."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HADAR_", "SLURM_"))}
    env |= task | {"PYTHONPATH": str(ROOT), "HADAR_UNHEARD": "1", "HADAR_JOB_ID": "7", "SLURM_JOB_NAME": "tiny"}
    command = [sys.executable, "-m", "slurm_hadar.runtime.agent", "--", sys.executable, "-c", JOB, "1000"]
    agent = subprocess.Popen(command, env=env)
    try:
        path = Path(task["HADAR_SHARE_DIR"]) / "c-n_1-gpu3"
        poll(lambda: _labels(path) == ["job 7 tiny"])
        for number in (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1):
            served = _server(path)
            os.kill(served, number)
            if number == signal.SIGKILL:
                poll(lambda served=served: _server(path) not in (None, served))
                poll(lambda: _labels(path) == ["job 7 tiny"])
        time.sleep(0.3)
        assert _server(path) == served
        agent.send_signal(signal.SIGINT)
        assert agent.wait(300) != 0
        poll(lambda: not path.exists())
    finally:
        agent.kill()
        agent.wait()


def _labels(path: Path) -> list[str]:
    try:
        return [session["label"] for session in status_of(path)["sessions"]]
    except Exception:
        return []


def _server(path: Path) -> int | None:
    """The process that serves."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(str(path))
        except OSError:
            return None
        return credentials(sock)[0]
