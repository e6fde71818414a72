"""``hadar web`` on the command line: what it refuses, and in which words."""

from __future__ import annotations

import socket
from pathlib import Path

from click.testing import CliRunner

from slurm_hadar.cli.admin.web import web
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
