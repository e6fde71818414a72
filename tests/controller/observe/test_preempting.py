"""Waiting jobs for which Slurm may stop others, in partitions with a higher PriorityTier."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.model import JobState, Partition, Placement

LOW, HIGH = Partition("low", preemptible=True), Partition("high", tier=10)
WHY = (
    "has room only where Slurm may stop jobs of partitions with a lower PriorityTier for it, such as job 1 in partition"
)


@pytest.fixture
def tiers(bench: Callable[..., Any]) -> Callable[..., Any]:
    """A cluster with these partitions, each of all nodes, and job 1 in ``low``, which is not steered and has v100-1."""

    def make(*settings: str, low: Partition = LOW, high: Partition = HIGH, comment: str = "") -> Any:
        made = bench({"v100-1": ("v100", 2)}, *settings)
        told(made, low, high)
        made.slurm.start(made.slurm.submit(2, comment, partition="low"), "v100-1")
        return made

    return make


def told(bench: Any, *partitions: Partition) -> None:
    """Let Slurm have these partitions, each of all nodes."""
    slurm, names = bench.slurm, tuple(p.name for p in partitions)
    slurm.nodes = {n: replace(node, partitions=names) for n, node in slurm.nodes.items()}
    slurm.partitions = tuple(replace(p, nodes=tuple(slurm.nodes)) for p in partitions)
    slurm.stops_by_tier = True


def view(bench: Any, job: str) -> Any:
    """The job as a policy sees it after another round."""
    return bench.controller.run_round().seen.snapshot.job[job]


def test_who_has_room_only_if_slurm_stops_others_is_left_to_it(tiers: Callable[..., Any]) -> None:
    """And is not put off; its owner is told why."""
    bench = tiers()
    job = bench.slurm.submit(2, partition="high")

    assert view(bench, job).pinned == f"{WHY} low"
    assert bench.slurm.batches == []


def test_a_lease_is_ended_once(tiers: Callable[..., Any]) -> None:
    """The job would wait it out; Slurm is not told the same in each round."""
    bench = tiers(low=replace(LOW, preemptible=False))
    job = bench.slurm.submit(2, partition="high")
    assert view(bench, job).pinned is None and bench.slurm.jobs[job].eligible > time.time()

    told(bench, LOW, HIGH)
    before = len(bench.slurm.batches)
    assert view(bench, job).pinned and view(bench, job).pinned

    assert [str(w) for batch in bench.slurm.batches[before:] for w in batch] == [f"update {job} StartTime=now"]
    assert bench.slurm.jobs[job].eligible <= time.time()


def test_what_slurm_puts_off_after_a_stop_is_not_shortened(tiers: Callable[..., Any]) -> None:
    """Nor is any start time that is not of the controller's making."""
    bench, now = tiers(), float(int(time.time()))
    job = bench.slurm.submit(2, partition="high", restarts=1, submit=now, eligible=now + 120, reason="BeginTime")

    assert view(bench, job).pinned == f"{WHY} low"
    assert bench.slurm.batches == [] and bench.slurm.jobs[job].eligible == now + 120


def test_a_node_list_of_ours_is_taken_back(tiers: Callable[..., Any]) -> None:
    """Slurm may stop whom it likes, wherever that is."""
    bench = tiers(low=replace(LOW, preemptible=False))
    bench.slurm.end("1")
    job = bench.slurm.submit(2, partition="high")
    bench.slurm.stuck[job] = "Resources"
    view(bench, job)
    assert bench.slurm.jobs[job].req_nodes == ("v100-1",)
    bench.slurm.start(bench.slurm.submit(2, "", partition="low"), "v100-1")

    told(bench, LOW, HIGH)
    assert "job 3 in partition low" in view(bench, job).pinned
    assert bench.slurm.jobs[job].req_nodes == () and bench.slurm.jobs[job].eligible <= time.time()


def test_once_it_runs_it_is_steered_again(tiers: Callable[..., Any]) -> None:
    """And is stopped for nobody: whom Slurm has stopped for it is not ahead of it, and may be ending still."""
    bench = tiers()
    job = bench.slurm.submit(2, partition="high")
    view(bench, job)
    bench.slurm.jobs["1"] = replace(bench.slurm.jobs["1"], state=JobState.COMPLETING, state_text="COMPLETING")
    bench.slurm.start(job, "v100-1")

    for _ in range(2):
        seen = view(bench, job)
        assert seen.pinned is None and seen.placement == Placement.of({"v100-1": {"v100": 2}})
    assert bench.slurm.batches == [] and bench.slurm.jobs[job].state is JobState.RUNNING


