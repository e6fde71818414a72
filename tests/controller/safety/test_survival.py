"""What a controller must survive without a Slurm of its own to break: full disks, damaged journals, lost nodes."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_hadar.controller.answers.trends import trend_of
from slurm_hadar.controller.answers.view import recorded_lines, recorded_nodes
from slurm_hadar.controller.journal import Journal
from slurm_hadar.errors import SlurmUnavailable, StoreError
from slurm_hadar.model import JobState, Plan, Tier, Wait
from slurm_hadar.policies.base import Policy
from tests.controller.scripted import Scripted, report


def test_a_lost_journal_does_not_nail_jobs_to_their_nodes(bench: Callable[..., Any]) -> None:
    """Node list and shape were the controller's; the job's comment says so, and what its owner asked for."""
    one = bench({"v100-1": ("v100", 2), "k80-1": ("k80", 2)})
    job = one.slurm.submit(2, "hadar:model=resnet18")
    one.slurm.stuck[job] = "Resources"
    one.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}})).run_round()
    assert one.slurm.jobs[job].req_nodes == ("v100-1",)
    assert one.slurm.jobs[job].comment.startswith("hadar:model=resnet18,asked=2/1/1/1/")

    one.journal = Journal(":memory:")
    one.slurm.drain(["v100-1"])
    del one.slurm.stuck[job]
    result = one.new_controller(policy=Scripted(j1={"k80-1": {"k80": 2}})).run_round()

    assert result.seen.snapshot.job[job].pinned is None
    assert (one.slurm.jobs[job].state, one.slurm.jobs[job].nodes) == (JobState.RUNNING, ("k80-1",))


def test_what_the_owner_asked_for_by_name_stays(bench: Callable[..., Any]) -> None:
    """Without the controller's mark a node list is the owner's."""
    one = bench()
    job = one.slurm.submit(1, "hadar:", req_nodes=("k80-1",))

    result = one.controller.run_round()

    assert "by name" in result.seen.snapshot.job[job].pinned and not one.slurm.batches


@pytest.mark.parametrize("answers", [True, False])
def test_writes_are_in_the_journal_before_slurm_hears_of_them(bench: Callable[..., Any], answers: bool) -> None:
    """And say that nobody knows what came of them, until Slurm has answered."""
    one = bench()
    before: list[str] = []
    job = one.slurm.submit()
    write = one.slurm.write

    def watched(batch: Any) -> Any:
        before.extend(e["outcome"] for e in one.journal.history(job) if "command" in e)
        if not answers:
            raise SlurmUnavailable("slurmctld does not answer")
        return write(batch)

    one.slurm.write = watched
    one.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}})).run_round()

    after = [e["outcome"] for e in one.journal.history(job) if "command" in e]
    assert before == ["sent"] and after == (["ok"] if answers else ["sent"])


def full(journal: Journal, pages: int | None) -> None:
    """Let SQLite take no more pages than it has, as a full disk would; None = as many as it likes."""
    count = journal.connection.execute("PRAGMA page_count").fetchone()[0] if pages is not None else 1 << 30
    journal.connection.execute(f"PRAGMA max_page_count={count}")


def test_a_full_disk_stops_acting_and_not_the_controller(bench: Callable[..., Any]) -> None:
    """What cannot be written down is not done; when there is room again, rounds go on."""
    one = bench()
    jobs = [one.slurm.submit(comment="hadar:model=" + "m" * 60) for _ in range(40)]
    one.journal.connection.execute("VACUUM")
    full(one.journal, 0)

    skipped = one.controller.run_round()

    assert skipped.plan is None and "full" in skipped.record.note and not one.slurm.batches
    full(one.journal, None)
    one.controller.run_round()
    assert one.slurm.batches and {j.job_id for j in one.journal.jobs_since(0)} == set(jobs)


QUOTA = """
import resource, sys
from pathlib import Path
from slurm_hadar.controller.journal import Journal, JobRecord
from slurm_hadar.errors import StoreError
journal = Journal(Path(sys.argv[1]))
held = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 17, held[1]))
many = [JobRecord(str(n), name="x" * 500) for n in range(1000)]
try:
    journal.save_jobs(many)
except StoreError as error:
    print(error.passes, "quota" in str(error))
