"""Which jobs can be steered, why the others cannot, and the words to Slurm."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from slurm_hadar.comment import read
from slurm_hadar.config import load
from slurm_hadar.controller.agents.notes import Seal
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.steering import writes
from slurm_hadar.controller.steering.forms import form_of, no_type, placement_of
from slurm_hadar.controller.steering.nodes import node_facts
from slurm_hadar.controller.steering.rules import pinned_reason
from slurm_hadar.model import Form, JobState, Mix, Placement
from slurm_hadar.slurm.state import Bounds, Fittings, GpuRequest, PartitionTerms, SlurmJob, SlurmNode
from slurm_hadar.testing.fake_slurm import FakeSlurm

NODES = {"v100-1": ("v100", 4), "v100-2": ("v100", 4), "k80-1": ("k80", 4)}


def job(comment: str = "hadar:", gpus: int = 2, nodes: int = 1, **fields: Any) -> SlurmJob:
    """A pending batch job that can be steered, but for what ``fields`` say."""
    slurm = FakeSlurm(NODES)
    return slurm.jobs[slurm.submit(gpus, comment, nodes, **fields)]


FACTS = node_facts([*FakeSlurm(NODES).nodes.values(), SlurmNode("mix-1", (("k80", 2), ("t4", 2)), partitions=("all",))])
RECORD = JobRecord("1", workers=4, nodes=2, tasks=2, cpus=8)
SEAL = Seal("here", b"key")
MAC = SEAL.of("1", "alice", (4, 2, 2, 8))


def reason(one: SlurmJob, *settings: str, record: JobRecord | None = None) -> str | None:
    comment, fault = read(one.comment)
    return fault or pinned_reason(one, comment, record, load(None, settings), FACTS, False)


def test_a_plain_job_can_be_steered() -> None:
    """Untyped GPUs, batch, requeue: nothing is in the way."""
    assert reason(job()) is None


@pytest.mark.parametrize(
    ("one", "settings", "words"),
    [
        (job(comment=""), (), "no hadar: comment"),
        (job(comment="Hadar:model=x"), (), "does not begin with hadar:"),
        (job(comment="hadar:foo=1"), (), "unknown key 'foo'"),
        (job(comment="hadar:pin=yes"), (), "pin=yes"),
        (job(requeue=False), (), "--no-requeue; submit with --requeue"),
        (job(batch=False), (), "not a batch job"),
        (job(het_id="5"), (), "heterogeneous job"),
        (job(state=JobState.SUSPENDED), (), "suspended"),
        (job(state=JobState.COMPLETING), (), "ending"),
        (job(priority=0, reason="JobHeldUser"), (), "is held (JobHeldUser)"),
        (job(priority=0, state=JobState.RUNNING), (), "has a hold on it: once stopped, it would not start again"),
        (job(reason="Dependency", dependency="afterok:3"), (), "waits for its dependency afterok:3"),
        (job(priority=0, reason="JobHoldMaxRequeue"), (), "is held (JobHoldMaxRequeue)"),
        (job(reason="BeginTime", eligible=time.time() + 3600.0), (), "begin time of its own"),
        (job(reason="BeginTime", eligible=time.time() - 2.0), (), None),
        (job(req_nodes=("v100-1",)), (), "asks for nodes by name"),
        (job(features="(v100|k80)&x"), (), "--constraint that cannot be followed"),
        (job(features="[v100*1&k80*1]"), (), "--constraint that cannot be followed"),
        (job(), ("controller.users=['bob']",), "user alice is outside"),
        (job(), ("controller.partitions=['gpu']",), "partition all is outside"),
        (job(), ("guard.exempt_users=['alice']",), "exempt"),
        (job(), ("guard.exempt_partitions=['all']",), "exempt"),
        (replace(job(), state=JobState.RUNNING, nodes=("mix-1",)), (), "several GPU types"),
        (replace(job(), state=JobState.RUNNING, nodes=("gone-1",)), (), "drained, down or gone"),
    ],
)
def test_reasons(one: SlurmJob, settings: tuple[str, ...], words: str | None) -> None:
    """Each reason names the cause in the words of the one who can mend it."""
    why = reason(one, *settings)

    assert why is None if words is None else why is not None and words in why


def test_a_typed_request_is_pinned_with_the_remedy() -> None:
    """gpu:v100:2 cannot be changed by Slurm; the reason says what to ask for instead."""
    typed = replace(job(), gpus=(GpuRequest("node", (("v100", 2),)),))

    assert "asks for GPU type v100, which Slurm cannot change; ask for --gres=gpu:2 and say types=" in reason(typed)


def test_gpus_of_tasks_and_missing_gpus() -> None:
    """Requests that cannot be re-shaped, and jobs without GPUs. Those of tasks are followed where Slurm spreads these
    evenly over the nodes."""
    per_task = replace(job(), gpus=(GpuRequest("task", (("", 1),)),), num_tasks=4)
    two = replace(per_task, num_nodes=2, max_nodes=2)
    assert reason(per_task) is None and reason(replace(two, tasks_per_node=2)) is None
    assert reason(replace(two, num_tasks=2)) is None
    assert "may spread its tasks unevenly; ask for --ntasks-per-node" in (reason(two) or "")
    assert "per socket" in reason(replace(job(), gpus=(GpuRequest("socket", (("", 1),)),)))
    assert reason(replace(job(), gpus=())) == "asks for no GPUs"
    assert reason(replace(job(), gpus=(), shares="mps:50")).startswith("asks for a part of a GPU (mps:50), which Slurm")
    assert reason(replace(job(), gpus=(), shares="shard:2")).startswith("asks for shards, of which no node")


def test_what_slurm_keeps_and_the_controller_would_lose() -> None:
    """A range of nodes is one number once it was written, and who is put off past its deadline is cancelled."""
    assert "has a --deadline, past which Slurm cancels what was put off" in reason(job(deadline=time.time() + 3600.0))
    ranged = replace(RECORD, node_range=(1, 2))
    assert "asks for 1 to 2 nodes; ask for one number with -N, and say nodes=" in reason(job(), record=ranged)


def test_what_fits_on_unlike_nodes_only_is_left_to_slurm() -> None:
    """Unless it is the owner who wants it so, or nobody has room for it; what lies on such nodes stays there."""

    def why(workers: int, count: int, comment: str = "hadar:", per: str = "node", **fields: Any) -> str | None:
        each = workers // count if per == "node" else workers
        one = replace(job(comment, each, count), gpus=(GpuRequest(per, (("", each),)),), **fields)
        return reason(one, record=JobRecord("1", workers=workers, nodes=count, tasks=count, cpus=count))

    mixed = "finds no 6 GPUs of one type on 3 nodes, equally many on each, in the whole cluster, and is left to Slurm"
    assert mixed in why(6, 3)
    assert why(6, 3, "hadar:mix=gated") is why(6, 3, "hadar:types=v100") is why(6, 3, "hadar:nodes=1-3") is None
    assert why(4, 2) is why(8, 2) is None  # on the two with v100
    assert "on 1 node" in why(8, 1, per="job") and why(99, 1, per="job") is why(8, 1) is None
    assert "of one type" in why(4, 2, exc_nodes=("v100-1",))
    assert "of one type" in why(6, 3, "hadar:gpus=5-6") and why(6, 3, "hadar:gpus=2-6,nodes=1-3") is None
    assert "is left to Slurm" in why(6, 3, state=JobState.RUNNING, nodes=tuple(NODES))


def test_several_nodes_lie_in_one_of_a_jobs_partitions() -> None:
    """Slurm starts a job in one of them: a gang over two would never start."""
    racks = {"v100-1": ("all", "a"), "v100-2": ("all", "b"), "k80-1": ("all", "a")}
    facts = node_facts([replace(n, partitions=racks[n.name]) for n in FakeSlurm(NODES).nodes.values()])
    record, config = JobRecord("1", workers=8, nodes=2, tasks=2, cpus=2), load(None, ())

    def why(partition: str, comment: str = "hadar:", of: JobRecord = record) -> str | None:
        one = job(comment, 4, of.nodes, partition=partition)
        return pinned_reason(one, read(comment)[0], of, config, facts, False)

    assert why("all") is why("all,a") is None
    assert "asks for 2 nodes in partitions a,b, with unlike nodes" in why("a,b")
    alone = replace(record, workers=4, nodes=1, tasks=1, cpus=1)
    assert why("a,b", of=alone) is None
    elastic = "hadar:gpus=4-8,nodes=1-2"
    assert why("a,b", elastic, alone) is None
    sizes = {
        p: form_of(job(elastic, 4, partition=p), read(elastic)[0], alone, facts, 0.0).max_nodes for p in ("all", "a,b")
    }
    assert sizes == {"all": 2, "a,b": 1}


RACKS = {"v100-1": ("v100", "rack1"), "v100-2": ("v100", "rack2"), "v100-3": ("v100", "rack1"), "k80-1": ("k80",)}
IN_RACKS = node_facts([SlurmNode(n, ((f[0], 2),), features=f, partitions=("all",)) for n, f in RACKS.items()])


@pytest.mark.parametrize(
    ("constraint", "count", "comment", "left"),
    [
        ("[rack1|rack2]", 2, "hadar:", True),
        ("rack1|rack2", 2, "hadar:", False),  # each node has one of them, whichever
        ("[rack1|rack2]", 1, "hadar:", False),
        ("[v100|rack1]", 2, "hadar:", False),  # all nodes that have either are v100
        ("[v100|k80]", 2, "hadar:", False),
        ("[v100|k80]", 2, "hadar:mix=gated", True),
    ],
)
def test_all_nodes_of_a_job_have_the_same_of_several_alternatives(
    constraint: str, count: int, comment: str, left: bool
) -> None:
    """Slurm does not object to a node list that is against ``[a|b]``: who would need one is left to Slurm."""
    one, note = job(comment, 2, count, features=constraint), read(comment)[0]
    record = JobRecord("1", workers=2 * count, nodes=count, tasks=count, cpus=count)
    why = pinned_reason(one, note, record, load(None, ()), IN_RACKS, False)
    assert (why is not None and "the same one of these on all" in why) == left and (left or why is None)


@pytest.mark.parametrize(("count", "comment", "left"), [(2, "hadar:", True), (1, "hadar:", False)])
def test_what_is_below_one_switch_is_left_to_slurm(count: int, comment: str, left: bool) -> None:
    """It waits for such nodes for a time, from each start time on that the job is given."""
    record = JobRecord("1", workers=2 * count, nodes=count, tasks=count, cpus=count)
    one = job(comment, 2, count, switches=1)
    why = pinned_reason(one, read(comment)[0], record, load(None, ()), IN_RACKS, False)
    assert (why is not None and "--switches=1" in why) == left and (left or why is None)


@pytest.mark.parametrize(
    ("constraint", "count", "comment", "words"),
    [
        ("rack1*2", 3, "hadar:", "asks for 3 nodes, 2 of them with --constraint=rack1*2"),
        ("rack1*1", 2, "hadar:types=v100", "asks for 2 nodes, 1 of them with --constraint=rack1*1"),
        ("rack1*2", 1, "hadar:", "asks for 1 node, 2 of them with"),
        ("rack1*2", 2, "hadar:", None),
        ("rack1*2", 3, "hadar:nodes=2-3", None),
        ("rack1*2&v100", 2, "hadar:", "--constraint that cannot be followed"),
        ("rack1*1|v100*1", 2, "hadar:", "--constraint that cannot be followed"),
    ],
)
def test_a_feature_of_some_of_a_jobs_nodes_is_left_to_slurm(
    constraint: str, count: int, comment: str, words: str | None
) -> None:
    """A node list says nothing of which node is for what; where all nodes are to have it, all are chosen so."""
    one, note = job(comment, 2, count, features=constraint), read(comment)[0]
    record = JobRecord("1", workers=2 * count, nodes=count, tasks=count, cpus=count)
    why = pinned_reason(one, note, record, load(None, ()), IN_RACKS, False)
    assert why is None if words is None else why is not None and words in why
    if words is None:
        form = form_of(one, note, record, IN_RACKS, 0.0)
        assert (form.min_nodes, form.max_nodes, form.nodes) == (2, 2, frozenset(("v100-1", "v100-3")))


def test_an_elastic_job_with_alternatives_stays_on_one_node_where_they_differ() -> None:
    """It may have several where all of them are of one alternative."""
    note = "hadar:gpus=2-4,nodes=1-2"
    record = JobRecord("1", workers=2, nodes=1, tasks=1, cpus=1)
    most = {
        c: form_of(job(note, 2, features=c), read(note)[0], record, IN_RACKS, 0.0).max_nodes
        for c in ("[rack1|rack2]", "[v100|k80]")
    }
    assert most == {"[rack1|rack2]": 1, "[v100|k80]": 2}


def test_a_node_that_has_lost_a_feature_keeps_who_runs_there() -> None:
    """What a job asks of a node is asked when it starts."""
    lost = {"features": "a100"}
    assert form_of(job(**lost), read("hadar:")[0], RECORD, FACTS, 0.0).nodes == frozenset()
    runs = replace(job(**lost), state=JobState.RUNNING, nodes=("k80-1",))
    assert form_of(runs, read("hadar:")[0], RECORD, FACTS, 0.0).nodes == frozenset({"k80-1"})


def test_our_own_leases_and_node_lists_do_not_pin() -> None:
    """What we wrote ourselves is no wish of the owner."""
    ours = JobRecord("1", steered=True, lease_low=4.0, lease=5.0)

    assert reason(job(req_nodes=("v100-1",), reason="BeginTime", eligible=5.0), record=ours) is None


def test_a_begin_time_of_the_submit_plugin_is_not_the_owners() -> None:
    """Only the very time that the plugin gives a job; what goes beyond, or is earlier, is the owner's wish."""
    now = time.time()
    new = job(reason="BeginTime", comment="hadar:lease=900", submit=now, eligible=now + 900.0)
    assert reason(new) is None and reason(replace(new, eligible=now + 898.0)) is None
    for wish in (now + 1000.0, now + 600.0):
        assert "begin time of its own" in reason(replace(new, eligible=wish))


