"""Who may be stopped: only a job that can save, has saved, and has not come to its end meanwhile."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.agents.reports import FINISHES_WITHIN_S
from slurm_hadar.messages import token_fingerprint
from slurm_hadar.model import JobState
from tests.controller.scripted import MODEL, Scripted, report

MOVE = {"v100-1": {"v100": 2}}


class Answering:
    """A channel whose jobs answer the wish for a checkpoint at once, at step ``step`` of 100, or not at all."""

    quiet = False

    def __init__(self, bench: Any, step: int | None) -> None:
        self._bench, self._step = bench, step
        self.orders: list[str] = []

    def order(self, job: str, kind: str, *_: Any, **__: Any) -> bool:
        self.orders.append(kind)
        if kind == "save" and self._step is not None:
            report(self._bench, job, "saved", resumable=True, steps=self._step, total_steps=100, saved_step=self._step)
        return True


def running(b: Any) -> str:
    """A job of two GPUs that reports, on a k80 node."""
    job = b.slurm.submit(gpus=2, comment=MODEL)
    b.slurm.start(job, "k80-1")
    report(b, job, "report", resumable=True, steps=10, total_steps=100, step="1.0", steps_per_s=5.0)
    return job


def test_a_job_without_checkpoint_support_is_not_moved(bench: Any) -> None:
    """Nothing says that it may lose progress, so it stays."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL)
    b.slurm.start(job, "k80-1")

    b.controller.run_round()

    assert b.slurm.jobs[job].nodes == ("k80-1",) and b.slurm.jobs[job].restarts == 0


def told_to_move(b: Any, step: str) -> Any:
    """Job 1, which runs on k80-1, has told that it can be asked to save by a signal to ``step``, and is to be moved."""
    job = b.slurm.submit(gpus=2, comment=MODEL)
    b.slurm.start(job, "k80-1")
    report(b, job, "report", resumable=True, steps=10, step=step, steps_per_s=5.0)
    return job, b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}})).run_round()


def test_a_job_that_does_not_acknowledge_is_not_moved(bench: Any) -> None:
    """The wait for a checkpoint is bounded, and ends with the job where it was."""
    b = bench()
    job, result = told_to_move(b, "1.0")

    assert b.slurm.jobs[job].nodes == ("k80-1",)
    assert b.slurm.signals == [("1.0", "USR2")]
    assert "no checkpoint within" in result.changes[0].why


@pytest.mark.parametrize(("begun", "unsaved"), [({"resumable": True, "steps": 10}, 1), ({}, 0), ({"steps": 0}, 0)])
def test_a_job_that_is_still_loading_breaks_no_promise(
    bench: Any, monkeypatch: pytest.MonkeyPatch, begun: dict[str, Any], unsaved: int
) -> None:
    """Its run before has said that it saves. It is asked again as soon as it may have begun."""
    monkeypatch.setattr("slurm_hadar.controller.observe.job_views._MEASURED_WITHIN_S", -1.0)  # nor is it waited for
    b = bench()
    job = running(b)
    b.new_controller(policy=Scripted(j1={"k80-1": {"k80": 2}})).run_round()
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], restarts=1)
    report(b, job, "hello", restart=1, step="1.0", **begun)

    result = b.new_controller(policy=Scripted(j1=MOVE)).run_round()

    record, limit_s = result.seen.records[job], b.config().jobs.ack_timeout_s
    assert (b.slurm.jobs[job].nodes, b.slurm.jobs[job].restarts) == (("k80-1",), 1)
    assert ("training has not begun" in result.changes[0].why) is (unsaved == 0)
    assert record.unsaved == unsaved and (record.unsaved_until <= time.time() + limit_s) is (unsaved == 0)


def test_a_step_of_another_job_is_not_signalled(bench: Any) -> None:
    """Whatever a report says: who has no handler is killed by it."""
    b = bench()
    job, result = told_to_move(b, "17.0")

    assert b.slurm.signals == [] and b.slurm.jobs[job].nodes == ("k80-1",)
    assert "cannot be reached" in result.changes[0].why


def test_gpus_of_a_job_that_could_not_be_stopped_are_not_given_away(bench: Any) -> None:
    """Who counted on them waits; capacity is never exceeded."""
    b = bench({"v100-1": ("v100", 2)})
    running = b.slurm.submit(gpus=2, comment=MODEL)
    b.slurm.start(running, "v100-1")
    report(b, running, "report", resumable=True, steps=10, step="1.0", steps_per_s=5.0)
    waiting = b.slurm.submit(gpus=2, comment=MODEL)

    result = b.new_controller(policy=Scripted(j2={"v100-1": {"v100": 2}})).run_round()

    assert b.slurm.jobs[running].state is JobState.RUNNING
    assert b.slurm.jobs[waiting].state is JobState.PENDING and b.slurm.jobs[waiting].req_nodes == ()
    assert "did not come free" in next(c.why for c in result.changes if c.job_id == waiting)


def test_a_job_that_has_saved_is_moved(bench: Any) -> None:
    """Its word comes through the channel."""
    b = bench()
    job, channel = running(b), Answering(b, 60)

    b.new_controller(policy=Scripted(j1=MOVE), channel=channel).run_round()

    assert (b.slurm.jobs[job].nodes, b.slurm.jobs[job].restarts) == (("v100-1",), 1)
    assert channel.orders == ["save"]


@pytest.mark.parametrize("ends", [False, True])
def test_who_stands_still_goes_on_where_nothing_is_carried_out_any_more(bench: Any, ends: bool) -> None:
    """It was asked to save for a move, and takes its time. The controller is told to observe only, or ends."""
    b = bench(None, "jobs.ack_timeout_s=600")
    running(b)
    channel = Answering(b, None)
    controller = b.new_controller(policy=Scripted(j1=MOVE), channel=channel)
    controller.run_round()
    assert channel.orders == ["save"]

    if ends:
        controller.stop()
        controller.run()
    else:
        controller.reconfigure(b.config("controller.mode=observe"), Scripted(j1=MOVE))
        controller.run_round()

    assert channel.orders == ["save", "go_on"]


def test_a_job_that_makes_its_last_step_instead_is_not_stopped(bench: Any) -> None:
    """Its last checkpoint looks like an answer; stopped then, its script would come to its end twice."""
    b = bench()
    job, channel = running(b), Answering(b, 100)

    result = b.new_controller(policy=Scripted(j1=MOVE), channel=channel).run_round()

    assert b.slurm.jobs[job].restarts == 0
    assert "has made its last step" in result.changes[0].why
    assert channel.orders == ["save", "go_on"]


@pytest.mark.parametrize(("ago_s", "stopped"), [(1.0, False), (FINISHES_WITHIN_S + 1.0, True)])
def test_a_job_after_its_last_step(bench: Any, ago_s: float, stopped: bool) -> None:
    """It is not even asked, unless it has gone on for so long that it must be doing something else."""
    b = bench()
    job, channel = running(b), Answering(b, 100)
    report(b, job, resumable=True, steps=100, total_steps=100)
    b.book.expect({job: token_fingerprint("a" * 64)})
    b.book.get(job).done_at = time.time() - ago_s

    b.new_controller(policy=Scripted(j1=MOVE), channel=channel).run_round()

    assert b.slurm.jobs[job].restarts == int(stopped)
    assert ("save" in channel.orders) is stopped
