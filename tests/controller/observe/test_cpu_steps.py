"""CPUs that Slurm hands out by whole cores or sockets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.slurm.state import Fittings, SlurmNode
from tests.controller.scripted import MODEL


@pytest.mark.parametrize(
    ("cpus", "layout", "sockets", "step"),
    [(32, (2, 16, 1), True, 16), (32, (2, 8, 2), True, 16), (32, (2, 8, 2), False, 2), (32, (2, 16, 1), False, 1),
     (16, (2, 8, 2), False, 1), (16, (2, 8, 2), True, 8), (32, (0, 0, 0), True, 1)],
)  # fmt: skip
def test_in_what_steps_cpus_are_handed_out(cpus: int, layout: tuple[int, int, int], sockets: bool, step: int) -> None:
    """As CR_Socket and the others do it; a node may count its cores, not their threads, as CPUs."""
    on_each = dict(zip(("sockets", "cores", "threads"), layout, strict=True))

    assert SlurmNode("n", cpus=cpus, has=Fittings(**on_each)).cpu_step(sockets) == step


def sockets(bench: Any, cpus: int) -> Any:
    """Two nodes of four GPUs, two sockets each, that are handed out whole."""
    b = bench({"v100-1": ("v100", 4), "k80-1": ("k80", 4)})
    has = Fittings(sockets=2, cores=cpus // 2, threads=1)
    b.slurm.nodes = {n: replace(node, cpus=cpus, has=has) for n, node in b.slurm.nodes.items()}
    b.slurm.whole_sockets = True
    return b


@pytest.mark.parametrize("policy", ["fifo", "hadar"])
def test_no_node_gets_more_jobs_than_it_has_sockets(bench: Any, policy: str) -> None:
    """A job of one CPU takes 16: the third is placed on the other node at once, and none in vain."""
    b = sockets(bench, 32)
    jobs = [b.slurm.submit(1, MODEL) for _ in range(6)]

    result = b.new_controller(f"policy.name={policy}").run_round()

    assert result.record.failed == 0
    assert sorted(b.slurm.jobs[j].nodes for j in jobs) == [(), (), ("k80-1",), ("k80-1",), ("v100-1",), ("v100-1",)]
    (_, node) = result.seen.snapshot.nodes
    assert (node.cpu_step, node.cpus_given(1), node.cpus_given(17)) == (16, 16, 32)


def test_what_a_running_job_frees_is_its_whole_sockets(bench: Any) -> None:
    """Whether Slurm shows what it asked for or what it got."""
    b = sockets(bench, 32)
    for cpus in (1, 16):
        b.slurm.start(b.slurm.submit(1, MODEL + ",ckpt=yes", num_cpus=cpus), "v100-1")

    node = b.new_controller("controller.mode=observe").run_round().seen.snapshot.node["v100-1"]

    assert node.cpus == 32 and not node.shared