@pytest.mark.parametrize(
    ("constraint", "nodes"),
    [("v100", {"v100-1", "v100-2"}), ("[v100|k80]", {"v100-1", "v100-2", "k80-1"}), ("v100*2", {"v100-1", "v100-2"}),
     ("v100&k80", set())],
)  # fmt: skip
def test_constraints_leave_the_nodes_that_have_them(constraint: str, nodes: set[str]) -> None:
    """And, or, counts; where each node must have both, there is none here."""
    assert reason(job(features=constraint)) is None
    form = form_of(job(features=constraint), read("hadar:")[0], RECORD, FACTS, 0.0)
    assert (form.nodes if form.nodes is not None else set(FACTS)) - {"mix-1"} == nodes


def test_a_begin_time_that_is_not_the_lease_is_the_owners() -> None:
    """Whoever changes the start time of a leased job wins; what a killed controller may have given is its own."""
    soon = time.time() + 300.0
    leased = replace(RECORD, lease_low=soon - 0.5, lease=soon + 1.0)
    killed = replace(RECORD, defer_from=soon - 60.0, defer_until=soon + 60.0)

    for record in (leased, killed):
        assert reason(job(reason="BeginTime", eligible=soon), record=record) is None
    assert "begin time of its own" in reason(job(reason="BeginTime", eligible=soon + 30.0), record=leased)
    assert "begin time of its own" in reason(job(reason="BeginTime", eligible=soon - 30.0), record=leased)
    assert "begin time of its own" in reason(job(reason="None", eligible=soon))


