"""A job as its batch script finds it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.runtime.launch.batch import Fakes


@pytest.fixture
def fakes(tmp_path: Path) -> Fakes:
    return Fakes(tmp_path / "bin")


@pytest.fixture
def env(fakes: Fakes, tmp_path: Path) -> dict[str, str]:
    """A job's environment with the stale variables of facts that were asked for at submission."""
    return {
        "PATH": f"{fakes.directory}:{os.environ['PATH']}",
        "HADAR_PYTHON": sys.executable,
        "HOME": os.environ.get("HOME", "/"),
        "SLURM_JOB_ID": "77",
        "SLURM_SUBMIT_DIR": str(tmp_path),
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_GPUS": "4",
        "SLURM_GPUS_PER_NODE": "4",
        "SLURM_NTASKS": "8",
        "SLURM_NPROCS": "8",
        "SLURM_NTASKS_PER_NODE": "4",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_CONF": str(tmp_path / "slurm.conf"),
    }
