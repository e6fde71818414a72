"""Tests of what only a GPU can show. They are left out where there is none; ``make gpu`` runs them by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _missing() -> str:
    try:
        import torch
    except ImportError:
        return "needs PyTorch"
    return "" if torch.cuda.is_available() else "needs an NVIDIA GPU"


@pytest.fixture(scope="session", autouse=True)
def _gpu() -> None:
    if missing := _missing():
        pytest.skip(missing)


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """On the first GPU, with sums in the same order each time, and nothing of the outside's Slurm or controller."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "HADAR"))}
    path = os.pathsep.join([str(ROOT), *filter(None, [kept.get("PYTHONPATH")])])
    more = {"PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": "0", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    return kept | more | {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """A file with that text."""

    def write(text: str) -> str:
        path = tmp_path / f"script{len(list(tmp_path.glob('script*')))}.py"
        path.write_text(text)
        return str(path)

    return write


@pytest.fixture
def run(environ: dict[str, str], tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Python with these words, to its end."""

    def call(*words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *words]
        done: Any = subprocess.run(
            command, env=environ | more, cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == code, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        return done

    return call