def test_what_slurm_puts_off_after_a_requeue_is_not_the_owners() -> None:
    """Two minutes from the requeue, and no more."""
    now = time.time()
    again = job(reason="BeginTime", restarts=1, submit=now, eligible=now + 121.0)

    assert reason(again) is None
    assert "begin time of its own" in reason(replace(again, eligible=now + 600.0))
    leased = replace(RECORD, lease_low=now + 60.0, lease=now + 61.0)  # which took the place of Slurm's own
    assert "begin time of its own" in reason(replace(again, eligible=now + 100.0), record=leased)
    placed_before = replace(RECORD, lease_low=now - 60.0, lease=now - 59.0)
    assert reason(again, record=placed_before) is None


def test_forms() -> None:
    """The node range comes from the comment, else from what was asked; types and constraint limit the choice."""
    comment, _ = read("hadar:nodes=1-4,mix=gated,types=v100")
    form = form_of(job(features="v100"), comment, RECORD, FACTS, 0.0)

    assert (form.workers, form.min_nodes, form.max_nodes, form.mix) == (4, 1, 4, Mix.GATED)
    assert (form.types, form.nodes) == (frozenset({"v100"}), frozenset({"v100-1", "v100-2"}))
    several_tasks = replace(RECORD, tasks=4)
    assert form_of(job(), comment, several_tasks, FACTS, 0.0).max_nodes == 2
    avoiding = replace(RECORD, avoid={"k80-1": 10.0})
    assert "k80-1" not in form_of(job(), comment, avoiding, FACTS, 5.0).nodes
    assert form_of(job(), comment, avoiding, FACTS, 50.0).nodes is None


