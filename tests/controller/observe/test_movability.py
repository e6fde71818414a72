"""Which jobs keep their places once they run, and that a policy is told so while they still wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import Reservation
from tests.controller.scripted import Scripted, report

NO_CHECKPOINTS = "has no checkpoint support, and neither lose=yes nor jobs.lose_progress lets it lose progress"
MOVED = "was moved 0 times, the most that guard.max_moves_per_job allows"


@pytest.mark.parametrize(
    ("comment", "setting", "why"),
    [
        ("hadar:", "", NO_CHECKPOINTS),
        ("hadar:ckpt=yes", "", None),
        ("hadar:ckpt=no", "", NO_CHECKPOINTS),
        ("hadar:lose=yes", "", None),
        ("hadar:", "jobs.lose_progress=true", None),
        ("hadar:lose=no", "jobs.lose_progress=true", NO_CHECKPOINTS),
        ("hadar:ckpt=yes", "guard.max_moves_per_job=0", MOVED),
        ("hadar:pin=yes", "", None),  # left to Slurm: no policy decides about it
    ],
)
def test_a_job_that_waits_says_whether_it_could_be_moved(
    bench: Callable[..., Any], comment: str, setting: str, why: str | None
) -> None:
    b = bench(None, *([setting] if setting else []))
    job = b.slurm.submit(comment=comment)

    assert b.new_controller(policy=Scripted()).run_round().seen.snapshot.job[job].unmovable == why


def test_what_only_a_young_run_is_kept_for_says_nothing_of_the_next(bench: Callable[..., Any]) -> None:
    """``guard.min_run_s`` passes; a policy that waited for a better place on its account would wait in vain."""
    b = bench(None, "guard.min_run_s=300")
    waits, runs = (b.slurm.submit(comment="hadar:ckpt=yes") for _ in range(2))
    b.slurm.start(runs, "v100-1")

    seen = b.new_controller(policy=Scripted()).run_round().seen.snapshot.job

    assert seen[waits].unmovable is None
    assert seen[runs].unmovable is not None and "min_run_s" in seen[runs].unmovable


def test_whose_nodes_are_booting_stays_until_they_are_up(bench: Callable[..., Any]) -> None:
    """Moved, it would have them booted in vain."""
    b = bench(None, "guard.min_run_s=0")
    job = b.slurm.submit(comment="hadar:lose=yes")
    b.slurm.start(job, "v100-1")
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], state_text="CONFIGURING")
    controller = b.new_controller(policy=Scripted())
    why = controller.run_round().seen.snapshot.job[job].unmovable
    assert why is not None and why.startswith("its nodes are being made ready for it since ")

    b.slurm.jobs[job] = replace(b.slurm.jobs[job], state_text="RUNNING")
    assert controller.run_round().seen.snapshot.job[job].movable


def test_a_script_that_saves_is_known_to_from_its_first_report_on(bench: Callable[..., Any]) -> None:
    """The training API says so only when it runs; what it said counts in all later runs."""
    b = bench()
    job = b.slurm.submit()
    controller = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}}))
    assert controller.run_round().seen.snapshot.job[job].unmovable == NO_CHECKPOINTS

    b.slurm.start(job, "v100-1")
    report(b, job, resumable=True, steps=10, steps_per_s=5.0)
    assert controller.run_round().seen.snapshot.job[job].movable
    pending = {"state": JobState.PENDING, "state_text": "PENDING", "nodes": (), "start": None, "restarts": 1}
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], submit=float(int(time.time())) + 1, **pending)

    assert controller.run_round().seen.snapshot.job[job].unmovable is None
    assert b.new_controller(policy=Scripted()).run_round().seen.snapshot.job[job].unmovable is None


def test_until_its_first_report_a_script_is_taken_to_do_as_others_of_its_owner(bench: Callable[..., Any]) -> None:
    """Only while it waits, only of the same user, and not against its owner's word."""
    b = bench({"v100-1": ("v100", 2), "k80-1": ("k80", 2)})
    tells, sibling, denies = b.slurm.submit(), b.slurm.submit(), b.slurm.submit(comment="hadar:ckpt=no")
    stranger, silent = b.slurm.submit(user="bob"), b.slurm.submit()
    b.slurm.start(tells, "v100-1")
    b.slurm.start(silent, "k80-1")
    report(b, tells, resumable=True, steps=10, steps_per_s=5.0)

    seen = b.new_controller(policy=Scripted()).run_round().seen.snapshot.job

    assert seen[sibling].unmovable is None
    assert [seen[j].unmovable for j in (denies, stranger, silent)] == [NO_CHECKPOINTS] * 3


