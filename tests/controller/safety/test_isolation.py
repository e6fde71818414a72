"""Each job is its own failure domain: what fails on one costs that one alone, with a reason, for growing times."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.agents.spools import SpoolReader
from slurm_hadar.controller.observe.jobs import facts as observe
from slurm_hadar.controller.safety.circuit_breaker import CircuitBreaker
from slurm_hadar.controller.safety.culprits import find_culprits
from slurm_hadar.controller.safety.quarantine import Quarantine
from slurm_hadar.controller.steering.forms import form_of
from slurm_hadar.errors import StoreError
from slurm_hadar.model import Form, Job, JobState, Needs, Node, Placement, Plan, Snapshot, Tier, Wait
from slurm_hadar.policies.base import Policy
from slurm_hadar.policies.baselines.fifo import Fifo
from slurm_hadar.service.metrics import Metrics
from tests.controller.scripted import Scripted

MODEL = "hadar:model=resnet18,batch=64,steps=2000"


class Touchy(Policy):
    """First come, first served, but it cannot bear some jobs."""

    name = "touchy"

    def __init__(self, *poison: str, error: Callable[[], object] = lambda: 1 / 0) -> None:
        self.poison, self.error = set(poison), error

    def allocate(self, snapshot: Snapshot) -> Plan:
        if self.poison & {j.job_id for j in snapshot.steerable_jobs}:
            self.error()
        return Fifo().allocate(snapshot)


def test_a_policy_that_fails_on_some_jobs_serves_the_others(bench: Callable[..., Any], caplog: Any) -> None:
    """They are found, left alone with the reason, and the round goes on in the same moment."""
    one = bench({"v100-1": ("v100", 4)})
    jobs = [one.slurm.submit(1, MODEL) for _ in range(6)]
    controller = one.new_controller(policy=Touchy(jobs[1], jobs[4]))

    with caplog.at_level(logging.ERROR):
        result = controller.run_round()

    assert [one.slurm.jobs[j].state for j in jobs].count(JobState.RUNNING) == 4
    assert {one.slurm.jobs[j].nodes for j in (jobs[1], jobs[4])} == {()}
    assert "ZeroDivisionError" in result.seen.snapshot.job[jobs[1]].pinned
    assert "left alone: 2, 5" in result.record.note and controller.isolated.jobs == 2
    assert "ZeroDivisionError" in one.journal.wait(jobs[4])["why"]
    assert sum("left alone" in r.message for r in caplog.records) == 2
    assert controller.run_round().record.note == ""  # they are known by now


def test_what_is_done_beside_a_culprit_counts_as_done(bench: Callable[..., Any]) -> None:
    """A note about jobs that are left alone does not mean that nothing was carried out."""
    one = bench({"v100-1": ("v100", 4)})
    poison, good = one.slurm.submit(1, MODEL), one.slurm.submit(1, MODEL)
    metrics = Metrics()

    result = one.new_controller(policy=Touchy(poison)).run_round()
    metrics.done(result, False)

    assert result.record.note and result.outcome.acted
    assert metrics.registry.get_sample_value("hadar_changes_total", {"kind": "start"}) == 1
    assert one.journal.queue_row(good)["state"] == "starting"


def test_a_policy_that_fails_on_everything_touches_nothing(bench: Callable[..., Any]) -> None:
    """Nobody is blamed for it, and the next round tries again."""
    one = bench()
    jobs = [one.slurm.submit(1, MODEL) for _ in range(12)]
    controller = one.new_controller(policy=Touchy(*jobs))

    result = controller.run_round()

    assert "touchy failed" in result.record.note and one.slurm.batches == []
    assert controller.isolated.jobs == 0


def test_looking_at_a_job_may_fail(bench: Callable[..., Any], monkeypatch: Any) -> None:
    """It is shown, pinned, with what it holds taken; the others are steered."""
    one = bench({"v100-1": ("v100", 2)})
    held, free = one.slurm.submit(1, MODEL), one.slurm.submit(1, MODEL)
    one.slurm.start(held, "v100-1")
    monkeypatch.setattr(observe, "form_of", lambda job, *rest: 1 / 0 if job.job_id == held else form_of(job, *rest))
    controller = one.new_controller()

    result = controller.run_round()

    assert "looking at it failed" in result.seen.snapshot.job[held].pinned
    assert result.seen.snapshot.node["v100-1"].taken == {"v100": 1}
    assert one.slurm.jobs[free].nodes == ("v100-1",) and one.slurm.jobs[held].nodes == ("v100-1",)


def test_an_unforeseen_failure_gives_up_a_round_and_no_more(bench: Callable[..., Any], monkeypatch: Any) -> None:
    """It is told, counted, and the next round begins afresh."""
    one = bench()
    job = one.slurm.submit(1, MODEL)
    controller = one.new_controller()
    read = one.slurm.read
    monkeypatch.setattr(one.slurm, "read", lambda: {}["no such thing"])

    first = controller.run_round()
    monkeypatch.setattr(one.slurm, "read", read)
    controller.run_round()

    assert "the controller failed: KeyError" in first.record.note and controller.failures == 1
    assert one.slurm.jobs[job].state is JobState.RUNNING


def test_a_job_whose_record_cannot_be_read_is_left_to_slurm(bench: Callable[..., Any]) -> None:
    """With the reason in the queue; it is never written to."""
    one = bench()
    odd, good = one.slurm.submit(1, MODEL), one.slurm.submit(1, MODEL)
    one.slurm.jobs[odd] = replace(one.slurm.jobs[odd], fault="Slurm's record of it cannot be read: so", gpus=())

    result = one.controller.run_round()

    assert result.seen.snapshot.job[odd].pinned == "Slurm's record of it cannot be read: so"
    assert {job for batch in one.slurm.batches for w in batch for job in w.job_ids} == {good}


def test_times_grow_and_end() -> None:
    """A minute, two, four; after that the job is looked at again; a job that is gone is forgotten."""
    now = 1000.0
    quarantine = Quarantine(lambda: now)

    for wait in (60.0, 120.0, 240.0):
        with quarantine.over("7", "this"):
            raise ValueError("no")
        assert f"another {wait:.0f} s" in (quarantine.reason("7") or "") and quarantine.reason("8") is None
        now += wait
        assert quarantine.reason("7") is None
    assert quarantine.failures == 3 and quarantine.jobs == 0
    quarantine.keep(())
    with quarantine.over("7", "this"):
        raise ValueError("no")
    assert "another 60 s" in (quarantine.reason("7") or "")


def test_what_concerns_everybody_is_raised() -> None:
    """A broken journal is no job's fault."""
    with pytest.raises(StoreError), Quarantine().over("7", "this"):
        raise StoreError("broken")