@pytest.mark.parametrize(
    ("said", "types", "short", "none_will_do"),
    [
        ("mem=12g", None, {}, None),
        ("mem=16g", {"v100"}, {"k80": "k80 has 12 GB, and the job says mem=16g"}, None),
        ("mem=16g,types=k80", set(), {"k80": "k80 has 12 GB"}, "and the job says mem=16g; v100 not in types=k80"),
        ("mem=40g", set(), {"v100": "v100 has 16 GB"}, "k80 has 12 GB, v100 has 16 GB, and the job says mem=40g"),
        ("types=a100", {"a100"}, {}, "k80, v100 not in types=a100"),
    ],
)
def test_memory_limits_the_types(
    said: str, types: set[Any] | None, short: dict[str, str], none_will_do: str | None
) -> None:
    """As types= does, and together with it; what is left out is known with its reason."""
    comment, _ = read(f"hadar:{said}")
    form = form_of(job(), comment, RECORD, FACTS, 0.0)

    assert form.types == types
    assert all(words in form.shortage([t]) for t, words in short.items())
    assert {t for t, _ in form.small} >= short.keys()
    assert (no_type(comment, FACTS) is None) is (none_will_do is None)
    assert (none_will_do or "") in (no_type(comment, FACTS) or "")


def test_what_the_administrator_says_of_memory_counts() -> None:
    """It goes before the data sheet, and makes an unknown type known, which else is not used."""
    nodes = (SlurmNode("a", (("v100", 4),)), SlurmNode("b", (("mystery", 4),)))
    comment, _ = read("hadar:mem=32g")

    unsaid = node_facts(nodes)
    assert unsaid.small(32) == (("mystery", None), ("v100", 16))
    assert "mystery has unknown memory, v100 has 16 GB, and the job says mem=32g" in no_type(comment, unsaid)
    assert node_facts(nodes, {"v100": 32, "mystery": 8}).small(32) == (("mystery", 8),)


