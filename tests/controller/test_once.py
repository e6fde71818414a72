"""One round and no other (``hadar run --once``): nobody looks again for what comes late."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.controller.act.checkpoints import PROMPT_S
from slurm_hadar.controller.agents.reports import _MOST_UNKNOWN, ReportBook
from slurm_hadar.messages import Report, encode
from tests.controller.scripted import MODEL, Scripted, report

ME = str(os.getuid())
MOVE = {"v100-1": {"v100": 2}}


class Slow:
    """A channel whose jobs save at step 60, later than a round that others follow waits for."""

    quiet = False

    def __init__(self, bench: Any) -> None:
        self._bench = bench
        self.threads: list[threading.Timer] = []

    def order(self, job: str, kind: str, *_: Any, **__: Any) -> bool:
        if kind == "save":
            fields = {"resumable": True, "steps": 60, "saved_step": 60}
            self.threads.append(threading.Timer(PROMPT_S + 0.3, report, (self._bench, job, "saved"), fields))
            self.threads[-1].start()
        return True


def left(folder: Path, job: str, *reports: tuple[float, str, dict[str, Any]]) -> None:
    """Let the job's agent leave in its file what it has said: when, of what kind, and what."""
    spool = folder / ".hadar" / job / "spool.jsonl"
    spool.parent.mkdir(parents=True, exist_ok=True)
    lines = (
        encode(Report(kind, job, 0, seq, "a" * 64, at, "k80-1", **fields))
        for seq, (at, kind, fields) in enumerate(reports)
    )
    spool.write_bytes(b"".join(line + b"\n" for line in lines))


def once(bench: Any, policy: Any) -> Any:
    """Another run, which has heard nothing yet."""
    bench.book = ReportBook()
    return bench.new_controller(policy=policy, once=True).run_round()


@pytest.mark.parametrize("alone", [True, False])
def test_a_slow_checkpoint_is_waited_for(bench: Any, alone: bool) -> None:
    """Asked anew by each run, the job would never be moved. What it then says is not lost with the process either."""
    b = bench(None, "jobs.ack_timeout_s=30")
    job, channel = b.slurm.submit(gpus=2, comment=MODEL), Slow(b)
    b.slurm.start(job, "k80-1")
    report(b, job, "report", resumable=True, steps=10, total_steps=100, step="1.0", steps_per_s=5.0)

    result = b.new_controller(policy=Scripted(j1=MOVE), channel=channel, once=alone).run_round()
    for thread in channel.threads:
        thread.join()

    assert b.slurm.jobs[job].restarts == alone
    assert result.seen.records[job].saved_step == (60 if alone else None)


def test_a_job_that_has_begun_since_is_heard_at_once(bench: Any, tmp_path: Path) -> None:
    """The run before has seen it wait, or nothing of it: it left its first words since."""
    b = bench()
    for seen in (True, False):
        job = b.slurm.submit(gpus=2, comment=MODEL, work_dir=str(tmp_path), user=ME)
        if seen:
            once(b, Scripted())
        b.slurm.start(job, "k80-1" if seen else "v100-1")
        b.slurm.vouch(job)
        left(tmp_path, job, (time.time(), "report", {"steps": 7}))

    result = once(b, Scripted())

    assert [result.seen.records[job].steps for job in ("1", "2")] == [7, 7]


def test_how_long_a_start_took_is_what_it_was(bench: Any, tmp_path: Path) -> None:
    """Each run reads anew what a job has left in an hour: its first step was not made just now. Nor was the first of
    a job that is heard for the first time in the midst of its run; and what tells of its begin may be cut off later."""
    b, began = bench(), time.time() - 3600.0
    for job, node, rate in (("1", "k80-1", None), ("2", "v100-1", 1.0)):
        b.slurm.submit(gpus=2, comment=MODEL, work_dir=str(tmp_path), user=ME)
        b.slurm.start(job, node)
        b.slurm.jobs[job] = replace(b.slurm.jobs[job], start=began)
        b.slurm.vouch(job)
        first = (began + 9.0, "report", {"steps": 900, "steps_per_s": rate})
        left(tmp_path, job, first, (began + 20.0, "report", {"steps": 905, "steps_per_s": 1.0}))
    once(b, Scripted())
    after_a_save = (began + 1800.0, "report", {"steps": 2000})
    left(tmp_path, "1", after_a_save, (began + 1810.0, "report", {"steps": 2010}))

    records = once(b, Scripted()).seen.records

    assert records["1"].steps == 2010 and records["1"].start_s == pytest.approx(20.0, abs=1.5)
    assert records["2"].steps == 905 and records["2"].start_s is None


def test_the_files_of_many_jobs_are_all_heard(bench: Any, tmp_path: Path) -> None:
    """More jobs than strangers may speak of before a round has seen them: these are known."""
    b = bench({f"k80-{i}": ("k80", 1) for i in range(_MOST_UNKNOWN + 2)})
    jobs = [b.slurm.submit(comment=MODEL, work_dir=str(tmp_path), user=ME) for _ in b.slurm.nodes]
    for job, node in zip(jobs, b.slurm.nodes, strict=True):
        b.slurm.start(job, node)
        b.slurm.vouch(job)
    once(b, Scripted())
    for job in jobs:
        left(tmp_path, job, (time.time(), "report", {"steps": 7}))

    records = once(b, Scripted()).seen.records

    assert {records[job].steps for job in jobs} == {7}
