"""What comes between the look at a job and the word that starts it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.act import actor
from slurm_hadar.controller.journal import WriteOutcome
from slurm_hadar.model import JobState
from slurm_hadar.slurm.state import SlurmJob
from slurm_hadar.testing.fake_slurm import FakeSlurm
from tests.controller.scripted import MODEL, Scripted

WIDE = MODEL + ",gpus=1-4,nodes=1-2"


def test_who_is_to_have_fewer_nodes_is_put_off_before_it_is_placed(bench: Any) -> None:
    """In a batch of its own, as Slurm would shrink the job if it had started it meanwhile; one that keeps its nodes, or
    is put off already, needs none."""
    b = bench({"v100-1": ("v100", 4), "v100-2": ("v100", 4)})
    wide, narrow = b.slurm.submit(1, WIDE, nodes=2), b.slurm.submit(1, MODEL)
    policy = Scripted(**{f"j{wide}": {"v100-1": {"v100": 2}}, f"j{narrow}": {"v100-1": {"v100": 1}}})

    result = b.new_controller(policy=policy).run_round()

    first, second = b.slurm.batches[:2]
    assert [(w.verb, w.job_ids, [name for name, _ in w.fields]) for w in first] == [("update", (wide,), ["StartTime"])]
    assert {job for w in second for job in w.job_ids} == {wide, narrow}
    assert result.record.failed == 0 and b.slurm.jobs[wide].nodes == b.slurm.jobs[narrow].nodes == ("v100-1",)
    assert {w.outcome for w in result.outcome.log} == {WriteOutcome.OK}

    waits = b.slurm.submit(1, WIDE, nodes=2)
    controller = b.new_controller(policy=Scripted())
    controller.run_round()
    b.slurm.batches.clear()
    b.new_controller(policy=Scripted(**{f"j{waits}": {"v100-2": {"v100": 2}}})).run_round()
    assert [name for name, _ in b.slurm.batches[0][0].fields][:2] == ["TresPerNode", "NumNodes"]


def test_who_was_started_meanwhile_is_not_told_of_fewer_nodes(bench: Any) -> None:
    """Slurm has started it on two nodes: it runs on, and nothing has failed."""
    b = bench({"v100-1": ("v100", 4), "v100-2": ("v100", 4)})
    wide = b.slurm.submit(1, WIDE, nodes=2)
    controller = b.new_controller(policy=Scripted(**{f"j{wide}": {"v100-1": {"v100": 2}}}))

    def start() -> None:
        b.slurm.start(wide, "v100-1", "v100-2")
        b.slurm.before_write = lambda: None

    b.slurm.before_write = start
    result = controller.run_round()

    (lease,) = [w for batch in b.slurm.batches for w in batch]
    assert [name for name, _ in lease.fields] == ["StartTime"]
    assert [w.outcome for w in result.outcome.log] == [WriteOutcome.OVERTAKEN] and result.record.failed == 0
    assert b.slurm.jobs[wide].nodes == ("v100-1", "v100-2")


def test_a_refusal_of_who_runs_meanwhile_is_no_failure(bench: Any) -> None:
    """Slurm has several words for it, such as that it does not know the nodes to which a running job cannot shrink."""
    b = bench({"v100-1": ("v100", 4), "v100-2": ("v100", 4)})
    job = b.slurm.submit(1, MODEL)
    controller = b.new_controller(policy=Scripted(**{f"j{job}": {"v100-1": {"v100": 1}}}))
    b.slurm.refuse[job] = "Invalid node name specified"
    b.slurm.before_write = lambda: b.slurm.start(job, "v100-2")

    result = controller.run_round()

    assert [w.outcome for w in result.outcome.log] == [WriteOutcome.OVERTAKEN] and result.record.failed == 0
    assert b.slurm.jobs[job].state is JobState.RUNNING


@pytest.mark.parametrize("starts", [False, True])
def test_what_could_not_be_undone_is_not_said_to_be_undone(bench: Any, starts: bool) -> None:
    """Slurm refuses to place the job, and then starts it there by itself, or refuses the rest, too."""
    b = bench({"v100-1": ("v100", 4)})
    job = b.slurm.submit(1, MODEL)
    controller = b.new_controller(policy=Scripted(**{f"j{job}": {"v100-1": {"v100": 1}}}))
    b.slurm.refuse[job] = "Requested node configuration is not available"

    def start() -> None:
        if starts and len(b.slurm.batches) == 1:
            b.slurm.refuse.clear()
            b.slurm.start(job, "v100-1")

    b.slurm.before_write = start
    result = controller.run_round()

    came = WriteOutcome.OVERTAKEN if starts else WriteOutcome.REFUSED
    assert [w.outcome for w in result.outcome.log] == [came, came]
    assert (result.record.failed, result.outcome.shown.waits(job)) == ((0, False) if starts else (2, True))


def test_what_an_owner_changes_of_a_waiting_job_counts(bench: Any) -> None:
    """Other GPUs, nodes and tasks: the next round plans with them, says so, and never writes the old ones back."""
    b = bench({"v100-1": ("v100", 4), "v100-2": ("v100", 4)})
    job = b.slurm.submit(1, MODEL)
    controller = b.new_controller(policy=Scripted())
    controller.run_round()
    gpus = (replace(b.slurm.jobs[job].gpus[0], types=(("", 3),)),)
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], gpus=gpus, num_nodes=2, max_nodes=2, num_tasks=2, num_cpus=8)

    seen = controller.run_round().seen

    form = seen.snapshot.job[job].form
    assert (form.workers, form.min_nodes, form.max_nodes) == (6, 2, 2)
    (event,) = [e for e in b.journal.history(job) if e.get("event") == "asked"]
    assert event["why"] == "its owner asks now for 6 GPUs, 2 nodes, 2 tasks, 8 CPUs"
    where = {"v100-1": {"v100": 3}, "v100-2": {"v100": 3}}
    b.new_controller(policy=Scripted(**{f"j{job}": where})).run_round()
    assert b.slurm.jobs[job].nodes == ("v100-1", "v100-2") and b.slurm.jobs[job].num_cpus == 8


def test_a_range_of_nodes_is_remembered(bench: Any) -> None:
    """Slurm shows one number once it has reckoned with it: the job is left alone all the same."""
    b = bench({"v100-1": ("v100", 4), "v100-2": ("v100", 4)})
    job = b.slurm.submit(1, MODEL, num_nodes=1, max_nodes=2)
    controller = b.new_controller(policy=Scripted())
    assert "asks for 1 to 2 nodes" in controller.run_round().seen.snapshot.job[job].pinned
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], num_nodes=2)
    assert "asks for 1 to 2 nodes" in controller.run_round().seen.snapshot.job[job].pinned


def test_the_nodes_of_the_last_run_are_not_what_a_job_asks_for(bench: Any) -> None:
    """Slurm shows them of a waiting job until it has looked at it again, whatever it was told since."""
    b = bench({"v100-1": ("v100", 4), "v100-2": ("v100", 4)})
    job = b.slurm.submit(1, MODEL + ",lose=yes,gpus=1-2,nodes=1-2")
    policy = Scripted(**{f"j{job}": {"v100-1": {"v100": 1}, "v100-2": {"v100": 1}}})
    controller, where = b.new_controller(policy=policy), policy.where
    controller.run_round()
    policy.where = {}
    controller.run_round()
    assert (b.slurm.jobs[job].state, b.slurm.jobs[job].max_nodes) == (JobState.PENDING, 1)
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], num_nodes=2)
    policy.where = where

    seen = controller.run_round().seen

    assert seen.records[job].nodes == 1 and b.slurm.jobs[job].max_nodes == 2
    assert len(b.slurm.jobs[job].nodes) == 2


def test_nodes_that_an_owner_names_for_a_placed_job_are_its_own(bench: Any) -> None:
    """Also while it waits with nodes of ours: it is left alone, and keeps its owner's nodes."""
    b = bench({"v100-1": ("v100", 4), "v100-2": ("v100", 4)})
    job = b.slurm.submit(1, MODEL)
    b.slurm.stuck[job] = "Resources"
    controller = b.new_controller(policy=Scripted(**{f"j{job}": {"v100-1": {"v100": 1}}}))
    controller.run_round()
    assert b.slurm.jobs[job].req_nodes == ("v100-1",)
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], req_nodes=("v100-2",))

    for _ in range(3):
        seen = controller.run_round().seen

    assert "asks for nodes by name" in seen.snapshot.job[job].pinned
    assert b.slurm.jobs[job].req_nodes == ("v100-2",)


