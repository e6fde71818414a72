"""Servers by their options, and those that cannot be."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from slurm_hadar.errors import ServingError
from slurm_hadar.serving.client import ServingClient
from tests.serving.server.running import MODELS, PATIENT_MS, WAIT_S, Running, until


def test_files_of_the_working_directory_do_not_replace_pythons_own(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("")
    running = Running("--workers", "1", folder=tmp_path).ready()
    assert running.end() == 0


def test_one_place_that_is_out_of_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails three times before the other one has loaded: that serves."""
    monkeypatch.setenv("FAILURES", str(tmp_path / "failures"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    server = Running("--workers", "2", function="Halting")
    try:
        server.ready()
        with ServingClient(server.url) as client:
            assert client.infer("empty", {"x": np.ones(1, np.float32)}, deadline_ms=PATIENT_MS).outputs["y"] == [1.0]
        assert any("could not begin" in line and "out of order" in line for line in server.lines)
    finally:
        assert server.end() == 0


def test_a_token_is_needed_by_all_but_health(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    token.chmod(0o600)
    running = Running("--token-file", str(token))
    try:
        with ServingClient(running.url) as stranger:
            assert stranger.ready() in (True, False)
            with pytest.raises(ServingError, match="token"):
                stranger.status()
        with ServingClient(running.url, "0123456789abcdef") as friend:
            assert friend.status()["scheduler"] == "orloj"
    finally:
        running.end()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate")
def test_encrypted(tmp_path: Path) -> None:
    """With a certificate of one's own, which the client is told to trust, and nobody else does."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *names]
    subprocess.run([*make, "-keyout", key, "-out", cert, "-days", "2"], check=True, capture_output=True)
    running = Running("--tls-cert", str(cert), "--tls-key", str(key))
    locked, other = tmp_path / "locked.pem", tmp_path / "other.pem"
    make = ["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    subprocess.run([*make, "-out", other], check=True, capture_output=True)
    subprocess.run(["openssl", "pkey", "-in", key, "-out", locked, "-aes256", "-passout", "pass:1234"], check=True)
    for unfit, told in ((locked, "is encrypted"), (other, "cannot be used with that certificate")):
        test_impossible_options(["--tls-cert", str(cert), "--tls-key", str(unfit)], told)
    try:
        assert running.url.startswith("https://")
        with ServingClient(running.url, certificates=str(cert)) as client:
            assert client.status()["scheduler"] == "orloj"
        with ServingClient(running.url) as stranger, pytest.raises(ServingError, match="certificate"):
            stranger.status()
    finally:
        running.end()


@pytest.mark.parametrize(("function", "told"), [("broken", "no weights"), ("dies", "ended with 7")])
def test_a_model_that_cannot_be_built_ends_the_server(function: str, told: str) -> None:
    """In one line."""
    running = Running(function=function)

    assert running.process.wait(WAIT_S) == 1
    until(lambda: any(told in line for line in running.lines), lambda: running.lines)
    assert not any("Traceback" in line for line in running.lines)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--slo", "soon"], "--slo"),
        (["--tls-key", str(MODELS)], "go together"),
        (["--tls-key", str(MODELS), "--tls-cert", str(MODELS)], "cannot be used"),
        (["--tls-key", str(MODELS), "--tls-cert", str(MODELS)], f"--tls-cert {MODELS}"),
    ],
)
def test_impossible_options(options: list[str], told: str) -> None:
    command = [sys.executable, "-m", "slurm_hadar.cli.main", "serve", "run", f"{MODELS}:build", "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, check=False)

    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_temporary_folder_whose_path_is_too_long_for_sockets(tmp_path: Path) -> None:
    """In one line, and none is left there."""
    long = tmp_path / ("x" * 100)
    long.mkdir()
    command = [sys.executable, "-m", "slurm_hadar.cli.main", "serve", "run", f"{MODELS}:build", "--port", "0"]
    environ = {**os.environ, "TMPDIR": str(long)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=WAIT_S, check=False)

    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert "too long for a socket's path: set TMPDIR" in done.stderr and not list(long.iterdir())


def _without_room(folder: Path, when: str) -> Path:
    """A folder for PYTHONPATH with which those starts of workers fail."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(f"""
import errno, os
from slurm_hadar.serving.server.workers.processes import WorkerProcess
real, starts = WorkerProcess.start, []
def start(*given):
    starts.append(1)
    if {when}:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return real(*given)
WorkerProcess.start = start
""")
    return folder


def test_no_room_for_a_process_at_the_start_is_told_in_a_line(tmp_path: Path) -> None:
    server = Running(path=_without_room(tmp_path / "site", "True"))
    assert server.process.wait(WAIT_S) == 1
    until(lambda: any("no worker could begin" in line for line in server.lines), lambda: server.lines)
    *_, last = server.lines
    assert last == "hadar: no worker could begin: it could not be started: Resource temporarily unavailable\n"
    assert not any("Traceback" in line for line in server.lines)


def test_a_worker_for_which_there_is_no_room_now_is_started_later(tmp_path: Path) -> None:
    server = Running(path=_without_room(tmp_path / "site", "len(starts) == 2")).ready()
    try:
        (worker,) = server.workers()
        os.kill(worker["pid"], signal.SIGKILL)
        until(lambda: any(w["pid"] != worker["pid"] for w in server.workers()), lambda: server.lines)
        server.ready()
        assert any("could not be started" in line for line in server.lines)
    finally:
        assert server.end() == 0