def test_what_a_script_said_counts_for_the_next_of_its_kind_when_it_is_over(bench: Callable[..., Any]) -> None:
    """Another controller knows it, too; one of another model is taken to do as none of its owner's has done."""
    b = bench()
    comments = ("hadar:model=lm", "hadar:model=gan")
    over = [b.slurm.submit(comment=c) for c in comments]
    for job, node in zip(over, ("v100-1", "k80-1"), strict=True):
        b.slurm.start(job, node)
    report(b, over[0], resumable=True, steps=10, steps_per_s=5.0)
    controller = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}}, j2={"k80-1": {"k80": 1}}))
    controller.run_round()
    for job in over:
        b.slurm.end(job)
    controller.run_round()
    saves, stays = (b.slurm.submit(comment=c) for c in comments)

    for another in (False, True):
        later = b.new_controller(policy=Scripted()) if another else controller
        seen = later.run_round().seen.snapshot.job
        assert (seen[saves].unmovable, seen[stays].unmovable) == (None, NO_CHECKPOINTS)


@pytest.mark.parametrize(("promise", "starts_on"), [("", None), (",ckpt=yes", "k80-1")])
def test_patience_is_for_jobs_that_could_not_be_moved_again(
    bench: Callable[..., Any], promise: str, starts_on: str | None
) -> None:
    """The v100 is held by one that stays, and the k80 is many times as slow: one that would stay there waits."""
    b = bench({"v100-1": ("v100", 1), "k80-1": ("k80", 1)}, "policy.params={patience_s=3600}")
    b.slurm.start(b.slurm.submit(comment="hadar:model=resnet18,batch=64,steps=1000"), "v100-1")
    job = b.slurm.submit(comment=f"hadar:model=resnet18,batch=64,steps=1000000{promise}")

    changes = b.controller.run_round().changes

    assert [c.new.nodes for c in changes if c.job_id == job] == [(starts_on,) if starts_on else ()]


@pytest.mark.parametrize("gpus", [2, 4])
def test_a_gang_that_has_room_only_where_slurm_keeps_the_node_is_told_so(bench: Callable[..., Any], gpus: int) -> None:
    """Though the other nodes have as many GPUs together: it needs them on one node, and of one type."""
    b = bench({"v100-1": ("v100", 4), "k80-1": ("k80", 2), "k80-2": ("k80", 2)})
    other = b.slurm.submit(gpus=1, comment="", priority=1000)
    b.slurm.jobs[other] = replace(b.slurm.jobs[other], sched_nodes=("v100-1",), start=time.time() + 600)
    gang = b.slurm.submit(gpus=gpus)

    seen = b.new_controller(policy=Scripted()).run_round().seen.snapshot.job[gang]

    assert bool(seen.blocked) == (gpus == 4)
    assert gpus == 2 or f"Slurm keeps v100-1 for job {other}, planned for" in seen.blocked


@pytest.mark.parametrize(
    ("gpus", "limit_s", "nodes", "told"),
    [
        (1, None, {"v100-1", "k80-1", "k80-2"}, "reservation maint of k80-1,k80-2,v100-1 begins at"),
        (1, 600.0, {"v100-1", "k80-1", "k80-2"}, ""),
        (1, None, {"v100-1"}, ""),
        (4, None, {"v100-1"}, "reservation maint of v100-1 begins at"),
    ],
    ids=["all", "ends before", "others are left", "a gang"],
)
def test_what_a_reservation_closes_is_told_by_its_name(
    bench: Callable[..., Any], gpus: int, limit_s: float | None, nodes: set[str], told: str
) -> None:
    """Not that the job can never run: with a shorter time limit it may at once."""
    b = bench({"v100-1": ("v100", 4), "k80-1": ("k80", 2), "k80-2": ("k80", 2)})
    soon = time.time() + 3600
    b.slurm.limits.reservations["maint"] = Reservation("maint", frozenset(nodes), soon, soon + 3600)
    job = b.slurm.submit(gpus=gpus, time_limit_s=limit_s)

    seen = b.new_controller(policy=Scripted()).run_round().seen.snapshot.job[job]

    assert (seen.blocked or "").startswith(told) and bool(seen.blocked) == bool(told)
