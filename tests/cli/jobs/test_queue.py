"""``hadar queue`` on screens of any width, and where the nodes are hidden."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from slurm_hadar.cli.jobs.queue_table import show
from slurm_hadar.config import load
from slurm_hadar.controller.answers.lines import Line
from slurm_hadar.controller.answers.view import queue_view
from slurm_hadar.errors import SlurmHidden
from slurm_hadar.slurm.state import ClusterState
from slurm_hadar.testing.fake_slurm import FakeSlurm

WHY = "the GPUs it needs are held by jobs that keep them now: 18 (has no checkpoint support, and may not lose progress)"


def line(job_id: str, name: str, state: str, **known: Any) -> Line:
    given: dict[str, Any] = {"user": "alice", "gpus": 4, "where": "-", "steps_per_s": None, "done_share": None}
    given |= {"arrival": 0.0, "restarts": 0, "moves": 0}
    return Line(job_id=job_id, name=name, state=state, **given | known)


LINES = [
    line("1047_[1-300]", "a-name-of-a-training-as-long-as-any", "pending", why=WHY),
    line("9", "short", "running", gpus=128, where="v100-1(v100:4)", steps_per_s=12.5, done_share=0.25, size="stated"),
]


def screen(width: int, lines: list[Line]) -> list[str]:
    """What is shown on a terminal of that width, of jobs that have just come: a longer age is wider."""
    out, now = io.StringIO(), time.time()
    show(
        Console(file=out, width=width, force_terminal=True, color_system=None),
        [replace(line, arrival=now) for line in lines],
    )
    return out.getvalue().splitlines()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_every_job_says_where_it_is_or_why_it_waits(width: int) -> None:
    """Below its line; ids are whole, and no line is longer than the screen."""
    shown = screen(width, LINES * 10)
    text = " ".join(" ".join(shown).split())

    assert text.count(WHY) == 10 and text.count("v100-1(v100:4)") == 10
    assert sum(line.startswith("1047_[1-300] ") for line in shown) == 10
    assert width < 60 or max(map(len, shown)) <= width


def test_what_matters_least_is_left_out_first() -> None:
    """And names are cut only where that is not enough."""
    assert screen(60, LINES)[0].split() == ["JOB", "USER", "NAME", "STATE", "GPUS", "AGE"]
    assert screen(80, LINES)[0].split() == ["JOB", "USER", "NAME", "STATE", "GPUS", "STEPS/S", "DONE", "SIZE", "AGE"]
    assert "a-name-of-a-…" not in screen(120, LINES)[1] and "a-name-of-a" in screen(80, LINES)[1]


def test_a_screen_that_is_wide_enough_has_one_table() -> None:
    """As a pipe has."""
    shown = screen(400, LINES)

    assert len(shown) == 3 and shown[0].split()[-1] == "WHY" and shown[1].rstrip().endswith(WHY)


class Hidden(FakeSlurm):
    """Who asks may not see the nodes."""

    def read(self) -> ClusterState:
        raise SlurmHidden("sinfo failed: Access/permission denied")


def test_where_the_nodes_are_hidden_the_queue_is_what_squeue_says(tmp_path: Path) -> None:
    """With a note of it."""
    slurm = Hidden({"v100-1": ("v100", 4)})
    waits, runs, over = (slurm.submit(2) for _ in range(3))
    slurm.start(runs, "v100-1")
    slurm.cancel([over])

    lines, note = queue_view(slurm, load(None, (f"controller.state_dir={tmp_path}",)))

    assert [(line.job_id, line.where, line.why) for line in lines] == [
        (runs, "v100-1", ""), (waits, "-", "Slurm says Resources"),
    ]  # fmt: skip
    assert note.startswith("only what squeue says of each job: sinfo failed")
