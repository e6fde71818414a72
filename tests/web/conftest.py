"""A dashboard over a generated journal: 400 jobs on 12 nodes, one of them with a name that nobody would choose."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from slurm_hadar.config import load
from slurm_hadar.testing.journals import write_journal
from slurm_hadar.web.app import create_app

NASTY = '<script>alert("1")</script>'


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state directory of a controller that looked a moment ago."""
    folder = tmp_path_factory.mktemp("state")
    write_journal(folder / "journal.db", time.time(), jobs=400, nodes=12, name=NASTY).close()
    return folder


@pytest.fixture(scope="session")
def browse() -> Callable[..., TestClient]:
    """``browse(path, token=None)``: a client of the dashboard over that journal."""

    def make(path: Path, token: str | None = None, **options: object) -> TestClient:
        return TestClient(create_app(path, load(), token), base_url="http://localhost:8641", **options)

    return make


@pytest.fixture(scope="session")
def client(state: Path, browse: Callable[..., TestClient]) -> TestClient:
    """The dashboard of :func:`state`, for anyone on this host."""
    return browse(state / "journal.db")