def snapshot(count: int) -> Snapshot:
    jobs = [Job(str(i), Form(1), arrival=float(i)) for i in range(count)]
    return Snapshot(0.0, (Node("n", {"v100": 4}),), tuple(jobs))


@pytest.mark.parametrize("bad", [set(), {"0"}, {"99"}, {"3", "50", "51", "98"}])
def test_culprits_are_found_among_many(bad: set[str]) -> None:
    """Those without which nothing fails, and no others."""
    found = find_culprits(snapshot(100), lambda s: bool(bad & {j.job_id for j in s.steerable_jobs}))

    assert set(found) == bad


@pytest.mark.parametrize(
    "fails", [lambda _s: True, lambda s: len(s.steerable_jobs) > 40], ids=["always", "for their number"]
)
def test_nobody_is_blamed_for_what_is_no_single_jobs_fault(fails: Callable[[Snapshot], bool]) -> None:
    assert find_culprits(snapshot(100), fails) == []


def test_what_a_job_that_is_left_out_holds_is_taken() -> None:
    """Its GPUs are nobody's to give."""
    job = Job("1", Form(2), state=JobState.RUNNING, placement=Placement.of({"n": {"v100": 2}}))
    left = Snapshot(0.0, (Node("n", {"v100": 4}, {"v100": 1}),), (job,)).without({"1": "so"})

    assert left.node["n"].taken == {"v100": 3} and left.job["1"].pinned == "so" and not left.steerable_jobs


@pytest.mark.parametrize(
    ("needs", "cpus", "memory", "of_partition"),
    [(Needs(1.0, 1.0, 2.0), 12, 94, 4), (Needs(exclusive=True), 0, 0, 0)],
    ids=["some", "whole node"],
)
def test_what_it_holds_beside_gpus_is_taken_too(needs: Needs, cpus: int, memory: int, of_partition: int) -> None:
    """3 CPUs for its two GPUs, of which there are pairs, and their memory; or all of the node."""
    at = Placement.of({"n": {"v100": 2}})
    job = Job("1", Form(2), partition="a", state=JobState.RUNNING, placement=at, needs=needs)
    node = Node("n", {"v100": 4}, cpus=16, memory_bytes=100, partition_cpus={"a": 8, "b": 8}, cpu_step=2)

    left = Snapshot(0.0, (node, replace(node, name="m")), (job,)).without({"1": "so"})

    found = left.node["n"]
    assert (found.cpus, found.memory_bytes, found.shared) == (cpus, memory, True)
    assert found.partition_cpus == {"a": of_partition, "b": 8}
    assert left.node["m"] == replace(node, name="m")


