"""``hadar`` in this process: to start a Python for each call takes half a second of CPU. How a process of its own ends
is tested in ``test_cli.py`` (a closed pipe) and ``tests/test_extras.py``."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from slurm_hadar.cli.main import main

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Run:
    """Call ``hadar`` with words; gives its exit code and all that was written, as of a process."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        root = logging.getLogger()
        before = root.handlers[:], root.level
        root.handlers.clear()  # `hadar run` has its own, and closes whatever there is
        try:
            with pytest.raises(SystemExit) as left:
                main(list(words))
        finally:
            root.handlers[:] = before[0]
            root.setLevel(before[1])
        told = capfd.readouterr()
        return subprocess.CompletedProcess(["hadar", *words], int(left.value.code or 0), told.out, told.err)

    return run


@pytest.fixture
def typed(call: Run) -> Any:
    """Run ``hadar`` with these words; returns (exit code, stdout, stderr)."""

    def run(*arguments: str) -> tuple[int, str, str]:
        done = call(*arguments)
        return done.returncode, done.stdout, done.stderr

    return run
