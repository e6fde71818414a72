"""Servers of models as elastic jobs: what they say they want, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest

from slurm_hadar.controller.steering.elastic import enough
from slurm_hadar.model import Placement
from tests.controller.scripted import Scripted, report

NODES = {"v100-1": ("v100", 4)}
SERVER = "hadar:ckpt=yes,gpus=1-4"


@pytest.mark.parametrize(("wanted", "size"), [(1, 1), (2, 2), (3, 4), (4, 4), (1000, 4)])
def test_the_smallest_size_that_has_so_many(wanted: int, size: int) -> None:
    assert enough((1, 2, 4), wanted) == size


def rates(job: Any) -> list[float]:
    return [job.speeds_at(n)["v100"].steps_per_s for n in job.form.gang_sizes]


def test_a_word_makes_a_job_smaller_and_never_larger(bench: Any) -> None:
    """Larger sizes than wanted are worth as much as the wanted one; a vast number is worth what silence is."""
    b = bench(NODES)
    job = b.slurm.submit(gpus=2, comment=SERVER)
    controller = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}}))
    controller.run_round()
    silent = controller.run_round().seen.snapshot.job[job]
    assert silent.form.gang_sizes == (1, 2, 3, 4) and not silent.serves

    for wanted, worth in ((1, (0, 0, 0, 0)), (2, (0, 1, 1, 1)), (4, (0, 1, 2, 3)), (10**6, (0, 1, 2, 3))):
        report(b, job, wanted=wanted)
        seen = controller.run_round().seen.snapshot.job[job]
        assert seen.serves and seen.form == silent.form
        assert rates(seen) == [rates(silent)[n] for n in worth]

    said = [e["why"] for e in b.journal.history(job) if e.get("event") == "wanted"]
    assert said == [f"its server wants {n}" for n in ("1 worker", "2 workers", "4 workers", "1000000 workers")]


def test_what_it_wanted_is_remembered(bench: Any) -> None:
    """By another controller, and while the next run starts; a run that says something else is believed."""
    b = bench(NODES)
    job = b.slurm.submit(gpus=1, comment=SERVER)
    b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 1}})).run_round()
    report(b, job, wanted=2)
    b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}})).run_round()
    report(b, job, "hello", restart=1)

    seen = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}})).run_round().seen
    assert (seen.records[job].restarts, seen.records[job].wanted) == (1, 2)

    report(b, job, restart=1, wanted=3)
    seen = b.new_controller(policy=Scripted(j1={"v100-1": {"v100": 2}})).run_round().seen
    assert seen.records[job].wanted == 3 and seen.records[job].start_s is not None


def test_who_may_be_changed(bench: Any) -> None:
    """Not a server that has the fewest GPUs and wants no more; one that wants more, or has more, may be."""
    b = bench(NODES)
    job = b.slurm.submit(gpus=1, comment=SERVER)
    policy = Scripted(j1={"v100-1": {"v100": 1}})
    controller = b.new_controller(policy=policy)
    controller.run_round()

    def unmovable(wanted: int) -> str | None:
        report(b, job, restart=b.slurm.jobs[job].restarts, wanted=wanted)
        return controller.run_round().seen.snapshot.job[job].unmovable

    assert "server of models" in (unmovable(1) or "")
    assert unmovable(2) is None
    policy.where["1"] = Placement.of({"v100-1": {"v100": 2}})
    assert controller.run_round().record.moves == 1
    assert unmovable(1) is None


def test_the_default_policy_gives_and_takes(bench: Any) -> None:
    """More workers when it wants them and GPUs are free; back to one when trainings wait and it wants no more."""
    b = bench({"v100-1": ("v100", 2)})
    job = b.slurm.submit(gpus=1, comment=SERVER)
    controller = b.new_controller()
    b.slurm.start(job, "v100-1")

    def size() -> int:
        return b.slurm.jobs[job].gpus[0].count

    report(b, job, wanted=1)
    assert (controller.run_round().record.moves, size()) == (0, 1)
    report(b, job, wanted=2)
    assert (controller.run_round().record.moves, size()) == (1, 2)
    report(b, job, restart=1, wanted=1)
    assert (controller.run_round().record.moves, size()) == (0, 2), "nobody wants what it does not need"
    waits = b.slurm.submit(gpus=1, comment="hadar:model=resnet18,batch=64,steps=20000,ckpt=yes")
    controller.run_round()
    assert (size(), b.slurm.jobs[waits].nodes) == (1, ("v100-1",))
    report(b, job, restart=2, wanted=2)
    assert (controller.run_round().record.preemptions, size()) == (0, 1), "the training is not stopped for it"


@pytest.mark.parametrize(
    ("node", "wanted", "comment", "ends"),
    [
        ("k80-1", 4, SERVER, {"v100": 4}),  # where it is there is one more at most
        ("k80-1", 3, SERVER, {"v100": 3}),
        ("k80-1", 2, SERVER, {"k80": 2}),  # nothing says that it gains by a start anew
        ("k80-1", 3, f"{SERVER},types=k80+p100", {"k80": 3}),
        ("v100-2", 4, f"{SERVER},types=v100+p100", {"v100": 2}),  # nor by more GPUs of a slower type
    ],
)
def test_a_server_that_wants_more_may_be_on_faster_types(
    bench: Any, node: str, wanted: int, comment: str, ends: dict[str, int]
) -> None:
    """Though its speed is measured nowhere: it is started anew for its size in any case."""
    b = bench(
        {"k80-1": ("k80", 3), "v100-1": ("v100", 4)} if node == "k80-1" else {node: ("v100", 2), "p100-1": ("p100", 4)}
    )
    job = b.slurm.submit(gpus=2, comment=comment)
    b.slurm.start(job, node)
    controller = b.new_controller()
    for _ in range(3):
        report(b, job, restart=b.slurm.jobs[job].restarts, wanted=wanted)
        seen = controller.run_round().seen.snapshot.job[job]
    assert seen.placement.by_type == ends and seen.form.types == frozenset(ends)
    assert b.slurm.jobs[job].restarts == (sum(ends.values()) > 2)


@pytest.mark.parametrize("most", [0, 2])
def test_a_server_follows_its_load_for_as_long_as_it_runs(bench: Any, most: int) -> None:
    """The most moves of a job are no bound on it, but that none at all are allowed."""
    b = bench({"v100-1": ("v100", 2)}, f"guard.max_moves_per_job={most}")
    job = b.slurm.submit(gpus=1, comment=SERVER)
    policy = Scripted(j1={"v100-1": {"v100": 1}})
    controller = b.new_controller(policy=policy)
    controller.run_round()
    report(b, job, wanted=2)

    moves = 0
    for size in (2, 1, 2, 1, 2):
        policy.where["1"] = Placement.of({"v100-1": {"v100": size}})
        moves += controller.run_round().record.moves
        report(b, job, restart=b.slurm.jobs[job].restarts, wanted=2)

    assert moves == (5 if most else 0)
