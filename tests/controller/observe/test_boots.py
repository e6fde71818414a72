"""Nodes that power saving has switched off: what their boots count as, and what becomes of those that stay off."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.observe.boots import Boots
from slurm_hadar.model import JobState
from slurm_hadar.policies import registry
from slurm_hadar.slurm.state import SlurmNode
from tests.controller.scripted import Scripted

OFF, COMING = "idle+cloud+powered_down", "mixed+not_responding+powering_up"
BOOT_S = 100.0


def switch(slurm: Any, node: str, state: str, reason: str = "", available: bool = True) -> None:
    slurm.nodes[node] = replace(slurm.nodes[node], state=state, reason=reason, available=available)


def being_readied(bench: Any, node: str, since: float, gpus: int = 1) -> str:
    """A job for which Slurm switches this node on."""
    job: str = bench.slurm.submit(gpus, comment="hadar:ckpt=yes")
    switch(bench.slurm, node, COMING)
    bench.slurm.start(job, node)
    bench.slurm.jobs[job] = replace(bench.slurm.jobs[job], state_text="CONFIGURING", start=since)
    return job


def keeping(job: str) -> Scripted:
    return Scripted(**{f"j{job}": {"v100-1": {"v100": 1}}})


def put_back(bench: Any, job: str) -> None:
    """As Slurm does whose nodes it gives up."""
    now = float(int(time.time()))
    bench.slurm.jobs[job] = replace(
        bench.slurm.jobs[job], state=JobState.PENDING, state_text="PENDING", nodes=(), start=None, restarts=1,
        submit=now, eligible=now, reason="BeginTime",
    )  # fmt: skip


def test_a_boot_is_no_run(bench: Callable[..., Any]) -> None:
    """Nothing is trained in it: it is neither service, nor part of what the job has run, nor of its user's share."""
    b, now = bench(), time.time()
    job = being_readied(b, "v100-1", now - BOOT_S)
    controller = b.new_controller(policy=keeping(job))
    controller.run_round()
    booting = controller.run_round().seen
    switch(b.slurm, "v100-1", "mixed")
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], state_text="RUNNING", start=now - 10)  # as Slurm sets it then

    up = controller.run_round().seen

    record = up.records[job]
    assert booting.snapshot.job[job].started is None and booting.snapshot.job[job].placement.nodes == ("v100-1",)
    assert not booting.snapshot.user_usage
    assert record.run_since == now - 10
    assert record.attained_s == pytest.approx(10, abs=5) and record.ran_s["v100"] == pytest.approx(10, abs=5)
    assert up.snapshot.user_usage["alice"]["v100"] == pytest.approx(10, abs=5)


def test_how_long_a_boot_took_is_expected_of_the_next(bench: Callable[..., Any]) -> None:
    """By what Slurm says: it sets the start of the job anew when its nodes are up."""
    b, now = bench(), time.time()
    job = being_readied(b, "v100-1", now - BOOT_S)
    controller = b.new_controller(policy=keeping(job))
    controller.run_round()
    switch(b.slurm, "v100-1", "mixed")
    switch(b.slurm, "k80-1", OFF)
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], state_text="RUNNING", start=now - 10)

    controller.run_round()
    nodes = controller.run_round().seen.snapshot.node

    assert (nodes["k80-1"].boot_s, nodes["v100-1"].boot_s) == (BOOT_S - 10, 0)


def test_a_prolog_is_no_boot(bench: Callable[..., Any]) -> None:
    """The job's start stays as it was: its nodes were up."""
    b, now = bench(), time.time()
    job = being_readied(b, "v100-1", now - 10)
    switch(b.slurm, "v100-1", "mixed")
    switch(b.slurm, "k80-1", OFF)
    controller = b.new_controller(policy=keeping(job))
    before = controller.run_round().seen.snapshot.node["k80-1"].boot_s
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], state_text="RUNNING")

    controller.run_round()
    after = controller.run_round().seen

    assert after.snapshot.node["k80-1"].boot_s == before > 0
    assert after.records[job].run_since == now - 10


@pytest.mark.parametrize(
    ("state", "available", "reason"),
    [(OFF, True, ""), ("idle+powering_down", False, ""), ("down+powered_down", False, "ResumeTimeout reached")],
)
def test_no_job_is_tried_on_a_node_that_did_not_come_up(
    bench: Callable[..., Any], state: str, available: bool, reason: str
) -> None:
    """Slurm shows it as free again as soon as it is off: the job would wait there in vain, time and again, and
    others after it."""
    b = bench({"v100-1": ("v100", 2), "v100-2": ("v100", 2)})
    job = being_readied(b, "v100-1", time.time() - BOOT_S)
    controller = b.new_controller(policy=registry.get("hadar"))
    controller.run_round()
    put_back(b, job)
    switch(b.slurm, "v100-1", state, reason, available)
    others = [b.slurm.submit(comment="hadar:ckpt=yes") for _ in range(3)]

    seen = controller.run_round().seen

    said = [event.why for event in seen.events if event.kind == "barred"]
    assert len(said) == 1
    assert said[0].startswith(f"v100-1 did not come up{f' ({reason})' if reason else ''}; no job is tried there until ")
    assert {n for j in (job, *others) for n in b.slurm.jobs[j].nodes} == {"v100-2"}
    assert sum(b.slurm.jobs[j].state is JobState.PENDING for j in (job, *others)) == 2
    assert not seen.records[job].attained_s


