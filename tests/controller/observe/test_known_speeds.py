"""What is known of a job's speed, when it is learned, and what may be decided by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.safety.guard import changes_of
from slurm_hadar.model import Form, Job, JobState, Placement, Plan, Snapshot, Speed
from slurm_hadar.policies import get
from tests.controller.scripted import Scripted, report

UNKNOWN = "hadar:steps=20000,ckpt=yes"
DOUBTFUL = "at most 2.3 times as fast by the data sheets, and nothing else is known of its speed"


def test_an_array_task_teaches_its_siblings_in_the_same_round(bench: Callable[..., Any]) -> None:
    b = bench({"v100-1": ("v100", 2), "k80-1": ("k80", 2)})
    jobs = [b.slurm.submit(comment=UNKNOWN, name="grid", array_id="7") for _ in range(2)]
    b.slurm.start(jobs[0], "v100-1")
    report(b, jobs[0], steps=10, steps_per_s=12.0)

    seen = b.controller.run_round().seen.snapshot.job

    assert [seen[j].speeds["v100"].steps_per_s for j in jobs] == [12.0, 12.0]
    assert seen[jobs[1]].speeds["k80"].error is not None


def test_a_running_job_is_measured_before_it_is_judged(bench: Callable[..., Any]) -> None:
    """As long as it may still tell its speed; then it is judged without."""
    b = bench()
    job = b.slurm.submit(comment=f"{UNKNOWN},model=resnet18")
    b.slurm.start(job, "k80-1")
    report(b, job, "hello")
    controller = b.new_controller()

    assert controller.run_round().seen.snapshot.job[job].unmovable == "its speed on k80 is being measured"
    report(b, job, steps=10, steps_per_s=3.0)
    assert controller.run_round().seen.snapshot.job[job].unmovable is None


def test_who_tells_no_speed_is_judged_without_in_the_end(bench: Callable[..., Any]) -> None:
    b = bench()
    job = b.slurm.submit(comment=f"{UNKNOWN},model=resnet18")
    b.slurm.start(job, "k80-1")
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], start=time.time() - 1000.0)
    report(b, job, "hello")

    assert b.controller.run_round().seen.snapshot.job[job].unmovable is None


@pytest.mark.parametrize(
    ("node", "comment", "types", "ruled_out"),
    [
        ("p100-1", UNKNOWN, {"p100"}, {"v100": DOUBTFUL}),
        ("k80-1", UNKNOWN, {"k80", "p100", "v100"}, {}),
        ("k80-1", f"{UNKNOWN},types=k80+p100", {"k80", "p100"}, {"v100": "not in its types="}),
        ("p100-1", f"{UNKNOWN},model=resnet18", None, {}),
    ],
)
def test_data_sheets_alone_move_nobody_for_a_doubtful_gain(
    bench: Callable[..., Any], node: str, comment: str, types: set[str] | None, ruled_out: dict[str, str]
) -> None:
    """A silent job of which nothing is known may be stopped for others, and go to GPU types that are faster by far."""
    b = bench({"v100-1": ("v100", 2), "p100-1": ("p100", 2), "k80-1": ("k80", 2)})
    job = b.slurm.submit(comment=comment)
    b.slurm.start(job, node)

    seen = b.new_controller(policy=Scripted()).run_round().seen.snapshot.job[job]

    assert seen.form.types == types and seen.movable
    assert seen.ruled_out == ruled_out


@pytest.mark.parametrize(("node", "moves"), [("k80-1", 1), ("p100-1", 0)])
def test_who_never_tells_a_speed_does_not_stay_on_the_slowest_gpu(
    bench: Callable[..., Any], node: str, moves: int
) -> None:
    b = bench({"v100-1": ("v100", 2), "p100-1": ("p100", 2), "k80-1": ("k80", 2)})
    job = b.slurm.submit(comment="hadar:ckpt=yes")
    b.slurm.start(job, node)
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], start=time.time() - 1000.0)
    controller = b.new_controller()

    assert sum(controller.run_round().record.moves for _ in range(3)) == moves
    assert b.slurm.jobs[job].nodes == (("v100-1",) if moves else (node,))


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (Speed(20.0, 1.0, "measured here 3 times on 1 p100", 0.05, measured=True),
         Speed(40.0, 1.0, "measured here 1 time on 1 v100", 0.05, measured=True), "20 -> 40 steps/s"),
        (Speed(20.0, 1.0, "measured here 3 times on 1 p100", 0.05, measured=True),
         Speed(32.0, 1.0, "measured here 3 times on 1 p100; times 1.6 for v100 by the data sheets", 0.3),
         "20 -> 32 steps/s (estimated)"),
        (Speed(0.6, 1.0, "nothing is known of the job; GPU types compared by their data sheets"), Speed(1.0),
         "1.67 times as fast by the data sheets; its speed is not known"),
    ],
)  # fmt: skip
def test_a_ratio_is_not_shown_as_a_rate(old: Speed, new: Speed, words: str) -> None:
    job = Job(
        "1",
        Form(1),
        state=JobState.RUNNING,
        speeds={"p100": old, "v100": new},
        placement=Placement.of({"p": {"p100": 1}}),
    )
    snapshot = Snapshot(0.0, (), (job,))
    (change,) = changes_of(snapshot, Plan("x", {"1": Placement.of({"v": {"v100": 1}})}))
    assert change.why == words


def test_who_waits_beside_free_gpus_is_told_why(bench: Callable[..., Any]) -> None:
    """One type is not in its types=, another is slower for it; a gang that does not fit anywhere is told nothing."""
    b = bench({"v100-1": ("v100", 2), "k80-1": ("k80", 2)})
    choosy = b.slurm.submit(comment="hadar:model=resnet18,batch=64,types=v100")
    patient = b.slurm.submit(comment="hadar:model=resnet18,batch=64")
    wide = b.slurm.submit(gpus=2, comment="hadar:model=resnet18,batch=64")
    b.slurm.start(b.slurm.submit(gpus=1, comment=""), "k80-1")
    b.slurm.start(b.slurm.submit(gpus=2, comment=""), "v100-1")

    b.new_controller(policy=Scripted()).run_round()

    why = {job: b.journal.wait(job)["why"] for job in (choosy, patient, wide)}
    assert why[choosy] == "told to wait; k80 is free, but not in its types="
    assert why[patient].startswith("told to wait; k80 is free, but ") and why[patient].endswith(" times as slow for it")
    assert why[wide] == "told to wait"


def test_a_copy_is_not_told_of_gpus_beside_another_copy(bench: Callable[..., Any]) -> None:
    """On a node where a copy of its job runs there is no place for it, however fast."""
    b = bench({"v100-1": ("v100", 2), "k80-1": ("k80", 2)})
    fork = {"comment": "hadar:model=resnet18,batch=64,steps=200000,fork=auto", "array_id": "7"}
    running, waiting = (b.slurm.submit(**fork) for _ in range(2))
    plain = b.slurm.submit(gpus=2, comment="hadar:model=resnet18,batch=64,steps=200000")
    b.slurm.start(running, "k80-1")
    b.slurm.start(plain, "v100-1")

    b.new_controller(policy=get("hadare", fork="idle")).run_round()

    why = b.journal.wait(waiting)["why"]
    assert why.startswith("copy of job 7: its copy on k80-1 does the work") and "is free" not in why


def test_a_type_that_is_too_slow_for_the_time_limit_is_named_so(bench: Callable[..., Any]) -> None:
    b = bench({"v100-1": ("v100", 2), "k80-1": ("k80", 2)})
    job = b.slurm.submit(comment="hadar:model=resnet18,batch=64,steps=200000", time_limit_s=20000)
    b.slurm.start(b.slurm.submit(gpus=2, comment=""), "v100-1")

    seen = b.new_controller(policy=Scripted()).run_round().seen.snapshot.job[job]

    assert seen.form.types == {"v100"}
    assert b.journal.wait(job)["why"] == "told to wait; k80 is free, but too slow for its time limit"


def test_a_job_that_may_run_on_an_avoided_node_only_is_told_until_when(bench: Callable[..., Any]) -> None:
    b = bench({"v100-1": ("v100", 2), "k80-1": ("k80", 2)})
    job = b.slurm.submit(comment="hadar:model=resnet18,types=k80")
    b.new_controller(policy=Scripted()).run_round()
    record = b.journal.load_jobs()[job]
    record.keep_off(["k80-1"], time.time() + 100)
    b.journal.save_jobs([record])

    seen = b.new_controller(policy=Scripted()).run_round().seen.snapshot.job[job]

    assert seen.blocked is not None and "could run on k80-1 only" in seen.blocked
    assert seen.opens == record.avoid


def test_a_job_that_slurm_started_itself_has_a_history(bench: Callable[..., Any]) -> None:
    b = bench()
    ours, alone = b.slurm.submit(comment="hadar:model=resnet18"), b.slurm.submit(comment="hadar:pin=yes")
    b.slurm.start(alone, "k80-1")
    controller = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}}))
    for _ in range(3):
        controller.run_round()
    b.slurm.suspend(alone)
    controller.run_round()
    b.slurm.resume(alone)
    controller.run_round()

    events = {job: [e["event"] for e in b.journal.history(job) if "event" in e] for job in (ours, alone)}
    assert b.slurm.jobs[ours].state is JobState.RUNNING
    assert events == {ours: [], alone: ["slurm"]}


def test_a_job_that_was_suspended_is_booked_for_what_it_ran(bench: Callable[..., Any]) -> None:
    """Slurm shows when it first began, also of one that has just gone on."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment="hadar:model=resnet18")
    b.slurm.start(job, "v100-1")
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], start=time.time() - 100)
    controller = b.new_controller(policy=Scripted())
    controller.run_round()
    for _ in range(3):
        for change in (b.slurm.suspend, b.slurm.resume):
            change(job)
            controller.run_round()

    record = b.journal.load_jobs()[job]
    assert record.attained_s == pytest.approx(200, abs=20)
    assert sum(record.ran_s.values()) == pytest.approx(100, abs=10)