resource.setrlimit(resource.RLIMIT_FSIZE, held)
journal.save_jobs(many)
print(len(journal.load_jobs()))
"""


def test_a_quota_that_is_used_up_is_a_full_disk(tmp_path: Path) -> None:
    """Of which SQLite says nothing but that it could not write."""
    done = subprocess.run([sys.executable, "-c", QUOTA, str(tmp_path / "j.db")], capture_output=True, text=True)
    assert done.stdout.split() == ["True", "True", "1000"], done.stderr


def test_a_job_that_ended_while_the_disk_was_full_is_known_to_have_ended(bench: Callable[..., Any]) -> None:
    """Its record is kept until it can be written."""
    one = bench()
    job = one.slurm.submit()
    one.controller.run_round()
    one.slurm.end(job)
    save = one.journal.save_jobs

    def no_room(_records: Any) -> None:
        raise StoreError("database or disk is full", passes=True)

    one.journal.save_jobs = no_room
    assert one.controller.run_round().plan is None
    one.journal.save_jobs = save
    one.controller.run_round()

    assert one.journal.job(job).ended is not None


def test_a_broken_journal_ends_the_controller_with_one_line(bench: Callable[..., Any]) -> None:
    """Waiting would not mend it; started again, the controller moves it aside."""
    one = bench()
    one.slurm.submit()
    one.journal.connection.execute("DROP TABLE rounds")

    with pytest.raises(StoreError, match="no such table"):
        one.controller.run_round()


@pytest.mark.parametrize("spoilt", ["{", '"text"', "\xff\x00", '{"job_id":"1","steps":"many"}', "[]", '{"steps":1}'])
def test_damaged_rows_are_left_out(tmp_path: Path, spoilt: str) -> None:
    """A row in which letters changed costs what it told, not the start of the controller."""
    path = tmp_path / "journal.db"
    journal = Journal(path)
    journal.close()
    good = json.dumps({"job_id": "2", "arrival": 7})
    with sqlite3.connect(path) as db:
        db.executemany("INSERT INTO jobs VALUES (?, NULL, ?)", [("1", spoilt), ("2", good)])
        db.execute("INSERT INTO jobs VALUES ('3', NULL, CAST(x'ff7b22' AS TEXT))")
        db.execute("INSERT INTO usage VALUES ('ann', 'lab', 'v100', 'x', 1.0)")
        db.execute("INSERT INTO waits VALUES ('1', 1, '{{', NULL, NULL)")
    db.close()

    journal = Journal(path)

    assert {job: r.arrival for job, r in journal.load_jobs().items()} == {"2": 7}
    assert (journal.usage(), journal.waits(), journal.job("1"), journal.wait("1")) == ({}, {}, None, None)
    assert journal.moved_aside is None


def test_damaged_rows_cost_no_page(bench: Callable[..., Any]) -> None:
    """Nor the terminal: the other jobs and nodes are shown as ever."""
    one = bench({"v100-1": ("v100", 2), "k80-1": ("k80", 2)})
    for _ in range(3):
        one.slurm.submit()
    one.controller.run_round()
    db = one.journal.connection
    db.execute("UPDATE nodes SET record = '{\"gpus' WHERE node = 'k80-1'")
    db.execute("UPDATE queue SET held = '{', forecast = '[', shares = '7' WHERE job_id = '1'")
    db.execute("UPDATE waits SET record = '{' WHERE job_id = '2'")
    rows, _ = one.journal.queue_page()

    assert {line.job_id for line in recorded_lines(rows)} == {"1", "2", "3"}
    assert [node.name for node in recorded_nodes(one.journal)] == ["v100-1"]
    assert len(trend_of(one.journal).times) == 1


def test_a_job_whose_node_was_lost_is_not_started_there_again_at_once(bench: Callable[..., Any]) -> None:
    """What is left of the lost run is ended when the node is back, and the new run would be ended with it."""
    one = bench()
    job = one.slurm.submit()
    controller = one.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}}))
    controller.run_round()
    controller.run_round()
    assert one.slurm.jobs[job].nodes == ("v100-1",)
    one.slurm.drain(["v100-1"])
    controller.run_round()
    one.slurm.nodes["v100-1"] = replace(one.slurm.nodes["v100-1"], available=True, state="idle")
    one.slurm._requeue(one.slurm.jobs[job])  # noqa: SLF001 a stand-in's step is called as Slurm would

    seen = controller.run_round().seen

    assert seen.snapshot.job[job].form.nodes == frozenset({"k80-1"})
    assert one.slurm.jobs[job].state is JobState.PENDING
    assert [e.why for e in seen.events if e.kind == "barred"] == [
        "not tried on v100-1 for 120 s: the run before may not be over there"
    ]

    one.slurm.start(job, "v100-1")  # Slurm does it itself, or its owner

    assert controller.run_round().seen.snapshot.job[job].form.nodes is None


def test_a_job_that_its_owner_requeued_may_start_where_it_was(bench: Callable[..., Any]) -> None:
    """Its node is as good as before."""
    one = bench()
    job = one.slurm.submit()
    controller = one.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}}))
    controller.run_round()
    controller.run_round()
    one.slurm._requeue(one.slurm.jobs[job])  # noqa: SLF001 a stand-in's step is called as Slurm would

    assert controller.run_round().seen.snapshot.job[job].form.nodes is None


@pytest.mark.parametrize(("last", "kept_off"), [("report", True), ("told to end", False), ("bye", False)])
def test_a_run_that_was_cut_short_between_two_rounds(bench: Callable[..., Any], last: str, kept_off: bool) -> None:
    """Its node was lost and is back, where its agent has not said goodbye: Slurm would find two runs of it there, and
    take the node out of use. A script that puts its own job back, and ignores the SIGTERM that follows, is killed."""
    one = bench()
    job = one.slurm.submit(comment="hadar:model=resnet18")
    controller = one.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}}))
    controller.run_round()
    controller.run_round()
    report(one, job, "hello", resumable=True, steps=0)
    words = {"bye": {"exit_code": 143}, "told to end": {"told_to_end": True}}.get(last, {})
    report(one, job, "bye" if last == "bye" else "report", resumable=True, steps=9, **words)
    one.slurm._requeue(one.slurm.jobs[job])  # noqa: SLF001 a stand-in's step is called as Slurm would
    report(one, job, "hello", restart=1)

    seen = controller.run_round().seen

    assert (seen.snapshot.job[job].form.nodes == frozenset({"k80-1"})) is kept_off
    assert [e.kind for e in seen.events if e.kind == "barred"] == ["barred"] * kept_off


def test_a_job_that_slurm_could_not_launch_gets_one_more_try(bench: Callable[..., Any]) -> None:
    """Slurm holds it, after a slurmctld that forgot a run that is still ending; held again, it is left to people."""
    one = bench()
    job = one.slurm.submit(1, "hadar:model=resnet18")
    held = {"priority": 0, "reason": "launch failed requeued held"}
    one.slurm.jobs[job] = replace(one.slurm.jobs[job], **held)

    one.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}})).run_round()

    assert [w.verb for batch in one.slurm.batches for w in batch] == ["release", "update"]
    assert one.slurm.jobs[job].nodes == ("v100-1",)

    one.slurm.jobs[job] = replace(one.slurm.jobs[job], state=JobState.PENDING, nodes=(), req_nodes=(), **held)
    result = one.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}})).run_round()

    assert "is held (launch failed" in result.seen.snapshot.job[job].pinned
    assert len(one.slurm.batches) == 1


def test_a_job_that_was_moved_may_come_back(bench: Callable[..., Any]) -> None:
    """It has left its nodes before it was started elsewhere."""
    one = bench()
    job = one.slurm.submit(comment="hadar:model=resnet18,lose=yes")
    controller = one.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}}))
    controller.run_round()
    one.new_controller(policy=Scripted(j1={"k80-1": {"k80": 1}})).run_round()
    assert one.slurm.jobs[job].restarts == 1

    seen = one.new_controller(policy=Scripted(j1={"k80-1": {"k80": 1}})).run_round().seen

    assert seen.snapshot.job[job].form.nodes is None


class Forgetful(Policy):
    """Fails with a memory that it does not understand."""

    name = "forgetful"

    def allocate(self, snapshot: Any) -> Plan:
        count = snapshot.memory["count"] if snapshot.memory else 0
        waits = {j.job_id: Wait(Tier.POLICY, "not yet") for j in snapshot.steerable_jobs}
        return Plan(self.name, waits=waits, memory={"count": count + 1})


def test_a_policy_that_cannot_read_its_memory_goes_on_without(bench: Callable[..., Any]) -> None:
    """Letters that changed in a sound row are found by the policy alone."""
    one = bench({"v100-1": ("v100", 2)}, "policy.name=fifo")
    one.slurm.submit()
    controller = one.new_controller(policy=Forgetful())
    controller._memory = {"cxunt": 4}  # noqa: SLF001 a stand-in's step is called as Slurm would

    assert controller.run_round().plan.memory == {"count": 1}
