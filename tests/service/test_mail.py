"""wrappers/mail_user.sh: tells a user why a job was moved."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "wrappers" / "mail_user.sh"
MOVED = {
    "HADAR_JOB_ID": "17", "HADAR_USER": "alice", "HADAR_JOB_NAME": r"night\nrun $(id)", "HADAR_CLUSTER": "site",
    "HADAR_EVENT": "moved", "HADAR_OLD": "k80-1(k80:2)", "HADAR_NEW": "v100-1(v100:2)", "HADAR_WHY": "ends sooner",
    "HADAR_TIME": "1700000000", "HADAR_FINISH_OLD": "1700011400", "HADAR_FINISH_NEW": "1700006600", "TZ": "UTC",
}  # fmt: skip


def run(variables: dict[str, str]) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {"PATH": path, "LC_ALL": "C.UTF-8", **variables}
    return subprocess.run([SCRIPT], env=env, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def sendmail(tmp_path: Path) -> Path:
    """A program that keeps what it is given."""
    program = tmp_path / "sendmail"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/words\ncat > {tmp_path}/mail\n')
    program.chmod(0o755)
    return program


def test_a_move(sendmail: Path) -> None:
    """Where from, where to, why, and both expected ends; names are text, not commands."""
    done = run({**MOVED, "HADAR_SENDMAIL": f"{sendmail} -t -i", "HADAR_MAIL_DOMAIN": "site.org"})

    assert done.returncode == 0, done.stderr
    head, _, body = sendmail.with_name("mail").read_text().partition("\n\n")
    assert "To: alice@site.org" in head.splitlines() and "Subject: job 17 was moved" in head.splitlines()
    assert r"Your job 17 (night\nrun $(id)) on cluster site was moved at Tue 14 Nov 22:13." in body
    assert "from   k80-1(k80:2)" in body and "to     v100-1(v100:2)" in body and "why    ends sooner" in body
    assert "Expected end where it was:  Wed 15 Nov 01:23" in body
    assert "Expected end where it is:   Wed 15 Nov 00:03" in body
    assert sendmail.with_name("words").read_text() == "-t -i\n"


def test_a_stop_of_unknown_end(sendmail: Path) -> None:
    """A job that was stopped goes back to the queue; what is not known is said so."""
    done = run({**MOVED, "HADAR_EVENT": "stopped", "HADAR_NEW": "", "HADAR_FINISH_OLD": "", "HADAR_FINISH_NEW": "",
                "HADAR_SENDMAIL": str(sendmail)})  # fmt: skip

    assert done.returncode == 0
    mail = sendmail.with_name("mail").read_text()
    assert "To: alice\n" in mail and "to     the queue" in mail and "where it was:  not known" in mail
    assert "where it is" not in mail


def test_by_smtp() -> None:
    """The default, since the service may start no program that gains privileges."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(30)
    said: list[str] = []

    def serve() -> None:
        client, _ = server.accept()
        with client, client.makefile("rwb", buffering=0) as stream:
            stream.write(b"220 test\r\n")
            in_data = False
            for line in stream:
                text = line.decode().rstrip("\r\n")
                said.append(text)
                if in_data and text != ".":
                    continue
                in_data = text.upper() == "DATA"
                over = text.upper() == "QUIT"
                stream.write(b"354 go on\r\n" if in_data else b"221 bye\r\n" if over else b"250 fine\r\n")
                if over:
                    return

    thread = threading.Thread(target=serve)
    thread.start()
    done = run({**MOVED, "HADAR_SMTP": f"127.0.0.1:{server.getsockname()[1]}", "HADAR_MAIL_FROM": "gpu@site.org"})
    thread.join(30)
    server.close()

    assert done.returncode == 0, done.stderr
    commands = [line.lower() for line in said]  # Python 3.13 says rcpt to
    assert "rcpt to:<alice>" in commands and any(line.startswith("mail from:<gpu@site.org>") for line in commands)
    assert "Subject: job 17 was moved" in said


def test_a_server_that_is_away() -> None:
    """One line, and a code that the controller logs."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    done = run({**MOVED, "HADAR_SMTP": f"127.0.0.1:{port}"})

    assert done.returncode == 1 and done.stderr.startswith(f"mail_user.sh: 127.0.0.1:{port} does not take the mail: ")
    assert len(done.stderr.splitlines()) == 1


def test_by_hand_it_says_what_it_is() -> None:
    done = run({})

    assert done.returncode != 0 and "HADAR_JOB_ID: is not set: this script is run by the controller" in done.stderr
