"""What brings the next round forward."""

from __future__ import annotations

import time

from slurm_hadar.messages import Report


def report(bench, job: str, kind: str = "report", **fields) -> None:
    """Let the job's agent say something, and take it for no news by itself."""
    bench.book.ingest(Report(kind, job, 0, time.time_ns() // 1000, "a" * 64, time.time(), "v100-1", **fields))
    bench.book.event.clear()


def test_a_job_that_has_said_goodbye_and_still_holds_its_gpus_calls_for_another_round(bench) -> None:
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


def test_a_goodbye_of_long_ago_calls_for_nothing(bench) -> None:
    """The script goes on with something else after its training: no reason for early rounds until it ends."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment="hadar:model=resnet18,batch=64,steps=20000")
    controller = b.new_controller()
    controller.run_round()
    report(b, job, "bye", exit_code=0)
    b.book.get(job).heard -= 600

    controller.run_round()

    assert not b.book.event.is_set()
