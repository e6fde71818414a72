"""A worker of torchrun's takes the rank that the job's graph gives it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.runtime.rank import RANKS, read_ranks, take_rank, write_ranks

ROOT = Path(__file__).resolve().parents[2]


@given(st.integers(1, 4), st.integers(1, 8), st.randoms(use_true_random=False))
def test_ranks_are_read_back(nodes: int, each: int, random: Any) -> None:
    """Whatever lies where."""
    ranks = list(range(nodes * each))
    random.shuffle(ranks)
    order = {f"n{i}": sorted(ranks[i * each : (i + 1) * each]) for i in range(nodes)}
    assert read_ranks(write_ranks(order.items())) == order


def worker(**environ: str) -> dict[str, str]:
    return {
        "RANK": "6",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "2",
        "LOCAL_WORLD_SIZE": "4",
        "SLURMD_NODENAME": "n2",
        RANKS: "n1:1-4;n2:0,5-7",
        **environ,
    }


def test_a_worker_takes_its_rank() -> None:
    """The i-th worker of a node has the i-th of its ranks."""
    environ = worker()
    assert take_rank(environ) is None and environ["RANK"] == "6"
    environ = worker(LOCAL_RANK="0")
    assert take_rank(environ) is None and environ["RANK"] == "0"


def test_without_a_graph_nothing_changes() -> None:
    for environ in (worker(HADAR_RANKS=""), {RANKS: "n1:0"}):
        before = dict(environ)
        assert take_rank(environ) is None and environ == before


def test_another_number_of_workers_keeps_torchruns_order() -> None:
    """All of them see it, so all of them agree."""
    environ = worker(WORLD_SIZE="4", LOCAL_WORLD_SIZE="2")
    assert take_rank(environ) == "4 workers where the graph has 8; ranks stay as torchrun numbers them"
    assert environ["RANK"] == "6"


def test_workers_that_would_not_agree_stop() -> None:
    """Three of eight on a node with four GPUs: two workers would have the same rank."""
    with pytest.raises(ValueError, match="3 workers on node n2 where the job has 4 GPUs; start torchrun with"):
        take_rank(worker(LOCAL_WORLD_SIZE="3"))


def test_the_script_runs_as_if_started_itself(tmp_path: Path) -> None:
    """Its arguments, its folder on the path, its name, its exit code; as a script or as a module."""
    (tmp_path / "beside.py").write_text("x = 5\n")
    script = tmp_path / "train.py"
    script.write_text(
        "import os, sys, beside\nprint(os.environ['RANK'], sys.argv[1:], beside.x, __name__)\nsys.exit(3)\n"
    )
    env = {**os.environ, **worker(LOCAL_RANK="1"), "PYTHONPATH": str(ROOT)}
    for arguments, cwd in (([str(script)], "/"), (["-m", "train"], str(tmp_path))):
        command = [sys.executable, "-m", "slurm_hadar.runtime.rank", *arguments, "--lr", "1"]
        done = subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False)
        assert (done.stdout, done.returncode) == ("5 ['--lr', '1'] 5 __main__\n", 3), done.stderr
