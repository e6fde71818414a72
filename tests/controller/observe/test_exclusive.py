"""Jobs whose nodes Slurm gives them whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.controller.record.dashboard_rows import gpu_use
from slurm_hadar.model import Placement, Tenant
from tests.controller.scripted import MODEL, Scripted


def running(bench: Any) -> tuple[Any, str]:
    b = bench({"v100-1": ("v100", 4)})
    job = b.slurm.submit(1, MODEL + ",ckpt=yes", exclusive=True)
    b.slurm.start(job, "v100-1")
    return b, job


def test_all_gpus_of_its_node_are_its_and_free_when_it_leaves(bench: Any) -> None:
    """It trains on one, and none of the others counts as a job's that is not steered."""
    b, job = running(bench)

    snapshot = b.new_controller("controller.mode=observe").run_round().seen.snapshot

    shown = snapshot.job[job]
    assert (shown.placement, shown.held) == tuple(Placement.of({"v100-1": {"v100": n}}) for n in (1, 4))
    assert snapshot.node["v100-1"].steerable_gpus == {"v100": 4} and gpu_use(snapshot) == {"v100": (4, 4)}
    alone = snapshot.without({job: "so"})
    assert alone.node["v100-1"].steerable_gpus == {} and gpu_use(alone) == {"v100": (4, 4)}


def test_its_user_has_had_all_of_them(bench: Any) -> None:
    b, job = running(bench)
    b.slurm.jobs[job] = replace(b.slurm.jobs[job], start=b.slurm.jobs[job].start - 1000, submit=1.0)

    seen = b.new_controller("controller.mode=observe").run_round().seen

    (used,) = seen.snapshot.user_usage.values()
    assert used == {"v100": pytest.approx(4000, rel=0.01)}
    assert seen.records[job].attained_s == pytest.approx(1000, rel=0.01)  # what it trained on


def test_a_second_job_there_shows_that_the_node_is_not_its_own(bench: Any) -> None:
    """As with --exclusive=user, where jobs of one user are side by side."""
    b, job = running(bench)
    other = b.slurm.submit(1, MODEL, exclusive=True)
    b.slurm.start(other, "v100-1")

    snapshot = b.new_controller("controller.mode=observe").run_round().seen.snapshot

    assert snapshot.job[job].held == snapshot.job[job].placement


def test_it_gives_way_to_a_gang(bench: Any) -> None:
    """Which needs more GPUs of the node than the job trains on, and starts there in the same round."""
    b, job = running(bench)
    gang = b.slurm.submit(2, MODEL + ",ckpt=yes", exclusive=True)
    controller = b.new_controller(policy=Scripted(**{f"j{gang}": {"v100-1": {"v100": 2}}}))

    kinds = {c.job_id: str(c.kind) for c in controller.run_round().changes}

    assert kinds == {job: "preempt", gang: "start"} and b.slurm.jobs[gang].nodes == ("v100-1",)


@pytest.mark.parametrize("needs", ["theirs", "ours"])
def test_whose_node_is_another_users_has_no_gpus_free_for_others(bench: Any, needs: str) -> None:
    """Neither where the jobs there share it with their user's only, nor where the job that waits would; it shares."""
    b = bench()
    there = b.slurm.submit(1, MODEL, user="bob", by_user=needs == "theirs", num_cpus=1)
    b.slurm.start(there, "k80-1")
    pinned = b.slurm.submit(2, "", user="alice")
    b.slurm.start(pinned, "v100-1")
    waits = b.slurm.submit(1, MODEL, user="alice", by_user=needs == "ours")
    his = b.slurm.submit(1, MODEL, user="bob", by_user=needs == "theirs")
    controller = b.new_controller(policy=Scripted(**{f"j{there}": {"k80-1": {"k80": 1}}}))

    controller.run_round()

    assert "is free" not in b.journal.wait(waits)["why"] and "k80 is free" in b.journal.wait(his)["why"]
    fifo = b.new_controller("policy.name=fifo")
    fifo.run_round()
    assert b.slurm.jobs[his].nodes == ("k80-1",) and not b.slurm.jobs[waits].nodes


def test_whom_nobody_can_see_is_on_a_node_all_the_same(bench: Any) -> None:
    """As where users may not see each other's jobs (PrivateData)."""
    b = bench()
    b.slurm.nodes = {n: replace(node, cpus=1000) for n, node in b.slurm.nodes.items()}
    b.slurm.cpus_used = lambda node: 4 if node == "v100-1" else 0
    job = b.slurm.submit(1, MODEL, by_user=True)

    snapshot = b.new_controller("controller.mode=observe").run_round().seen.snapshot

    assert (snapshot.node["v100-1"].tenants, snapshot.node["k80-1"].tenants) == ({Tenant()}, frozenset())
    assert snapshot.job[job].needs.by_user
