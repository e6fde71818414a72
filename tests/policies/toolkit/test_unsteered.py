"""The simulator's notion of where stock Slurm puts a job, against a real one."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import pytest

from slurm_hadar.model import EMPTY, Form, Job, JobState, Node, Placement, Snapshot, Speed
from slurm_hadar.policies.baselines.slurm import Slurm
from slurm_hadar.policies.toolkit.arena import Arena
from slurm_hadar.policies.toolkit.ledger import Ledger
from slurm_hadar.policies.toolkit.unsteered import place_by_slurm

NODES = ("k80-1", "k80-2", "p100-1", "p100-2", "v100-1", "v100-2")


def job(workers: int, min_nodes: int = 1, types: tuple[str, ...] = ("k80", "p100", "v100")) -> Job:
    return Job("1", Form(workers, min_nodes, min_nodes), speeds={t: Speed(1.0) for t in types})


def ledger_of(nodes: Iterable[Node], held: Iterable[Placement] = ()) -> Ledger:
    ledger = Ledger(Arena.of(Snapshot(0.0, tuple(nodes), ())))
    for placement in held:
        ledger.take(ledger.arena.gang(placement))
    return ledger


def six(*free: int) -> Ledger:
    """Six nodes of four GPUs with so many free."""
    nodes = [Node(n, {n.split("-")[0]: 4}) for n in reversed(NODES)]
    taken = {n: {n.split("-")[0]: 4 - left} for n, left in zip(NODES, free, strict=True) if left < 4}
    return ledger_of(nodes, [Placement.of({n: gpus}) for n, gpus in taken.items()])


@pytest.mark.parametrize(
    ("free", "wanted", "chosen"),
    [
        ((4, 4, 4, 4, 4, 4), job(2), ("k80-1",)),  # all alike: the first by name
        ((4, 4, 4, 4, 1, 4), job(1), ("v100-1",)),  # in one run of neighbours the fullest
        ((4, 4, 4, 4, 1, 4), job(2), ("v100-2",)),  # of two runs the one with least free
        ((4, 0, 4, 2, 0, 3), job(1), ("v100-2",)),  # whatever its nodes are
        ((4, 4, 4, 4, 1, 4), job(1, types=("p100",)), ("p100-1",)),  # where the job can run at all
        ((4, 4, 4, 4, 4, 4), job(4, 2), ("k80-1", "k80-2")),  # as many on each node
        ((1, 4, 1, 4, 4, 4), job(4, 2), ("v100-1", "v100-2")),  # of one type
        ((4, 4, 4, 4, 4, 4), job(3, 2), ()),  # which this gang cannot do
        ((1, 1, 1, 1, 1, 1), job(2), ()),
    ],
)
def test_the_choice(free: tuple[int, ...], wanted: Job, chosen: tuple[str, ...]) -> None:
    placement = place_by_slurm(six(*free), wanted)

    assert placement.nodes == chosen and placement.workers == (wanted.form.workers if chosen else 0)


def test_nodes_that_are_down_are_passed_over() -> None:
    """Also by what is still counted as held there."""
    nodes = [Node("a-1", {"a": 2}, available=False), Node("a-2", {"a": 2})]
    speeds = {"a": Speed(1.0)}

    found = place_by_slurm(ledger_of(nodes, [Placement.of({"a-1": {"a": 1}})]), Job("1", Form(1), speeds=speeds))

    assert found.nodes == ("a-2",)
    assert place_by_slurm(ledger_of(nodes[:1]), Job("1", Form(1), speeds=speeds)) == EMPTY


@pytest.mark.parametrize("down", [True, False])
def test_nodes_on_both_sides_of_one_that_is_down_are_no_neighbours(down: bool) -> None:
    """a-1 is a run of its own then, with less free than a-3 and a-4 together; without a node between
    them all are one run, whose fullest node is a-4.
    What starts by itself and policy slurm see it alike."""
    speeds = {"a": Speed(1.0)}
    half = Job("2", Form(1), state=JobState.RUNNING, placement=Placement.of({"a-4": {"a": 1}}), speeds=speeds)
    nodes = tuple(Node(f"a-{i}", {"a": 2}, available=i != 2) for i in (1, 2, 3, 4) if down or i != 2)
    wanted = Job("3", Form(1), speeds=speeds)

    found = place_by_slurm(ledger_of(nodes, [half.placement]), wanted)

    assert found.nodes == (("a-1",) if down else ("a-4",))
    assert Slurm().allocate(Snapshot(0.0, nodes, (half, wanted))).placement("3") == found


@pytest.mark.slurm
def test_a_real_slurm_chooses_alike(slurm_cluster: Any, poll: Any) -> None:
    """Gangs of 1, 2 and 4 come and go; CPUs are asked for in proportion, as the rule supposes."""
    rng = random.Random(2)
    held: dict[str, Any] = {}

    def place_of(job_id: str) -> str:
        return slurm_cluster.run(["squeue", "-h", "-j", job_id, "-t", "R", "-o", "%N"]).stdout.strip()

    for _ in range(14):
        workers = rng.choice((1, 1, 2, 4))
        ledger = ledger_of([Node(n, {n.split("-")[0]: 4}) for n in NODES], held.values())
        expected = place_by_slurm(ledger, job(workers))
        assert expected, "the test would prove nothing on a full cluster"
        command = [
            "sbatch",
            "--parsable",
            f"--gres=gpu:{workers}",
            f"-c{workers}",
            "--output=/dev/null",
            "--wrap",
            "sleep 600",
        ]
        job_id = slurm_cluster.run(command).stdout.strip()
        node = poll(lambda job_id=job_id: place_of(job_id))
        assert (node,) == expected.nodes, f"{workers} GPUs with {held}"
        held[job_id] = expected
        if len(held) > 5:
            for gone in rng.sample(sorted(held), 2):
                slurm_cluster.run(["scancel", gone])
                del held[gone]
                poll(lambda gone=gone: not slurm_cluster.run(["squeue", "-h", "-j", gone], check=False).stdout)