def test_placement_of_running_jobs() -> None:
    """What a job holds follows from its untyped request and its nodes; unclear cases say nothing."""
    running = replace(job(gpus=2), state=JobState.RUNNING, nodes=("v100-1", "k80-1"))

    assert placement_of(running, FACTS) == Placement.of({"v100-1": {"v100": 2}, "k80-1": {"k80": 2}})
    assert not placement_of(replace(running, gpus=(GpuRequest("job", (("", 3),)),)), FACTS)


def test_placing_in_another_shape() -> None:
    """Counts are set together, the whole-job request is cleared with an empty string, types are never named."""
    waiting = replace(job(), gpus=(GpuRequest("job", (("", 4),)),), num_nodes=2)

    write = writes.place(waiting, RECORD, Placement.of({"v100-1": {"v100": 4}}), SEAL, 2.0)

    assert str(write) == (
        "update 1 TresPerJob= TresPerNode=gres:gpu:4 NumNodes=1-1 NumTasks=1 NumCPUs=4 NodeList=v100-1 StartTime=now+2 "
        f"Comment=hadar:asked=4/2/2/8/{MAC}"
    )


def test_placing_in_the_same_shape_changes_only_where_and_when() -> None:
    """No needless field is written; what the owner asked for stands in the comment already."""
    waiting = job(f"hadar:asked=4/2/2/8/{MAC}", gpus=2, nodes=2)
    write = writes.place(waiting, RECORD, Placement.of({"v100-1": {"v100": 2}, "k80-1": {"k80": 2}}), SEAL)

    assert str(write) == "update 1 NodeList=k80-1,v100-1 StartTime=now"


def test_deferring_gives_back_the_owners_shape() -> None:
    """Should the controller die, the job starts like any other."""
    shaped = job(gpus=4, nodes=1, req_nodes=("v100-1",))

    assert str(writes.defer(shaped, RECORD, 719.2)) == (
        "update 1 TresPerNode=gres:gpu:2 NumNodes=2-2 NumTasks=2 NumCPUs=8 NodeList= StartTime=now+720"
    )


