"""The entrypoint of the containers."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "docker-slurm"


@pytest.fixture
def entrypoint(tmp_path: Path) -> Path:
    """It, with folders of its own for those of the container, and nothing that needs rights."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "bin").mkdir()
    for name in ("chown", "install", "rm", "setpriv"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    text = (FOLDER / "entrypoint.sh").read_text()
    script = tmp_path / "entrypoint.sh"
    script.write_text(text.replace("/etc/slurm/", f"{tmp_path}/etc/").replace("/opt/hadar/docker-slurm", str(FOLDER)))
    return script


@pytest.mark.parametrize("password", ["hadar", "a/b+c=", "x&y"])
def test_slurmdbd_gets_its_password_as_it_is(entrypoint: Path, password: str) -> None:
    environment = {"PATH": f"{entrypoint.parent}/bin:{os.environ['PATH']}", "STORAGE_PASSWORD": password}
    subprocess.run(["sh", str(entrypoint), "slurmdbd"], env=environment, check=True)

    lines = (entrypoint.parent / "etc" / "slurmdbd.conf").read_text().splitlines()

    assert f"StoragePass={password}" in lines and "DbdHost=slurmdbd" in lines