def test_the_cpus_of_whole_nodes_are_not_what_a_job_asked_for(bench: Any) -> None:
    """Of a job that has its nodes for itself, and was first seen running, Slurm shows all that they have."""
    b = bench({"v100-1": ("v100", 4), "v100-2": ("v100", 4)})
    job = b.slurm.submit(1, MODEL + ",ckpt=yes", exclusive=True)
    b.slurm.start(job, "v100-1")
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], num_cpus=32)

    controller = b.new_controller(policy=Scripted(**{f"j{job}": {"v100-1": {"v100": 1}}}))

    assert controller.run_round().seen.records[job].cpus == 1


def test_a_comment_that_was_changed_while_others_saved_is_kept(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is to start is looked at again where a round has waited."""
    b = bench({"v100-1": ("v100", 1)})
    job, theirs = b.slurm.submit(1, MODEL), MODEL + ",weight=2"

    class Changing(Scripted):
        def allocate(self, snapshot: Any) -> Any:
            b.slurm.jobs[job] = replace(b.slurm.jobs[job], comment=theirs)
            return super().allocate(snapshot)

    monkeypatch.setattr(actor, "_UP_TO_DATE_S", 0.0)
    b.new_controller(policy=Changing(**{f"j{job}": {"v100-1": {"v100": 1}}})).run_round()

    assert b.slurm.jobs[job].nodes == ("v100-1",) and b.slurm.jobs[job].comment.startswith(theirs)


class Choosy(FakeSlurm):
    """A Slurm whose jobs can run on one node only, for something that it does not tell."""

    fit = "n1"

    def _try(self, job: SlurmJob, now: float) -> None:
        if job.req_nodes and set(job.req_nodes) != {self.fit}:
            self.jobs[job.job_id] = replace(job, priority=0, reason="BadConstraints")
        elif not job.req_nodes and self.has_room(job, self.fit, now):
            self.start(job.job_id, self.fit)
        else:
            super()._try(job, now)


def test_a_job_that_needs_something_unknown_is_left_to_slurm(bench: Any) -> None:
    """After two nodes that Slurm finds unfit it is not put off any more: Slurm starts it where it fits. It stays
    there."""
    b = bench()
    b.slurm = Choosy({**{f"a{i}": ("v100", 2) for i in range(12)}, "n1": ("k80", 2)})
    job = b.slurm.submit(1, MODEL)
    controller = b.new_controller("policy.name=fifo")
    rounds = 0
    while b.slurm.jobs[job].state is JobState.PENDING and rounds < 6:
        result, rounds = controller.run_round(), rounds + 1
        b.slurm.eager = True
        b.slurm.read_jobs()

    assert b.slurm.jobs[job].nodes == ("n1",) and rounds == 3
    tried = [e for e in b.journal.history(job) if e.get("outcome") == "ineffective"]
    assert len(tried) == 2 and all("BadConstraints" in e["detail"] for e in tried)
    assert "is left to Slurm until" in str(result.seen.snapshot.job[job].pinned)
    after = b.new_controller("policy.name=fifo").run_round()
    assert "is left to Slurm" in str(after.seen.snapshot.job[job].pinned) and after.record.writes == 0


def test_a_node_that_is_not_available_for_now_is_tried_again_soon(bench: Any) -> None:
    """Others take CPUs of it that nobody has reckoned with, as where a partition limits them."""
    b = bench()
    job = b.slurm.submit(1, MODEL)
    b.slurm.before_write = lambda: b.slurm.stuck.update({job: "ReqNodeNotAvail, UnavailableNodes:v100-1"})
    began = time.time()

    result = b.new_controller(policy=Scripted(**{f"j{job}": {"v100-1": {"v100": 1}}})).run_round()

    assert 0 < result.seen.records[job].avoid["v100-1"] - began <= 2 * 2 + 5


def test_what_one_partition_refuses_is_a_matter_of_its_nodes(bench: Any) -> None:
    """Another of the job's partitions may start it at once."""
    b = bench()
    job = b.slurm.submit(1, MODEL, partition="all,b")
    b.slurm.before_write = lambda: b.slurm.stuck.update({job: "AccountNotAllowed"})
    first = b.new_controller(policy=Scripted(**{f"j{job}": {"v100-1": {"v100": 1}}})).run_round().seen

    assert first.records[job].avoid["v100-1"] > time.time() + 5
    one = b.new_controller(policy=Scripted()).run_round().seen.snapshot.job[job]
    assert one.pinned is None and one.blocked is None and one.form.nodes is not None and "v100-1" not in one.form.nodes
