"""The lines of the queue as people see them."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.config import load
from slurm_hadar.controller.answers.lines import Line, folded, line_of
from slurm_hadar.controller.answers.view import live_view, queue_view
from slurm_hadar.controller.journal import JobRecord, Journal
from slurm_hadar.controller.state_dir import JOURNAL
from slurm_hadar.controller.words import done
from slurm_hadar.model import EMPTY, JobState, Placement
from slurm_hadar.slurm.state import Bounds, PartitionTerms
from slurm_hadar.testing.fake_slurm import FakeSlurm

TASK = Line(
    job_id="12_1",
    user="ann",
    name="train",
    state="pending",
    gpus=1,
    where="-",
    steps_per_s=None,
    done_share=None,
    arrival=50.0,
    restarts=0,
    moves=0,
    tier="waits-for-capacity",
    why="first in line",
)


def tasks(*numbers: int, **changes: object) -> list[Line]:
    return [replace(TASK, job_id=f"12_{n}", arrival=100.0 - n, **changes) for n in numbers]


def test_waiting_tasks_that_are_alike_share_a_line() -> None:
    """With the first one's reason, and the age of the oldest."""
    (line,) = folded([*tasks(3, 4, 5, why="no room for 3"), *tasks(9, 12), *tasks(13)])

    assert (line.job_id, line.why, line.arrival) == ("12_[3-5,9,12-13]", "no room for 3", 87.0)


def test_all_else_has_a_line_of_its_own() -> None:
    """Running tasks, other arrays, and those that wait for another reason; each where it was."""
    lines = [
        *tasks(1, 2, state="running"), *tasks(3), replace(TASK, job_id="7"), *tasks(4, tier="pinned"), *tasks(5),
        replace(TASK, job_id="13_6"), replace(TASK, job_id="14+1"),
    ]  # fmt: skip

    assert [line.job_id for line in folded(lines)] == ["12_1", "12_2", "12_[3,5]", "7", "12_4", "13_6", "14+1"]


def test_a_partition_that_is_only_looked_at_is_said_by_the_live_view_too(tmp_path: Path) -> None:
    """As the round says it, where the controller acts in another partition."""
    slurm = FakeSlurm({"v100-1": ("v100", 2)})
    slurm.submit(comment="hadar:model=resnet18")
    settings = [f"controller.state_dir={tmp_path}", "controller.mode=act", "partitions.all.mode=advise"]

    (line,) = queue_view(slurm, load(None, settings))[0]

    assert (line.tier, line.why) == ("pinned", "partition all is in mode advise")


def test_the_queue_goes_by_what_the_controller_was_told(tmp_path: Path) -> None:
    """On its command line, or by a configuration of its own."""
    slurm = FakeSlurm({"v100-1": ("v100", 2)})
    slurm.submit(comment="hadar:model=resnet18")
    config = load(None, [f"controller.state_dir={tmp_path}", "controller.mode=act"])
    with contextlib.closing(Journal(tmp_path / JOURNAL)) as journal:
        journal.save_given({"partitions.all.mode": "advise"})

    (line,) = queue_view(slurm, config)[0]

    assert (line.tier, line.why) == ("pinned", "partition all is in mode advise")


def test_a_suspended_job_is_as_far_as_it_came() -> None:
    """Its saved steps are what a waiting one begins with."""
    slurm = FakeSlurm({"n": ("v100", 4)})
    job = slurm.jobs[slurm.submit(1)]
    record = JobRecord("1", steps=390.0, saved_step=100.0, total_steps=1000.0)

    def share(state: JobState) -> float | None:
        return line_of(replace(job, state=state), record, EMPTY, None, {}).done_share

    assert [share(s) for s in (JobState.SUSPENDED, JobState.RUNNING, JobState.PENDING)] == [0.39, 0.39, 0.1]


def test_the_gpus_of_an_elastic_job_are_those_that_it_has() -> None:
    """While it waits, those that its owner asked for."""
    slurm = FakeSlurm({"n": ("v100", 4)})
    job = slurm.jobs[slurm.submit(2)]
    held = Placement.of({"n": {"v100": 4}})

    assert line_of(replace(job, state=JobState.RUNNING), JobRecord("1", workers=2), held, None, {}).gpus == 4
    assert line_of(job, JobRecord("1", workers=2), EMPTY, None, {}).gpus == 2


@pytest.mark.parametrize(("steps", "shown"), [(0.0, "0 %"), (96.0, "96 %"), (104.0, "100 %"), (106.0, ">100 %")])
def test_a_job_that_goes_on_beyond_what_was_stated_is_not_done(steps: float, shown: str) -> None:
    """Statements are rounded; of more than that nobody knows how far it is."""
    slurm = FakeSlurm({"n": ("v100", 4)})
    job = replace(slurm.jobs[slurm.submit(1)], state=JobState.RUNNING)
    line = line_of(job, JobRecord("1", steps=steps, total_steps=100.0), EMPTY, None, {})

    assert done(line.done_share, line.size) == shown
    assert done(None, "predicted") == done(None, "") == "-"


@pytest.mark.parametrize("known", [True, False])
def test_a_job_whose_nodes_are_made_ready_is_starting(known: bool) -> None:
    """It has them, and does not run: Slurm switches them on, or their prolog runs."""
    slurm = FakeSlurm({"n": ("v100", 4)})
    job = replace(slurm.jobs[slurm.submit(1)], state=JobState.RUNNING, state_text="CONFIGURING", start=1000.0)
    record = JobRecord("1", steps_per_s=3.0, readied={"n": 1000.0}) if known else None
    line = line_of(job, record, Placement.of({"n": {"v100": 1}}), None, {"tier": "waits-by-policy", "why": "before"})

    assert (line.state, line.started, line.steps_per_s, line.tier, line.gpus) == ("starting", None, None, "", 1)
    assert line.why.startswith("its nodes are being made ready for it since ") == known


def test_the_queue_knows_the_limits_of_partitions(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that could have two nodes by its comment, and by its partition one, is steered, and not said to be left to
    Slurm."""
    b = bench({"v100-1": ("v100", 2), "v100-2": ("v100", 2)})
    job = b.slurm.submit(1, "hadar:model=resnet18,steps=100,nodes=1-2", switches=1)
    read, terms = b.slurm.read, {"all": PartitionTerms(max_nodes=1)}
    monkeypatch.setattr(b.slurm, "read", lambda: replace(read(), bounds=Bounds(partitions=terms)))
    assert b.controller.run_round().seen.snapshot.job[job].steerable

    (line,) = live_view(b.slurm, b.config(), b.journal)[0]
    assert (line.state, line.tier) == ("running", "")


def test_the_queue_tells_nothing_of_an_earlier_job_with_the_same_id(bench: Any) -> None:
    """Slurm has counted anew, and no round has seen the new one yet."""
    b = bench({"v100-1": ("v100", 2)})
    job = b.slurm.submit(1)
    b.controller.run_round()
    assert live_view(b.slurm, b.config(), b.journal)[0][0].moves == 0
    b.journal.save_jobs([replace(b.journal.load_jobs()[job], steps=96.0, total_steps=100.0)])
    b.slurm.jobs[job] = replace(
        b.slurm.jobs[job], state=JobState.PENDING, nodes=(), submit=(b.slurm.jobs[job].submit or 0.0) + 1000.0
    )

    (line,) = live_view(b.slurm, b.config(), b.journal)[0]

    assert line.done_share is None
