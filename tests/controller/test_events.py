"""What brings the next round forward, and what Slurm shows in an order of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.observe.jobs import newcomers
from slurm_hadar.controller.observe.jobs.newcomers import Newcomers
from slurm_hadar.controller.observe.jobs.vacancies import Vacancies
from slurm_hadar.messages import Report, token_fingerprint
from slurm_hadar.model import JobState


def report(bench: Any, job: str, kind: str = "report", **fields: Any) -> None:
    """Let the job's agent say something, and take it for no news by itself."""
    bench.slurm.vouch(job)
    bench.book.ingest(Report(kind, job, 0, time.time_ns() // 1000, "a" * 64, time.time(), "v100-1", **fields))
    bench.book.event.clear()


def test_a_job_that_has_said_goodbye_and_still_holds_its_gpus_calls_for_another_round(bench: Any) -> None:
    """Its last word comes before Slurm has freed its nodes: the round that it calls for may see it running still."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment="hadar:model=resnet18,batch=64,steps=20000")
    controller = b.new_controller()
    controller.run_round()
    report(b, job)

    controller.run_round()
    assert not b.book.event.is_set()
    report(b, job, "bye", exit_code=0)
    controller.run_round()
    assert b.book.event.is_set()
    b.book.event.clear()
    b.slurm.end(job)
    controller.run_round()
    assert not b.book.event.is_set()


def test_a_goodbye_of_long_ago_calls_for_nothing(bench: Any) -> None:
    """The script goes on with something else after its training: no reason for early rounds until it ends."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment="hadar:model=resnet18,batch=64,steps=20000")
    controller = b.new_controller()
    controller.run_round()
    report(b, job, "bye", exit_code=0)
    b.book.expect({job: token_fingerprint("a" * 64)})
    b.book.get(job).heard -= 600

    controller.run_round()

    assert not b.book.event.is_set()


def test_a_requeue_that_shows_its_count_before_its_time_is_the_same_job(bench: Any) -> None:
    """Slurm since 24.11: COMPLETING with the next restart count and the old submit time, then PENDING with the new one.
    Its node list is still known to be ours, so it can go elsewhere."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment="hadar:model=resnet18,batch=64,steps=20000")
    controller = b.new_controller()
    controller.run_round()
    first = b.journal.load_jobs()[job]
    (node,) = b.slurm.jobs[job].nodes
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], state=JobState.COMPLETING, restarts=1)
    controller.run_round()
    later = first.submit + 30
    b.slurm.jobs[job] = replace(
        b.slurm.jobs[job], state=JobState.PENDING, submit=later, nodes=(), req_nodes=(node,), start=None
    )
    b.slurm.drain([node])

    seen = controller.run_round().seen

    assert seen.snapshot.job[job].pinned is None and seen.snapshot.job[job].arrival == first.arrival
    assert b.slurm.jobs[job].nodes and b.slurm.jobs[job].nodes != (node,)


def test_a_move_costs_a_job_that_cannot_save_all_that_it_has_run(bench: Any) -> None:
    """With lose=yes it may be moved, but not for nothing; one that saves loses nothing."""
    b = bench()
    loses, saves = (
        b.slurm.submit(gpus=1, comment=f"hadar:model=resnet18,batch=64,steps=20000,{how},restart=5")
        for how in ("lose=yes", "ckpt=yes")
    )
    b.slurm.start(loses, "v100-1")
    b.slurm.start(saves, "k80-1")
    for job in (loses, saves):
        b.slurm.jobs[job] = replace(b.slurm.jobs[job], start=time.time() - 1000)

    seen = b.new_controller("controller.mode=observe").run_round().seen.snapshot.job

    assert 1000 <= seen[loses].restart_cost_s - 5 < 1100
    assert seen[saves].restart_cost_s == 5


@pytest.mark.parametrize(
    ("comments", "news"),
    [((), False), (("hadar:model=lm",), True), (("", "of somebody"), False), (("", "hadar:"), True)],
)
def test_jobs_of_ours_that_are_submitted_are_noticed_once(bench: Any, comments: tuple[str, ...], news: bool) -> None:
    b = bench()
    b.slurm.submit()
    watch = Newcomers(b.slurm)
    watch.begin()
    for comment in comments:
        b.slurm.submit(comment=comment)

    assert watch.come() is news
    assert watch.come() is False


def test_among_many_new_jobs_one_is_taken_to_be_ours(bench: Any) -> None:
    b = bench()
    watch = Newcomers(b.slurm)
    watch.begin()
    for _ in range(newcomers._MOST + 1):  # noqa: SLF001
        b.slurm.submit(comment="")

    assert watch.come()


def test_without_an_answer_nobody_has_come(bench: Any) -> None:
    """And it is asked again after the next round only, which has troubles of its own then."""
    b = bench()
    watch = Newcomers(b.slurm)
    watch.begin()
    b.slurm.submit()
    b.slurm.away = True
    assert not watch.come()
    b.slurm.away = False
    assert not watch.come()
    b.slurm.away = True
    watch.begin()
    b.slurm.away = False
    assert not watch.come()


def _beside(controller: Any, life: Callable[[], object]) -> object:
    """What ``life`` gives while the controller runs, which ends with it."""
    found: list[object] = []

    def live() -> None:
        try:
            found.append(life())
        finally:
            controller.stop()

    thread = threading.Thread(target=live)
    thread.start()
    controller.run()
    thread.join()
    return found and found[0]


def test_a_job_that_is_submitted_brings_the_next_round_forward(bench: Any, poll: Any) -> None:
    """Not closer than controller.event_round_s to the last one."""
    b = bench(None, "controller.round_s=600", "controller.event_round_s=0.2")

    def user() -> object:
        poll(lambda: b.slurm.reads)
        job = b.slurm.submit()
        return poll(lambda: b.slurm.jobs[job].state is JobState.RUNNING)

    assert _beside(b.new_controller(), user) is True


@pytest.mark.parametrize("who", ["started by the round", "of somebody"])
def test_gpus_that_fall_free_without_a_word_bring_the_next_round_forward(bench: Any, poll: Any, who: str) -> None:
    """A plain script that ends, or is killed, reports nothing."""
    b = bench({"v100-1": ("v100", 1)}, "controller.round_s=600", "controller.event_round_s=0.2")
    jobs = b.slurm.jobs
    if who == "of somebody":
        b.slurm.start(b.slurm.submit(comment=""), "v100-1")
    else:
        b.slurm.submit()
    b.slurm.submit()

    def life() -> object:
        (runs,) = poll(lambda: b.slurm.batches and [j for j in jobs if jobs[j].state is JobState.RUNNING])
        (waits,) = {*jobs} - {runs}
        b.slurm.end(runs)
        return poll(lambda: jobs[waits].state is JobState.RUNNING)

    assert _beside(b.new_controller(), life) is True


def test_slurm_is_asked_for_free_gpus_only_while_somebody_waits(bench: Any) -> None:
    b = bench({"v100-1": ("v100", 1)})
    runs = b.slurm.submit(comment="")
    b.slurm.start(runs, "v100-1")
    watch = Vacancies(b.slurm)
    watch.begin(b.slurm.read().nodes)
    b.slurm.away = True  # an answer would be an error
    assert not watch.come()
    watch.settle({}, ())
    assert not watch.come()  # asked, without an answer
    b.slurm.away = False
    b.slurm.end(runs)
    assert not watch.come()  # not asked any more
    watch.begin(b.slurm.read().nodes)
    watch.settle({}, ())
    assert not watch.come()


def test_what_a_round_stops_is_no_vacancy(bench: Any) -> None:
    """Nor is who has come meanwhile; who leaves after that is."""
    b = bench({"v100-1": ("v100", 2)})
    first, second = b.slurm.submit(comment=""), b.slurm.submit(comment="")
    b.slurm.start(first, "v100-1")
    watch = Vacancies(b.slurm)
    watch.begin(b.slurm.read().nodes)
    b.slurm.end(first)
    watch.settle({}, {"v100-1"})
    assert not watch.come()
    b.slurm.start(second, "v100-1")
    assert not watch.come()
    b.slurm.end(second)
    assert watch.come()
