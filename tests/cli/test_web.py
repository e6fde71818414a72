"""``hadar web`` on the command line: what it refuses, and in which words."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from slurm_hadar.cli.web import web
from slurm_hadar.errors import ConfigError


def refusal(*arguments: str) -> str:
    result = CliRunner().invoke(web, arguments)
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception)


def test_an_open_address_needs_a_token() -> None:
    """Refused before anything listens."""
    assert "give --token-file" in refusal("--listen", "0.0.0.0:0")


def test_a_token_file_that_does_not_serve(tmp_path: Path) -> None:
    """Missing, too short, or open to others: the file is named, with the fix."""
    file = tmp_path / "token"
    assert str(file) in refusal("--token-file", str(file))
    file.write_text("short\n")
    assert "openssl rand" in refusal("--token-file", str(file))
    file.write_text("x" * 30)
    file.chmod(0o644)
    assert f"chmod 600 {file}" in refusal("--token-file", str(file))


def test_an_address_that_is_taken() -> None:
    """One line that names it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1 port {port}" in refusal("--listen", f"127.0.0.1:{port}")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line says what to install."""
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    monkeypatch.delitem(sys.modules, "slurm_hadar.web.app", raising=False)

    assert "pip install 'slurm_hadar[web]'" in refusal()


def test_other_commands_do_without_the_extras() -> None:
    """Neither dashboard nor terminal view is imported by what everybody uses."""
    code = (
        "import sys\n"
        "for name in ('starlette', 'jinja2', 'uvicorn', 'textual'): sys.modules[name] = None\n"
        "import slurm_hadar.cli.queue, slurm_hadar.cli.run, slurm_hadar.cli.history\n"
        "from slurm_hadar.cli.main import hadar; from click.testing import CliRunner\n"
        "print(CliRunner().invoke(hadar, ['--help']).exit_code)"
    )
    root = Path(__file__).resolve().parents[2]

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False, cwd=root
    )

    assert done.stdout == "0\n", done.stderr