@pytest.mark.parametrize("came_up", [True, False])
def test_no_job_that_runs_is_moved_to_a_node_that_did_not_come_up(bench: Callable[..., Any], came_up: bool) -> None:
    """It would lose its place for nothing."""
    b = bench({"v100-1": ("v100", 2), "k80-1": ("k80", 2), "k80-2": ("k80", 2)})
    job = being_readied(b, "v100-1", time.time() - BOOT_S, gpus=2)
    runs = b.slurm.submit(comment="hadar:model=resnet18,batch=64,steps=1000000,lose=yes")
    b.slurm.start(runs, "k80-1")
    controller = b.new_controller(policy=registry.get("hadar"))
    controller.run_round()
    if came_up:
        b.slurm.end(job)
    else:
        put_back(b, job)
    switch(b.slurm, "v100-1", OFF)

    controller.run_round()

    assert b.slurm.jobs[runs].nodes == (("v100-1",) if came_up else ("k80-1",))


def test_put_back_by_its_owner_while_its_node_still_boots(bench: Callable[..., Any]) -> None:
    """That says nothing against the node."""
    b = bench({"v100-1": ("v100", 2)})
    job = being_readied(b, "v100-1", time.time() - BOOT_S)
    controller = b.new_controller(policy=keeping(job))
    controller.run_round()
    put_back(b, job)

    seen = controller.run_round().seen

    assert not [event for event in seen.events if event.kind == "barred"]
    assert not seen.records[job].avoid and not seen.records[job].readied


def test_what_the_verifier_saw_of_a_boot_is_known_to_the_next_round(bench: Callable[..., Any]) -> None:
    """Slurm may have given the node up before another round looks."""
    b = bench({"v100-1": ("v100", 2), "v100-2": ("v100", 2)})
    switch(b.slurm, "v100-1", OFF)
    job = b.slurm.submit(comment="hadar:ckpt=yes")
    start = b.slurm.start

    def and_boots(job_id: str, *nodes: str) -> None:
        start(job_id, *nodes)
        b.slurm.jobs[job_id] = replace(b.slurm.jobs[job_id], state_text="CONFIGURING")

    b.slurm.start = and_boots
    controller = b.new_controller(policy=keeping(job))
    controller.run_round()
    put_back(b, job)

    seen = controller.run_round().seen

    assert any(event.kind == "barred" and "v100-1 did not come up" in event.why for event in seen.events)


def test_a_node_that_fails_again_is_left_alone_for_longer_until_it_is_up() -> None:
    boots, now = Boots(), 0.0
    waits = []
    for _ in range(5):
        until = boots.failed(["a"], now)
        assert boots.failed(["a"], now + 1) == until  # another job that waited there, too
        waits.append(until - now)
        now = until
        boots.look([SlurmNode("a", state=OFF)])

    boots.look([SlurmNode("a", state="idle")])

    assert waits == [600, 1200, 2400, 3600, 3600]
    assert not boots.closed(now - 1)
    assert boots.failed(["a"], now) - now == 600


@pytest.mark.parametrize(
    "reason", ["ReqNodeNotAvail, UnavailableNodes:v100-1", "Nodes required for job are DOWN, DRAINED or reserved"]
)
def test_a_node_that_is_being_switched_off_teaches_nothing_of_the_job(bench: Callable[..., Any], reason: str) -> None:
    """In a moment it is off, and free: the job is not kept out for a round, and then for longer."""
    b = bench({"v100-1": ("v100", 2)}, "controller.round_s=360")
    switch(b.slurm, "v100-1", "idle+powering_down", available=False)
    job = b.slurm.submit(comment="hadar:ckpt=yes", reason=reason)
    controller = b.new_controller(policy=registry.get("hadar"))
    controller.run_round()
    switch(b.slurm, "v100-1", OFF)

    controller.run_round()

    assert b.slurm.jobs[job].nodes == ("v100-1",)


def test_of_nodes_alike_those_that_are_up_are_taken(bench: Callable[..., Any]) -> None:
    """A boot costs minutes. Then those that are coming up already."""
    b = bench({f"v100-{n}": ("v100", 1) for n in (1, 2, 3)})
    switch(b.slurm, "v100-1", OFF)
    switch(b.slurm, "v100-2", "idle+powering_up")
    placed = []
    for _ in range(3):
        job = b.slurm.submit(comment="hadar:model=resnet18,batch=64,steps=100000,ckpt=yes")
        b.new_controller(policy=registry.get("hadar")).run_round()
        placed.extend(b.slurm.jobs[job].nodes)

    assert placed == ["v100-3", "v100-2", "v100-1"]