def test_several_tasks_on_a_node_are_told_with_every_change() -> None:
    """Slurm 24.11 leaves a job with --ntasks-per-gpu else those of one GPU; leases stay few calls."""
    several = replace(job(gpus=2, num_tasks=4), job_id="2")
    record = JobRecord("2", workers=2, nodes=1, tasks=4, cpus=4)
    placed = writes.place(several, record, Placement.of({"v100-1": {"v100": 2}}), SEAL)

    assert [str(w) for w in writes.lease([job(), several, replace(several, job_id="3")], 60.0)] == [
        "update 1 StartTime=now+60",
        "update 2,3 NumTasks=4 StartTime=now+60",
    ]
    assert str(placed).startswith("update 2 NumTasks=4 NodeList=v100-1 StartTime=now ")
    assert str(writes.give_back(several, record)) == "update 2 NumTasks=4 NodeList="
    assert str(writes.let_go(several)) == "update 2 NumTasks=4 NodeList= StartTime=now"


def test_other_gres_are_told_again_with_the_gpus() -> None:
    """They stand in the same field, and are lost else."""
    nic = Fittings((("nic", 1),))
    shaped = job(gpus=4, nodes=1, req_nodes=("v100-1",), asks=nic)
    part = job(gpus=0, shares="shard:2", asks=nic)

    assert dict(writes.defer(shaped, RECORD, 1.0).fields)["TresPerNode"] == "gres:gpu:2,gres:nic:1"
    told = dict(writes.give_back(replace(part, gpus=()), replace(RECORD, shards=1)).fields)
    assert told["TresPerNode"] == "gres:shard:1,gres:nic:1"


@pytest.mark.parametrize(
    ("tasks", "nodes", "each", "cpus"), [(1, 1, 4, 12), (1, 1, 2, 6), (2, 2, 4, 24), (8, 1, 1, 8)]
)  # fmt: skip
def test_cpus_go_with_the_gpus_where_they_are_counted_so(tasks: int, nodes: int, each: int, cpus: int) -> None:
    """While a job waits Slurm shows one CPU for each task; what it had in a run before is no matter either."""
    record = JobRecord("1", workers=nodes, nodes=nodes, tasks=tasks, cpus=9)
    waits = job(gpus=3, nodes=nodes, num_tasks=tasks, num_cpus=tasks, cpus_per_gpu=3)
    names = ("v100-1", "v100-2")[:nodes]

    write = writes.place(waits, record, Placement.of({n: {"v100": each} for n in names}), SEAL)

    assert dict(write.fields)["NumCPUs"] == str(cpus)


def test_nodes_without_what_a_job_asks_for_are_not_open_to_it() -> None:
    """Other GRES, disk, sockets; of one with other GRES and CPUs counted by GPUs the shape stays, too."""
    slurm = FakeSlurm(NODES)
    slurm.nodes["v100-2"] = replace(slurm.nodes["v100-2"], has=Fittings((("nic", 1),), 1000, 2))
    book = node_facts(slurm.nodes.values())
    record = JobRecord("1", workers=1, nodes=1, tasks=1, cpus=1)

    def form(**fields: Any) -> Form:
        one = job("hadar:batch=64,gpus=1-4,nodes=1-2", gpus=1, **fields)
        return form_of(one, read(one.comment)[0], record, book, 0.0)

    for asks in (Fittings((("nic", 1),)), Fittings((), 500), Fittings((), 0, 2)):
        assert form(asks=asks).nodes == frozenset({"v100-2"})
    assert form(asks=Fittings((("nic", 1),))).gang_sizes == (1, 2, 4)
    kept = form(asks=Fittings((("nic", 1),)), cpus_per_gpu=2)
    assert (kept.gang_sizes, kept.max_nodes) == ((1,), 1)


def test_a_partitions_number_of_nodes_bounds_the_range() -> None:
    """What the comment allows, within what the partition does."""
    terms = {"all": PartitionTerms(max_nodes=1), "big": PartitionTerms(min_nodes=2)}
    nodes = [replace(n, partitions=("all", "big")) for n in FakeSlurm(NODES).nodes.values()]
    book = node_facts(nodes, None, Bounds(partitions=terms))
    record = JobRecord("1", workers=2, nodes=1, tasks=1, cpus=1)

    def bounds(partition: str, comment: str = "hadar:nodes=1-2") -> tuple[int, int]:
        one = job(comment, partition=partition)
        found = form_of(one, read(one.comment)[0], record, book, 0.0)
        return found.min_nodes, found.max_nodes

    assert bounds("all") == (1, 1) and bounds("big") == (2, 2) and bounds("all,big") == (1, 2)
    assert bounds("big", "hadar:") == (1, 1), "it cannot start, which is said elsewhere"
