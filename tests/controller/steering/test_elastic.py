"""Elastic gangs in the controller: sizes, speeds at each, and being started and moved in another size."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.comment import MOST_SIZES, parse
from slurm_hadar.controller.agents.notes import Seal
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.safety.guard import Change, ChangeKind
from slurm_hadar.controller.steering import writes
from slurm_hadar.controller.steering.elastic import gang_sizes, node_groups
from slurm_hadar.controller.steering.forms import form_of, gpus_asked, size_kept
from slurm_hadar.controller.steering.nodes import node_facts
from slurm_hadar.controller.steering.read_back import Verdict, verdict
from slurm_hadar.messages import Report
from slurm_hadar.model import JobState, Placement, Plan, Tier, Wait
from slurm_hadar.policies.base import Policy
from slurm_hadar.slurm.state import GpuRequest
from slurm_hadar.testing.fake_slurm import FakeSlurm
from slurm_hadar.throughput.store import ThroughputStore

FOUR_BY_FOUR = node_groups([[4, 4, 4, 4], [2, 2]])
NODES = {"v100-1": ("v100", 4), "v100-2": ("v100", 4), "k80-1": ("k80", 4)}
FACTS = node_facts(FakeSlurm(NODES).nodes.values())


@pytest.mark.parametrize(
    ("wanted", "asked", "nodes", "batch", "sizes"),
    [
        (range(2, 9), 2, (1, 1), None, (2, 3, 4)),  # no node has more than 4
        (range(2, 9), 2, (1, 2), None, (2, 3, 4, 6, 8)),  # 5 and 7 are no multiple of 2
        (range(2, 9), 2, (1, 2), 8, (2, 4, 8)),  # a batch of 16 cannot be shared by 3 or 6
        (range(2, 9), 2, (2, 2), None, (2, 4, 6, 8)),
        ((2, 4, 8), 4, (1, 4), None, (2, 4, 8)),
        ((8,), 2, (1, 1), None, (2,)),  # nothing but what was asked for
        (range(1, 17), 3, (1, 4), None, (1, 2, 3, 4, 8, 16)),  # doublings, the largest and the one asked for
        (range(4, 5), 40, (1, 1), None, (4, 40)),
    ],
)
def test_sizes(wanted: Any, asked: int, nodes: tuple[int, int], batch: int | None, sizes: tuple[int, ...]) -> None:
    """Only what the cluster can hold, evenly over the nodes, and what the batch can be shared by."""
    assert gang_sizes(wanted, asked, *nodes, batch, FOUR_BY_FOUR) == sizes


@given(
    low=st.integers(1, 40),
    span=st.integers(0, 200),
    asked=st.integers(1, 64),
    most=st.integers(1, 16),
    batch=st.none() | st.integers(1, 512),
    groups=st.lists(st.lists(st.integers(1, 16), min_size=1, max_size=12), max_size=3),
)
def test_sizes_are_few_ascending_and_possible(
    low: Any, span: Any, asked: Any, most: Any, batch: Any, groups: Any
) -> None:
    """Whatever is asked for: at most eight sizes, each of them in the range, divisible and on nodes that exist."""
    sizes = gang_sizes(range(low, low + span + 1), asked, 1, most, batch, node_groups(groups))

    assert asked in sizes and list(sizes) == sorted(set(sizes)) and len(sizes) <= MOST_SIZES
    for size in set(sizes) - {asked}:
        assert low <= size <= low + span and (batch is None or batch * asked % size == 0)
        assert any(
            size % n == 0 and sum(gpus >= size // n for gpus in group) >= n
            for group in groups
            for n in range(1, most + 1)
        )


def elastic(text: str = "hadar:gpus=1-4", gpus: int = 2, **fields: Any) -> Any:
    slurm = FakeSlurm(NODES)
    return slurm.jobs[slurm.submit(gpus, text, **fields)]


SEAL = Seal("here", b"key")
RECORD = JobRecord("1", workers=2, nodes=1, tasks=1, cpus=8)


def test_form_of_an_elastic_job() -> None:
    """Sizes follow nodes=, types= and batch=; a job with several tasks per node, none per GPU, keeps its size."""

    def form(text: str, record: JobRecord = RECORD) -> Any:
        return form_of(elastic(text), parse(text), record, FACTS, 0.0)

    assert (form("hadar:").sizes, form("hadar:gpus=1-8").sizes) == ((), (1, 2, 3, 4))
    spread = form("hadar:gpus=1-8,nodes=1-4")
    assert spread.sizes == (1, 2, 3, 4, 6, 8) and spread.max_nodes == 4
    assert form("hadar:gpus=1-8,nodes=1-4,types=k80").sizes == (1, 2, 3, 4)
    assert form("hadar:gpus=1-8,nodes=1-4,mix=gated").sizes[-1] == 8
    assert form("hadar:gpus=1-8,batch=1").sizes == (1, 2)
    assert form("hadar:gpus=1-4", replace(RECORD, workers=4, tasks=4)).sizes == (1, 2, 3, 4)
    assert form("hadar:gpus=1-4", replace(RECORD, workers=4, tasks=2)).sizes == ()


@pytest.mark.parametrize(
    ("options", "record", "why"),
    [
        (
            {"tasks_per_node": 2},
            replace(RECORD, tasks=2),
            "--ntasks-per-node=2 cannot be changed with its",
        ),
        ({"tasks_per_socket": 2}, replace(RECORD, tasks=2), "--ntasks-per-socket=2 cannot be changed"),
        ({"tasks_per_node": 2}, replace(RECORD, workers=4, nodes=2, tasks=4), "--ntasks-per-node=2 cannot be changed"),
        ({}, replace(RECORD, workers=4, nodes=2, tasks=4), "Slurm would not spread its tasks over 2 nodes"),
        ({}, replace(RECORD, workers=4, tasks=2), "neither one on each node nor one per GPU"),
        ({}, replace(RECORD, tasks=2), None),
        ({"tasks_per_node": 1}, RECORD, None),
        ({"tasks_per_node": 1}, replace(RECORD, workers=4, nodes=2, tasks=2), None),
        ({"tasks_per_socket": 1}, RECORD, None),
    ],
)
def test_a_size_that_slurm_would_refuse_is_none(options: dict[str, int], record: JobRecord, why: str | None) -> None:
    """Nor one that it would give wrongly: tasks on a node or socket as they were asked for (BadConstraints), or on
    several nodes, unevenly."""
    job = elastic("hadar:gpus=2-4,nodes=1-2", **options)
    told = size_kept(job, record, FACTS)
    assert told is why is None or (why is not None and why in str(told))
    form = form_of(job, parse(job.comment), record, FACTS, 0.0)
    assert bool(form.sizes) == (why is None)
    if why is not None:
        assert (form.gang_sizes, form.min_nodes, form.max_nodes) == ((record.workers,), record.nodes, record.nodes)


def test_why_a_job_keeps_its_size_is_told(bench: Any) -> None:
    """Once, in its history, and as long as it is so where it is explained."""
    b = bench(NODES)
    job = b.slurm.submit(gpus=2, comment="hadar:ckpt=yes,gpus=2-4", num_tasks=2, tasks_per_node=2)
    plain = b.slurm.submit(gpus=2, comment="hadar:ckpt=yes", num_tasks=2, tasks_per_node=2)
    controller = b.new_controller()
    for _ in range(2):
        controller.run_round()
    told = {j: [e["why"] for e in b.journal.history(j) if e.get("event") == "size"] for j in (job, plain)}
    assert [len(told[job]), told[plain]] == [1, []] and "--ntasks-per-node=2" in told[job][0]
    assert b.journal.load_jobs()[job].size_kept == told[job][0]


def test_placing_in_another_size() -> None:
    """GPUs follow the placement; tasks follow the nodes, or the GPUs where the job has one task for each."""
    one = writes.place(elastic(), RECORD, Placement.of({"v100-1": {"v100": 4}}), SEAL)
    per_gpu = replace(RECORD, tasks=2)
    more = writes.place(elastic(), per_gpu, Placement.of({"v100-1": {"v100": 4}}), SEAL)
    spread = writes.place(elastic(), RECORD, Placement.of({"v100-1": {"v100": 2}, "v100-2": {"v100": 2}}), SEAL)

    assert str(one) == (
        "update 1 TresPerNode=gres:gpu:4 NumNodes=1-1 NumTasks=1 NumCPUs=8 NodeList=v100-1 StartTime=now "
        f"Comment=hadar:gpus=1-4,asked=2/1/1/8/{SEAL.of('1', 'alice', (2, 1, 1, 8))}"
    )
    assert "NumTasks=4 NumCPUs=16" in str(more)
    assert "TresPerNode=gres:gpu:2 NumNodes=2-2 NumTasks=2 NumCPUs=16" in str(spread)


def test_gpus_asked() -> None:
    """What a job holds if it runs, what it asks for if not, None where Slurm counts in another way."""
    waiting = elastic(gpus=2, nodes=3)
    running = replace(waiting, state=JobState.RUNNING, nodes=("v100-1", "v100-2"))

    assert (gpus_asked(waiting), gpus_asked(running)) == (6, 4)
    assert gpus_asked(replace(waiting, gpus=(GpuRequest("job", (("", 3),)),))) == 3
    assert gpus_asked(replace(waiting, gpus=(GpuRequest("task", (("", 2),)),), num_tasks=4)) == 8
    assert gpus_asked(replace(waiting, gpus=(GpuRequest("socket", (("", 1),)),))) is None


class Sized(Policy):
    """Places the only job where it is told."""

    name = "sized"

    def __init__(self) -> None:
        self.where = Placement()
        self.seen: Any = None

    def allocate(self, snapshot: Any) -> Any:
        (self.seen,) = snapshot.steerable_jobs
        placed = {self.seen.job_id: self.where} if self.where else {}
        return Plan(self.name, placed, {} if placed else {self.seen.job_id: Wait(Tier.POLICY, "told to wait")})


def test_a_job_is_started_and_moved_in_other_sizes(bench: Any) -> None:
    """Started with 4 where 2 were asked for, measured, moved to 1, and back to its owner's shape when it waits."""
    b = bench(NODES)
    job = b.slurm.submit(gpus=2, comment="hadar:model=resnet18,batch=64,steps=20000,ckpt=yes,gpus=1-4")
    policy = Sized()
    policy.where = Placement.of({"v100-1": {"v100": 4}})
    controller = b.new_controller(policy=policy)
    result = controller.run_round()

    assert result.record.failed == 0 and b.slurm.jobs[job].gpus[0].count == 4 and b.slurm.jobs[job].nodes == ("v100-1",)
    assert policy.seen.form.gang_sizes == (1, 2, 4) and set(policy.seen.scaled) == {1, 4}
    rate = {n: policy.seen.speeds_at(n)["v100"].steps_per_s for n in (1, 2, 4)}
    assert rate[1] < rate[2] < rate[4] < 4 * rate[1]

    b.slurm.vouch(job)
    for seq, steps in ((1, 10), (2, 30)):
        b.book.ingest(Report("report", job, 0, seq, "a" * 64, time.time(), "v100-1", steps=steps, steps_per_s=20.0))
    policy.where = Placement.of({"k80-1": {"k80": 1}})
    result = controller.run_round()

    assert (result.record.moves, result.record.failed) == (1, 0) and b.slurm.jobs[job].nodes == ("k80-1",)
    running = controller.run_round().seen.snapshot.job[job]
    assert running.placement == policy.where and running.form.workers == 2
    (measured,) = ThroughputStore(b.journal.connection).of("resnet18:32", "alice")
    assert (measured.gpu_type, measured.gpus, measured.steps_per_s) == ("v100", 4, 20.0)
    assert running.scaled[4]["v100"].steps_per_s == 20.0

    policy.where = Placement()
    controller.run_round()

    waiting = b.slurm.jobs[job]
    assert (waiting.state, waiting.gpus[0].count, waiting.req_nodes) == (JobState.PENDING, 2, ())