def test_the_brake_lets_go_by_itself() -> None:
    """After too many refusals nothing is written for a round, then for two, an hour at most; a good write forgives."""
    breaker, now = CircuitBreaker(), 1000.0
    breaker.record_round({"ann": 1}, False, 4, now, 10.0)
    assert breaker.reason(now) == ""
    breaker.record_round({"ann": 1, "bob": 2}, False, 4, now, 10.0)
    assert "acts again in 10 s: 4 writes in a row" in breaker.reason(now) and breaker.reason(now + 10.0) == ""
    breaker.record_round({"ann": 1}, False, 4, now + 10.0, 10.0)
    assert "in 20 s" in breaker.reason(now + 10.0)
    breaker.record_round({"ann": 1}, True, 4, now + 30.0, 10.0)
    breaker.record_round({"ann": 2, "bob": 2}, False, 4, now + 40.0, 10.0)
    assert "in 10 s" in breaker.reason(now + 40.0)


def test_one_user_holds_it_up_for_a_round_at_a_time() -> None:
    breaker = CircuitBreaker()
    for now in (0.0, 20.0, 40.0):
        breaker.record_round({"mallory": 1000}, False, 20, now, 10.0)
        assert "acts again in 10 s" in breaker.reason(now)


def test_what_slurm_refuses_again_and_again_is_left_alone(bench: Any) -> None:
    """Three times in a row, then it is told nothing for a while; others are served all the time."""
    b = bench()
    bad, good = b.slurm.submit(gpus=1, comment=MODEL), b.slurm.submit(gpus=1, comment=MODEL)
    b.slurm.refuse[bad] = "Requested operation is presently disabled"
    controller = b.new_controller(policy=Scripted())
    for _ in range(5):
        result = controller.run_round()
        b.slurm.defer(good, time.time() - 1)  # its lease has run out: another is due

    told = [bad in write.job_ids for batch in b.slurm.batches for write in batch]
    assert sum(told) == 3
    assert all(any(good in write.job_ids for write in batch) for batch in b.slurm.batches)
    pinned = result.seen.snapshot.job[bad].pinned
    assert pinned is not None and pinned.startswith("what Slurm is told of it failed on it (SlurmRejected: Requested")


def test_waiting_is_explained(bench: Callable[..., Any]) -> None:
    """What Slurm keeps back is tried again after a while, one of its like first, and forgotten when one runs."""
    one = bench({"v100-1": ("v100", 2)})
    blocked = [one.slurm.submit(1, MODEL, user="eve", qos="small") for _ in range(3)]
    for job in blocked:
        one.slurm.stuck[job] = "QOSMaxGRESPerUser"
    honest = one.slurm.submit(1, MODEL)
    controller = one.new_controller()

    controller.run_round()
    result = controller.run_round()

    assert one.slurm.jobs[honest].state is JobState.RUNNING
    waits = {job: (result.plan or Plan("")).waits.get(job, Wait(Tier.POLICY, "")).why for job in blocked}
    assert all("QOSMaxGRESPerUser" in why for why in waits.values()), waits


def test_who_can_never_start_is_promised_nothing(bench: Callable[..., Any]) -> None:
    """It is left to Slurm with the reason, without an expected start; once Slurm says something else it is steered."""
    one = bench({"v100-1": ("v100", 2)})
    bad, good = one.slurm.submit(1, MODEL, time_limit_s=7200.0), one.slurm.submit(1, MODEL)
    one.slurm.stuck[bad] = "PartitionTimeLimit"
    controller = one.new_controller()
    for _ in range(3):
        controller.run_round()

    wait = one.journal.wait(bad)
    assert wait["tier"] == "pinned" and not wait.get("starts")
    assert wait["why"] == (
        "cannot start as it was submitted: its time limit is longer than partition all allows; "
        "Slurm says PartitionTimeLimit"
    )
    assert one.slurm.jobs[good].state is JobState.RUNNING and not one.slurm.jobs[bad].req_nodes

    del one.slurm.stuck[bad]
    one.slurm.jobs[bad] = replace(one.slurm.jobs[bad], reason="Priority")
    controller.run_round()
    assert one.slurm.jobs[bad].state is JobState.RUNNING


def test_what_users_leave_in_their_directories_is_read_before_the_queue(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may take seconds, in which owners go on speaking: what a round decides by is no older for it."""
    b, order = bench(), []
    look, read_all = b.slurm.each_job, SpoolReader.read_all

    def looked() -> Any:
        order.append("queue")
        return look()

    def read(*given: Any) -> Any:
        order.append("spools")
        return read_all(*given)

    monkeypatch.setattr(b.slurm, "each_job", looked)
    monkeypatch.setattr(SpoolReader, "read_all", read)

    b.new_controller(policy=Scripted()).run_round()

    assert order[:2] == ["spools", "queue"]
