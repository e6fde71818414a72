"""Fixtures of the job side: a bare environment, a job's directory, and a controller that only listens."""

import gc
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar import messages
from slurm_hadar.cluster.ports import PortReservation
from tests.runtime.forkserver import ForkServer, Script

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 60.0


def wait_for(condition: Callable[[], object], what: str = "condition", seconds: float = DEADLINE_S) -> object:
    """Poll until ``condition`` is true; fails the test after a generous deadline."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for {what}")
        time.sleep(0.02)
    return result


@pytest.fixture
def waiting() -> Callable[..., object]:
    return wait_for


@pytest.fixture(scope="module", autouse=True)
def _known_objects() -> Iterator[None]:
    """What goes on in a training is looked for among all objects: not among pytest's million."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def job_env(tmp_path: Path, short_tmp: Path) -> dict[str, str]:
    """The environment of a task of job 77, with a token, and nothing of the outside's Slurm."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "HADAR", "RANK", "WORLD", "MASTER"))}
    directory = tmp_path / "job"
    directory.mkdir()
    (directory / messages.TOKEN_FILE).touch(0o600)
    (directory / messages.TOKEN_FILE).write_text(secrets.token_hex(32) + "\n")
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": "77",
        "SLURM_PROCID": "0",
        "SLURMD_NODENAME": "v100-1",
        "HADAR_JOB_DIR": str(directory),
        "TMPDIR": str(short_tmp),  # workers of loaders have sockets there
        "OMP_NUM_THREADS": "1",
    }


@pytest.fixture
def in_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process is a task of job 77, submitted in a directory that all may write."""
    for name in [n for n in os.environ if n.startswith(("SLURM", "HADAR"))]:
        monkeypatch.delenv(name)
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(shared))
    return shared


class Listener:
    """The controller's end of the channel, cut down to what the tests need: keeps reports, sends orders."""

    def __init__(self, directory: Path, answer: bool = True) -> None:
        import zmq

        self._zmq = zmq
        self._answer = answer
        self.reports: list[messages.Report] = []
        self._orders: list[messages.Order] = []
        public, secret = zmq.curve_keypair()
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context.instance()
        self._socket = context.socket(zmq.ROUTER)
        self._socket.curve_secretkey, self._socket.curve_publickey, self._socket.curve_server = secret, public, True
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.channel = directory / messages.CHANNEL_FILE
        info = messages.ChannelInfo(address=f"tcp://127.0.0.1:{port}", public_key=public.decode())
        self.channel.write_text(info.to_json())
        self._going = True
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        peer = None
        while self._going:
            if self._socket.poll(20):
                peer, data = self._socket.recv_multipart()
                report = messages.decode_report(data)
                self.reports.append(report)
                if report.kind == "hello" and self._answer:
                    self._orders.append(messages.Order(kind="welcome", job=report.job))
            while self._orders and peer is not None:
                self._socket.send_multipart([peer, messages.encode(self._orders.pop(0))])
        self._socket.close(linger=0)

    def order(self, kind: str, job: str = "77", why: str = "test", pause_s: float = 0.0) -> None:
        self._orders.append(messages.Order(kind=kind, job=job, why=why, pause_s=pause_s))

    def of_kind(self, kind: str) -> list[messages.Report]:
        return [r for r in self.reports if r.kind == kind]

    def close(self) -> None:
        self._going = False
        self._thread.join()


@pytest.fixture
def listener(tmp_path: Path, job_env: dict[str, str]) -> Iterator[Listener]:
    """A controller that answers; the job's environment points to it."""
    made = Listener(tmp_path)
    job_env["HADAR_CHANNEL"] = str(made.channel)
    yield made
    made.close()


@pytest.fixture
def start_agent(job_env: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start the agent with a command; whatever still runs at the end of the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*command: str, **options: object) -> subprocess.Popen[str]:
        argv = [sys.executable, "-m", "slurm_hadar.runtime.agent", "--", *command]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        process = subprocess.Popen(argv, env=job_env, start_new_session=True, **pipes)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def fork_servers() -> Iterator[Callable[..., ForkServer]]:
    """A process that has PyTorch, and these modules; one for each set of modules in the whole run."""
    made: dict[tuple[str, ...], ForkServer] = {}

    def server(*modules: str) -> ForkServer:
        if modules not in made:
            made[modules] = ForkServer(*modules)
        return made[modules]

    yield server
    for each in made.values():
        each.close()


@pytest.fixture
def start_script(fork_servers: Callable[..., ForkServer], tmp_path: Path) -> Iterator[Callable[..., Script]]:
    """Start a script, given as text, where PyTorch (and ``modules``) is imported already; killed at the test's end."""
    started: list[Script] = []

    def start(script: str, env: dict[str, str], *arguments: str, modules: tuple[str, ...] = ()) -> Script:
        out, err = (tmp_path / f"script-{len(started)}.{kind}" for kind in ("out", "err"))
        started.append(fork_servers(*modules).start(script, *arguments, env=env, out=out, err=err))
        return started[-1]

    yield start
    for script in started:
        script.kill()
        script.wait(DEADLINE_S)


@pytest.fixture
def run_gang(start_script: Callable[..., Script]) -> Callable[..., list[subprocess.CompletedProcess[str]]]:
    """Run a script as ``world`` workers that find each other on this machine; what each of them said, by rank."""

    def run(
        script: str,
        env: dict[str, str],
        world: int,
        *arguments: str,
        modules: tuple[str, ...] = (),
        seconds: float = DEADLINE_S,
    ) -> list[subprocess.CompletedProcess[str]]:
        env = {**env, "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo"}
        with PortReservation(1) as reserved:
            env["MASTER_PORT"] = str(reserved.ports[0])
            workers = [start_script(script, {**env, "RANK": str(r)}, *arguments, modules=modules) for r in range(world)]
            said = [worker.communicate(seconds) for worker in workers]
        codes = [worker.returncode for worker in workers]
        return [subprocess.CompletedProcess(script, code or 0, *w) for code, w in zip(codes, said, strict=True)]

    return run
