"""A controller that comes after another one, which may have been killed at any moment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.controller.scripted import MODEL, Scripted, eligible_in, report


def test_a_new_controller_knows_what_the_old_one_steered(bench: Any) -> None:
    """Killed after a placement, the next start does not take our node list for the owner's."""
    b = bench({"v100-1": ("v100", 1), "k80-1": ("k80", 1)})
    job = b.slurm.submit(gpus=1, comment=MODEL + ",ckpt=yes")
    b.new_controller(policy=Scripted(j1={"k80-1": {"k80": 1}})).run_round()
    assert b.slurm.jobs[job].req_nodes == ("k80-1",)

    b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}})).run_round()

    assert b.slurm.jobs[job].nodes == ("v100-1",)


class Killed(BaseException):
    """Ends the controller between a write and whatever it would do next."""


def killed_after_writing(bench: Any, controller: Any) -> None:
    """One round that ends with its first batch of writes, as by SIGKILL: nothing of it is remembered."""
    write, save = bench.slurm.write, bench.journal.save_jobs

    def die(writes: Any) -> None:
        write(writes)
        bench.journal.save_jobs = lambda _records: None
        raise Killed

    bench.slurm.write = die
    with pytest.raises(Killed):
        controller.run_round()
    bench.slurm.write, bench.journal.save_jobs = write, save


def test_killed_after_a_lease(bench: Any) -> None:
    """The next controller takes the start time for its own, not for the owner's wish, and starts the job."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL)
    killed_after_writing(b, b.new_controller(policy=Scripted()))
    assert eligible_in(b, job) > 10

    b.new_controller(policy=Scripted(j1={"k80-1": {"k80": 2}})).run_round()

    assert b.slurm.jobs[job].nodes == ("k80-1",)


def test_killed_after_a_requeue(bench: Any) -> None:
    """Planned for the very nodes it had, the job does not wait for the end of Slurm's delay of two minutes."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL + ",ckpt=yes")
    b.new_controller(policy=Scripted(j1={"k80-1": {"k80": 2}})).run_round()
    killed_after_writing(b, b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}})))
    assert eligible_in(b, job) > 100 and b.slurm.jobs[job].req_nodes == ("k80-1",)

    b.new_controller(policy=Scripted(j1={"k80-1": {"k80": 2}})).run_round()

    assert b.slurm.jobs[job].nodes == ("k80-1",)


def test_a_restart_that_slurmctld_forgot_in_a_crash(bench: Any) -> None:
    """The job is known still, with its first arrival, and its node list is ours."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL + ",ckpt=yes")
    b.new_controller(policy=Scripted(j1={"k80-1": {"k80": 2}})).run_round()
    before = b.slurm.jobs[job]
    b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}})).run_round()
    arrival = b.journal.load_jobs()[job].arrival
    b.slurm.jobs[job] = before

    result = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}})).run_round()

    assert b.slurm.jobs[job].nodes == ("v100-1",) and result.record.moves == 1
    assert b.journal.load_jobs()[job].arrival == arrival


def test_a_lost_journal_pins_what_it_cannot_tell(bench: Any) -> None:
    """Without memory a steered pending job is left to Slurm, never lost; its lease runs out by itself."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL, req_nodes=("v100-1",))

    b.controller.run_round()

    assert not any(w.verb == "update" for batch in b.slurm.batches for w in batch)
    assert "asks for nodes by name" in b.journal.wait(job)["why"]


def test_a_restart_between_two_rounds_loses_no_count(bench: Any) -> None:
    """The checkpoint of the run that is over counts, even if the next run has reported already."""
    b = bench()
    job = b.slurm.submit(gpus=2, comment=MODEL)
    b.slurm.start(job, "v100-1")
    report(b, job, "hello", resumable=True, steps=10)
    b.controller.run_round()
    report(b, job, "saved", resumable=True, steps=50, saved_step=50)
    report(b, job, "hello", restart=1, resumable=True, steps=50)
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], restarts=1)

    b.controller.run_round()

    record = b.journal.load_jobs()[job]
    assert (record.lost_steps, record.saved_step, record.steps) == (0.0, 50, 50)
    told = [e["why"] for e in b.journal.history(job) if e.get("event") == "restart"]
    assert told == ["run 2 from its checkpoint at step 50"]