def test_while_it_is_made_way_for_it_is_not_put_off(tiers: Callable[..., Any]) -> None:
    """Whether Slurm shows the GPUs of the one that is ending as free, or not."""
    bench = tiers()
    job = bench.slurm.submit(2, partition="high")
    ending = replace(bench.slurm.jobs["1"], state=JobState.COMPLETING, state_text="COMPLETING")
    bench.slurm.jobs["1"] = ending
    read = bench.slurm.read

    def busy() -> Any:
        state = read()
        return replace(state, nodes=tuple(replace(n, used=n.gpus) for n in state.nodes))

    bench.slurm.read = busy
    assert view(bench, job).pinned and bench.slurm.batches == []
    bench.slurm.read = read
    assert view(bench, job).pinned is None and bench.slurm.jobs[job].state is JobState.RUNNING


@pytest.mark.parametrize(
    ("cluster", "wish"),
    [
        ({"high": replace(HIGH, tier=1)}, {}),  # as high
        ({"low": replace(LOW, preemptible=False)}, {}),
        ({"comment": "hadar:"}, {}),  # steered
        ({}, {"comment": "hadar:types=k80"}),
        ({}, {"comment": "hadar:pin=yes"}),
        ({}, {"gpus": 3}),  # has no room even so
        ({}, {"gpus": 1, "nodes": 2}),
        ({"high": replace(HIGH, up=False)}, {}),
        ({"low": replace(LOW, tier=10)}, {"partition": "high,low"}),
    ],
)
def test_who_is_not_left_to_slurm_for_that(
    tiers: Callable[..., Any], cluster: dict[str, Any], wish: dict[str, Any]
) -> None:
    bench = tiers(**cluster)
    job = bench.slurm.submit(**{"gpus": 2, "partition": "high", **wish})

    assert "PriorityTier" not in (view(bench, job).pinned or "")


def test_what_is_free_or_steered_is_taken_first(tiers: Callable[..., Any]) -> None:
    """Who has room there is the policy's business; of several partitions one that may stop others is enough."""
    bench = tiers()
    slurm = bench.slurm
    slurm.nodes["v100-2"] = replace(slurm.nodes["v100-1"], name="v100-2")
    told(bench, LOW, HIGH)
    job = slurm.submit(2, partition="low,high", comment="hadar:lose=yes")
    assert view(bench, job).pinned is None and slurm.jobs[job].nodes == ("v100-2",)

    other = slurm.submit(2, partition="low,high")
    assert view(bench, other).pinned is None
    bench.slurm.jobs[job] = replace(slurm.jobs[job], comment="")
    assert view(bench, other).pinned == f"{WHY} low"


def test_only_where_slurm_starts_it_nowhere_else(tiers: Callable[..., Any]) -> None:
    """Slurm knows nothing of types=, nor that a gang wants its nodes alike."""
    bench = tiers()
    slurm = bench.slurm
    slurm.nodes["k80-1"] = replace(slurm.nodes["v100-1"], name="k80-1", gpus=(("k80", 2),))
    told(bench, LOW, HIGH)
    slurm.start(slurm.submit(2, "", partition="low"), "k80-1")
    wants = {c: slurm.submit(2, c, partition="high") for c in ("hadar:", "hadar:types=v100", "hadar:types=v100+k80")}
    gang = {c: slurm.submit(2, c, nodes=2, partition="high") for c in ("hadar:", "hadar:mix=gated")}

    shown = bench.controller.run_round().seen.snapshot.job
    assert {c: shown[j].pinned is not None for c, j in wants.items()} == {
        "hadar:": True, "hadar:types=v100": False, "hadar:types=v100+k80": True,
    }  # fmt: skip
    assert "PriorityTier" not in (shown[gang["hadar:"]].pinned or "")
    assert "PriorityTier" in (shown[gang["hadar:mix=gated"]].pinned or "")