def test_a_start_in_the_wrong_size_is_noticed(bench: Any) -> None:
    """Slurm says yes and gives another number of GPUs: not taken for what was planned."""
    b = bench(NODES)
    job = b.slurm.submit(gpus=2, comment="hadar:ckpt=yes,gpus=1-4")
    policy = Sized()
    policy.where = Placement.of({"v100-1": {"v100": 4}})
    update = b.slurm._update  # noqa: SLF001 a stand-in's answer is made another
    b.slurm._update = lambda one, fields: update(one, {k: v for k, v in fields.items() if k != "TresPerNode"})  # noqa: SLF001 a stand-in's answer is made another
    result = b.new_controller(policy=policy).run_round()

    assert [(w.outcome, w.detail) for w in result.outcome.log if w.job_id == job][-1] == (
        "ineffective",
        "runs with 2 GPUs instead",
    )


@pytest.mark.parametrize(("told", "shown", "good"), [(4, 4, True), (2, 4, False), (5, 6, True), (5, 5, True)])
def test_a_start_with_other_tasks_is_noticed(told: int, shown: int, good: bool) -> None:
    """As many GPUs as were meant, and two tasks on each: not taken for what was planned. Where as many are asked for on
    each node, Slurm counts up to the last node's."""
    nodes = ("v100-1", "v100-2", "v100-3")[: 3 if told == 5 else 2]
    where = Placement.of({node: {"v100": 1} for node in nodes})
    job = replace(elastic(gpus=1, nodes=len(nodes)), state=JobState.RUNNING, nodes=nodes, num_tasks=shown)
    found = verdict(job, Change(ChangeKind.START, "1", new=where), "", told)
    assert found == Verdict(good, "" if good else "runs with 4 tasks instead of 2")
    assert verdict(job, Change(ChangeKind.START, "1", new=where), "") == Verdict(True)


def test_tasks_that_slurm_has_not_taken_are_noticed(bench: Any) -> None:
    """Through a whole round."""
    b = bench(NODES)
    job = b.slurm.submit(gpus=2, comment="hadar:ckpt=yes,gpus=2-4", num_tasks=2)
    policy = Sized()
    policy.where = Placement.of({"v100-1": {"v100": 4}})
    update = b.slurm._update  # noqa: SLF001 a stand-in's answer is made another
    b.slurm._update = lambda one, fields: update(one, {k: v for k, v in fields.items() if k != "NumTasks"})  # noqa: SLF001 a stand-in's answer is made another
    result = b.new_controller(policy=policy).run_round()

    assert [w.detail for w in result.outcome.log if w.job_id == job][-1] == "runs with 2 tasks instead of 4"
