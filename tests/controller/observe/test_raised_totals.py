"""A stated total that is raised again and again tells nothing of how long a job is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.cli.jobs.explain import _explanation
from slurm_hadar.controller.agents.reports import ReportBook
from slurm_hadar.controller.answers.expectation import Answer
from slurm_hadar.controller.answers.lines import size_source
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.model import EMPTY, MOST_RAISED, Form, Job, JobState
from slurm_hadar.policies import registry
from tests.controller.observe.test_reckoned_steps import RAN_S, begin, look
from tests.controller.scripted import report


@pytest.fixture
def one(bench: Callable[..., Any]) -> Any:
    return bench({"v100-1": ("v100", 1)})


def hear(bench: Any, job: str, controller: Any, *told: tuple[int, int], restart: int = 0) -> Job:
    """What the training tells, a round after each word: its steps, of how many."""
    for steps, total in told:
        report(bench, job, restart=restart, steps=steps, total_steps=total)
        seen = look(bench, job, controller)
    return seen


def requeue(bench: Any, job: str, restart: int) -> None:
    """Another run, from the checkpoint that was saved."""
    bench.slurm.jobs[job] = replace(bench.slurm.jobs[job], restarts=restart, submit=time.time(), start=time.time())


def nearly_done(times: int, first: int = 0) -> list[tuple[int, int]]:
    """Always with a fifth left, or less, stated anew so many times."""
    return [(4_000 * (n + 1) + 3_000, 5_000 * (n + 1) + 3_000) for n in range(first, first + times)]


def test_always_nearly_done(one: Any) -> None:
    """It counts as known to be longer than was stated as soon as that was raised too often, and is taken to go on for
    as long again as it has run."""
    job, controller = begin(one, "steps=1000"), one.new_controller()

    before = hear(one, job, controller, *nearly_done(MOST_RAISED + 1))
    after = hear(one, job, controller, *nearly_done(1, MOST_RAISED + 1))

    assert not before.overrun and before.expected_remaining_steps == 1_000 * (MOST_RAISED + 1)
    assert after.overrun
    assert after.expected_remaining_steps == pytest.approx(RAN_S * after.rate(after.placement), rel=0.01)


def test_it_is_told_once_and_kept(one: Any) -> None:
    """In the job's history, and over a restart of the controller that forgets what was reported."""
    job, controller = begin(one, "steps=1000"), one.new_controller()
    hear(one, job, controller, *nearly_done(MOST_RAISED + 3))

    told = [e["why"] for e in one.journal.history(job) if e.get("event") == "raised"]
    one.book = ReportBook()

    assert len(told) == 1 and told[0].startswith(f"its stated total was raised {MOST_RAISED + 1} times, to 58000 steps")
    assert look(one, job).overrun


def test_ever_new_short_trainings_are_a_total_that_is_raised(one: Any) -> None:
    """Each states as many steps as the one before, and the job is nearly done in each."""
    job, controller = begin(one, "steps=1000"), one.new_controller()
    trainings = [(100, 50_000), (45_000, 50_000)]

    assert not hear(one, job, controller, *trainings * (MOST_RAISED + 1)).overrun
    assert hear(one, job, controller, *trainings).overrun


def test_small_corrections_count_in_sum(one: Any) -> None:
    """As of a total in whole epochs that a script has rounded; what grows on by a twentieth each time does not stay."""
    job, controller = begin(one, "steps=1000"), one.new_controller()

    corrected = [(100 * n, total) for n, total in enumerate((50_000, 51_500, 50_500, 52_000, 52_500))]
    assert hear(one, job, controller, *corrected).raised == 0
    assert hear(one, job, controller, *[(600, round(50_000 * 1.04**n)) for n in range(25)]).overrun


@pytest.mark.parametrize("phases", [(1000, 20000), (20000, 1000), (1000, 2000, 20000), (1000,) * 10])
def test_several_trainings_are_believed(one: Any, phases: tuple[int, ...]) -> None:
    """Whichever is the longest, and however often the job is stopped and goes through those that are over again."""
    job, controller = begin(one, "steps=1000"), one.new_controller()
    over = [(total, total) for total in phases]
    for restart in range(5):
        if restart:
            requeue(one, job, restart)
        seen = hear(one, job, controller, *over[:-1], (phases[-1] // 2, phases[-1]), restart=restart)

    assert not seen.overrun
    assert seen.expected_remaining_steps == phases[-1] - phases[-1] // 2


def test_a_longer_statement_is_believed_all_the_same() -> None:
    seen = Job("1", Form(1), total_steps=1e6, done_steps=100.0, raised=MOST_RAISED + 1)

    assert seen.overrun and seen.expected_remaining_steps == 1e6 - 100


def test_one_that_waits_is_no_shorter(one: Any) -> None:
    """Its newest training may just have begun; what it had run before counts, as long as it goes on from there."""
    job, controller = begin(one, "steps=1000"), one.new_controller()
    hear(one, job, controller, *nearly_done(MOST_RAISED + 2))
    report(one, job, steps=10, total_steps=50_000, saved_step=10)
    ran = look(one, job, controller).reckoned_steps
    requeue(one, job, 1)
    one.slurm.jobs[job] = replace(one.slurm.jobs[job], state=JobState.PENDING, start=None, nodes=())

    seen = look(one, job, controller)

    assert seen.state is JobState.PENDING and seen.done_steps == 10
    assert seen.expected_remaining_steps == pytest.approx(ran, rel=0.01)


@pytest.mark.parametrize("policy", ["srtf", "hadar"])
def test_it_gains_nothing_by_that(bench: Any, policy: str) -> None:
    """A job with less to go has its place, as it would if the liar had stated what it makes."""
    one = bench({"v100-1": ("v100", 1)}, "guard.min_run_s=0")
    controller = one.new_controller(policy=registry.get(policy))
    liar = begin(one, "steps=8000,restart=30")
    _changed(one, liar, controller, [(0, 8_000), (10, 8_000)])
    honest = one.slurm.submit(1, "hadar:model=resnet18,batch=64,steps=80000,restart=30", user="ann")

    before = _changed(one, liar, controller, nearly_done(MOST_RAISED + 1))
    after = _changed(one, liar, controller, nearly_done(1, MOST_RAISED + 1))

    assert before == {liar: "stay", honest: "wait"} and after == {liar: "preempt", honest: "start"}


def _changed(bench: Any, job: str, controller: Any, told: list[tuple[int, int]]) -> dict[str, str]:
    for steps, total in told:
        report(bench, job, steps=steps, total_steps=total)
        changes = controller.run_round().changes
    return {c.job_id: str(c.kind) for c in changes}


def test_what_is_said_of_it() -> None:
    """It is not told to be nearly done."""
    record = JobRecord("7", steps=98.0, total_steps=100.0, reported=True, raised=MOST_RAISED + 1)
    expected = Answer("7", True, None, None, EMPTY, 1e6, (), (), outrun_steps=196.0)
    few = replace(record, raised=MOST_RAISED)

    told = list(_explanation("7", record, None, None, expected, {}))

    assert "  size         not known: its stated total was raised 10 times, taken to be 196 steps now" in told
    assert (size_source(record), size_source(few)) == ("", "reported")
