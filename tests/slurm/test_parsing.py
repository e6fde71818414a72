"""Slurm's texts turned into records."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import SlurmParseError
from slurm_hadar.model import JobState, Partition
from slurm_hadar.slurm import parsing, tres
from slurm_hadar.slurm.framing import SEP
from slurm_hadar.slurm.limits import open_maintained
from slurm_hadar.slurm.node_lists import expand, fold
from slurm_hadar.slurm.parsing import DETAIL_FORMAT, JOB_FIELDS, NODE_FIELDS, Details
from slurm_hadar.slurm.state import Fittings, Reservation, SlurmJob

MARK = "0123456789abcdef"

JOB = {
    "JobID": "17", "JobArrayID": "17", "ArrayJobID": "17", "HetJobID": "N/A", "State": "PENDING", "Reason": "None",
    "UserName": "alice", "UserID": "1001", "OverSubscribe": "OK", "Licenses": "(null)", "Reservation": "(null)",
    "tres-alloc": "cpu=1,mem=100M,node=1,billing=1,gres/gpu=2", "Account": "(null)", "QOS": "(null)",
    "Partition": "all", "NodeList": "", "ReqNodes": "", "SchedNodes": "",
    "tres-per-job": "N/A", "tres-per-node": "gres:gpu:2", "tres-per-socket": "N/A", "tres-per-task": "N/A",
    "NumNodes": "1", "MaxNodes": "1", "NumTasks": "1", "NumCPUs": "1", "TimeLimit": "1-02:03:04",
    "SubmitTime": "1700000000", "EligibleTime": "N/A", "StartTime": "N/A", "EndTime": "N/A", "Requeue": "1",
    "RestartCnt": "0",
    "BatchFlag": "1", "PriorityLong": "4294901756", "Feature": "(null)", "Dependency": "(null)", "WorkDir": "/home/a b",
    "Name": "my job", "Comment": "hadar:model=x",
}  # fmt: skip
NODE = {
    "NodeList": "v100-1", "StateComplete": "mixed", "Gres": "gpu:v100:4", "GresUsed": "gpu:v100:1(IDX:0)",
    "CPUsState": "1/31/0/32", "Memory": "256000", "AllocMem": "100",
    "Partition": "all*", "Available": "up", "Time": "infinite", "Features": "v100",
    "Reason": "none",
}  # fmt: skip


def text_of(records: list[dict[str, str]], fields: tuple[str, ...]) -> str:
    """What the command prints for these records."""
    return "".join("".join(record[f] + SEP + MARK for f in fields) + "\n" for record in records)


def jobs(*records: dict[str, str]) -> Any:
    """Parse jobs that differ from JOB in these fields."""
    return parsing.parse_jobs(text_of([{**JOB, **r} for r in records], JOB_FIELDS), MARK)


def nodes(*records: dict[str, str]) -> Any:
    """Parse nodes that differ from NODE in these fields."""
    return parsing.parse_nodes(text_of([{**NODE, **r} for r in records], NODE_FIELDS), MARK)


def test_a_plain_job() -> None:
    """Every field lands where it belongs."""
    (job,) = jobs({})

    assert (job.job_id, job.state, job.reason, job.user) == ("17", JobState.PENDING, "", "alice")
    assert job.gpus[0].per == "node" and job.gpus[0].types == (("", 2),) and not job.gpus[0].typed
    assert job.time_limit_s == 86400 + 2 * 3600 + 3 * 60 + 4
    assert (job.submit, job.eligible) == (1700000000.0, None)
    assert (job.requeue, job.batch, job.held) == (True, True, False)
    assert (job.work_dir, job.name, job.comment) == ("/home/a b", "my job", "hadar:model=x")


def test_structure_of_arrays_and_heterogeneous_jobs() -> None:
    """Tasks and components say whose they are."""
    task, component = jobs({"JobArrayID": "4_2", "ArrayJobID": "4"}, {"JobArrayID": "5+1", "HetJobID": "5"})

    assert (task.job_id, task.array_id, task.het_id) == ("4_2", "4", None)
    assert (component.job_id, component.array_id, component.het_id) == ("5+1", None, "5")


@pytest.mark.parametrize(("text", "batch"), [("0", False), ("1", True), ("2", True)])
def test_a_batch_job_whose_launch_failed_is_one_still(text: str, batch: bool) -> None:
    """Slurm counts launches in the flag that says whether a job has a batch script."""
    assert jobs({"BatchFlag": text})[0].batch is batch


@pytest.mark.parametrize(
    ("field", "text", "per", "types"),
    [
        ("tres-per-node", "gres:gpu:v100:2", "node", (("v100", 2),)),
        ("tres-per-node", "gres/gpu:v100:2", "node", (("v100", 2),)),
        ("tres-per-node", "gres:gpu", "node", (("", 1),)),
        ("tres-per-job", "gres:gpu:4", "job", (("", 4),)),
        ("tres-per-job", "gres:gpu:v100:2,gres:gpu:p100:1", "job", (("p100", 1), ("v100", 2))),
        ("tres-per-task", "gres/gpu:1", "task", (("", 1),)),
        ("tres-per-node", "gres:shard:2", "node", None),
    ],
)
def test_gpu_requests(field: str, text: str, per: str, types: tuple[Any, ...] | None) -> None:
    """Requests are read in the spelling of every release."""
    (job,) = jobs({"tres-per-node": "N/A", field: text})

    if types is None:
        assert (job.gpus, job.shares) == ((), "shard:2")
    else:
        assert (job.gpus[0].per, job.gpus[0].types) == (per, types)


@pytest.mark.parametrize(
    ("state", "most", "nodes"),
    [("PENDING", "2", (1, 2)), ("PENDING", "0", (2, 2)), ("RUNNING", "2", (2, 2))],
)
def test_the_fewest_nodes_that_a_waiting_job_asks_for(state: str, most: str, nodes: tuple[int, int]) -> None:
    """Slurm shows those that it has last reckoned with, and the fewest beside what the job asks for."""
    (job,) = jobs({"State": state, "NumNodes": "2", "MaxNodes": most})

    assert (job.num_nodes, job.max_nodes) == nodes


@pytest.mark.parametrize(("most", "tasks", "read"), [("4", "4", 1), ("4", "8", 4), ("2", "4", 2), ("4", "1", 4)])
def test_as_many_nodes_as_tasks_are_no_wish_of_the_owners(most: str, tasks: str, read: int) -> None:
    """What 26.05 shows of a job that sets no limit; a range of the owner's own is left to Slurm."""
    fields = parsing.newer_fields()
    text = text_of([{**JOB, "Exclusive": "NO", "MaxNodes": most, "NumTasks": tasks}], fields)

    (job,) = parsing.parse_jobs(text, MARK, fields)

    assert (job.num_nodes, job.max_nodes) == (1, read)


def test_held_job() -> None:
    """Priority 0 of a pending job means held."""
    assert jobs({"PriorityLong": "0", "Reason": "JobHeldUser"})[0].held


def test_a_partition_that_drains_runs_what_it_has() -> None:
    """Slurm refuses new jobs only; one that is inactive starts none either."""
    found = {a: nodes({"Available": a})[1][0].up for a in ("up", "drain", "inactive", "down")}

    assert found == {"up": True, "drain": True, "inactive": False, "down": False}


@pytest.mark.parametrize(
    ("state", "maintenance"),
    [("mixed+maintenance+reserved", True), ("idle+maintenance", True), ("maint", True), ("idle", False),
     ("down+maintenance", False), ("idle+drain+maintenance", False)],
)  # fmt: skip
def test_a_node_in_maintenance_is_open_to_jobs_of_its_reservation(state: str, maintenance: bool) -> None:
    """As soon as there is one; what else is wrong with the node stays."""
    found, _ = nodes({"StateComplete": state})
    ours = replace(jobs({})[0], reservation="other,mnt", state=JobState.PENDING)
    mnt = Reservation("mnt", frozenset({found[0].name}), 0.0, 100.0)

    def available(*queue: SlurmJob, now: float = 50.0) -> bool:
        return open_maintained(found, queue, (mnt,), now)[0].available

    assert found[0].maintenance is maintenance
    assert (available(ours), available()) == (maintenance or state == "idle", state == "idle")
    assert available(replace(ours, reservation=""), ours, now=200.0) is (state == "idle")


def test_no_value_marks_are_not_numbers() -> None:
    """Slurm prints its mark for 'not set' as 4294967294."""
    assert jobs({"NumTasks": "4294967294"})[0].num_tasks == 1


def test_nodes_and_partitions() -> None:
    """One line per node and partition becomes one node and both partitions."""
    found, partitions = nodes({}, {"Partition": "small", "Time": "1:00:00", "Available": "down"})

    (node,) = found
    assert node.gpus == (("v100", 4),) and node.used == (("v100", 1),)
    assert node.partitions == ("all", "small") and node.available and node.cpus == 32
    assert [(p.name, p.max_time_s, p.up) for p in partitions] == [("all", None, True), ("small", 3600.0, False)]
    shown = nodes({"Available": "inactive"}, {"Partition": "small", "Available": "inact"})[1]
    assert [(p.up, p.inactive) for p in (*partitions, *shown)] == [(True, False), (False, False), *[(False, True)] * 2]


@pytest.mark.parametrize(
    ("state", "available"),
    [("idle+powered_down", True), ("idle+cloud+powered_down", True), ("mixed+not_responding+powering_up", True),
     ("idle+power_up", True), ("idle+powering_down", False), ("mixed+power_down", False),
     ("idle+drain+powered_down", False), ("down+powered_down", False),
     ("idle+not_responding", True)],
)  # fmt: skip
def test_nodes_that_power_saving_has_switched_off_are_free(state: str, available: bool) -> None:
    """Slurm switches them on for the job that it starts there, unlike those that it is switching off."""
    (node,), _ = nodes({"StateComplete": state})

    assert (node.available, node.reason) == (available, "" if available else state)


@pytest.mark.parametrize(
    ("state", "available"),
    [("idle", True), ("mixed", True), ("allocated", True), ("planned", True), ("idle+drain", False),
     ("draining", False), ("down*", False), ("down+not_responding", False), ("idle*", False), ("inval", False),
     ("maint", False), ("idle+dynamic_future", True), ("future", False)],
)  # fmt: skip
def test_node_states(state: str, available: bool) -> None:
    """Only nodes that can take work count as available; the others say why not."""
    (node,), _ = nodes({"StateComplete": state})

    assert node.available is available
    assert available or node.reason


def test_many_nodes_are_not_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """To which partitions each belongs is known at once."""
    compared = []

    class Name(str):
        def __eq__(self, other: object) -> bool:
            compared.append(other)
            return str(self) == other

        __hash__ = str.__hash__

    rows = [{**NODE, "NodeList": Name(f"n{i}"), "Partition": p} for i in range(200) for p in ("all*", "night")]
    monkeypatch.setattr(parsing, "records", lambda *_: iter(rows))

    found, partitions = parsing.parse_nodes("", MARK)

    assert {n.partitions for n in found} == {("all", "night")} and [len(p.nodes) for p in partitions] == [200, 200]
    assert len(compared) < 10 * len(rows)


def test_several_types_on_a_node() -> None:
    """A node's types are counted one by one, other GRES left out."""
    (node,), _ = nodes({"Gres": "gpu:k80:2(S:0),gpu:t4:2,shard:8", "GresUsed": "gpu:k80:0(IDX:N/A),gpu:t4:1(IDX:2)"})

    assert node.gpus == (("k80", 2), ("t4", 2)) and node.used == (("t4", 1),)


@given(st.data())
def test_output_cut_anywhere_is_refused(data: st.DataObject) -> None:
    """Cut at any byte, the output is either whole records or an error: never a shorter last record."""
    whole = text_of([{**JOB, "JobArrayID": str(i)} for i in (1, 2, 3)], JOB_FIELDS)
    cut = data.draw(st.integers(0, len(whole)))
    ends = {0} | {i + 1 for i, c in enumerate(whole) if c == "\n"}

    if cut in ends:
        assert len(parsing.parse_jobs(whole[:cut], MARK)) == whole[:cut].count("\n")
    else:
        with pytest.raises(SlurmParseError, match=r"cut short|no line end"):
            parsing.parse_jobs(whole[:cut], MARK)


@given(comment=st.text(), name=st.text(), work_dir=st.text(), account=st.text())
def test_free_text_cannot_forge_records(comment: str, name: str, work_dir: str, account: str) -> None:
    """Whatever a user writes into names, comments and accounts stays there."""
    forged = text_of([{**JOB, "JobArrayID": "999", "State": "RUNNING"}], JOB_FIELDS).replace(MARK, "f" * 16)
    record = {**JOB, "Comment": comment + forged, "Name": name, "WorkDir": work_dir, "Account": account + SEP}

    found = parsing.parse_jobs(text_of([record, {**JOB, "JobArrayID": "18"}], JOB_FIELDS), MARK)

    assert [j.job_id for j in found] == ["17", "18"]
    assert (found[0].name, found[0].work_dir) == (name, work_dir)


@given(st.text(max_size=400))
def test_garbage_never_raises_anything_else(text: str) -> None:
    """Nonsense from Slurm is a SlurmParseError, whatever it is."""
    for parse in (parsing.parse_jobs, parsing.parse_nodes):
        with contextlib.suppress(SlurmParseError):
            parse(text, MARK)


@pytest.mark.parametrize("change", [{"State": "DREAMING"}, {"NumNodes": "two"}, {"SubmitTime": "yesterday"},
                                    {"TimeLimit": "1:2:3:4"}, {"NodeList": "v100-[1"},
                                    {"tres-per-node": "gres:gpu:v100\x1f:1"},
                                    {"tres-per-job": "gres/gpu:a:b:c"}])  # fmt: skip
def test_what_is_not_understood_costs_its_job_alone(change: dict[str, str]) -> None:
    """The record says which field it is and what it holds; the next job is read as ever."""
    broken, good = jobs(change, {"JobArrayID": "18"})

    assert broken.fault is not None and repr(next(iter(change.values())))[1:-1].split(" ")[0] in broken.fault
    assert (broken.job_id, broken.state.active, broken.user) == ("17", True, "alice")
    assert (good.job_id, good.fault) == ("18", None)


@given(st.dictionaries(st.sampled_from(JOB_FIELDS), st.text(max_size=60), max_size=6))
def test_no_field_of_a_job_costs_another(change: dict[str, str]) -> None:
    """Whatever stands in whichever fields of one record, the others are read."""
    found = jobs({"JobArrayID": "16"}, change, {"JobArrayID": "18"})

    assert len(found) == 3
    assert (found[0], found[2]) == (jobs({"JobArrayID": "16"})[0], jobs({"JobArrayID": "18"})[0])


def test_a_job_in_an_unknown_state_counts_by_what_it_holds() -> None:
    """With nodes it runs, as far as anybody can tell."""
    assert jobs({"State": "EXPEDITING"})[0].state is JobState.PENDING
    assert jobs({"State": "EXPEDITING", "NodeList": "v100-1"})[0].state is JobState.RUNNING


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("vgpu:8", ()),
        ("mygpu:4,gpu:2", (("gpu", 2),)),
        ("gpu:a100_1g.5gb:7(S:0-1)", (("a100_1g.5gb", 7),)),
        ("gpu:1g.5gb:7,gpu:2g.10gb:1", (("1g.5gb", 7), ("2g.10gb", 1))),
        ("gpu:v100:4(S:0,1),shard:16,mps:400", (("v100", 4),)),
        ("gpu:v100:2(IDX:0,3),gpu:k80:1(IDX:1)", (("k80", 1), ("v100", 2))),
        ("craynetwork:4", ()),
        ("(null)", ()),
    ],
)
def test_gres_by_whole_names(text: str, gpus: tuple[Any, ...]) -> None:
    """Only entries that are GPUs, whatever other names end in, and whatever stands in brackets."""
    assert tres.parse_gres(text) == gpus


@pytest.mark.parametrize(
    ("used", "taken"),
    [
        ("gpu:v100:1(IDX:0),shard:4(2/4,2/4,0/4,0/4)", 3),
        ("gpu:v100:1(IDX:0),shard:v100:2(IDX:1,3)", 3),
        ("gpu:v100:0(IDX:N/A),shard:v100:3(IDX:0-2)", 3),
        ("gpu:v100:0(IDX:N/A),shard:v100:0(IDX:N/A)", 0),
        ("gpu:v100:0,shard:0", 0),
        ("gpu:v100:0,shard:3", 4),
    ],
)
def test_gpus_in_use_by_shares_are_taken(used: str, taken: int) -> None:
    """A GPU that is shared out is no free GPU; where Slurm does not say which, none is."""
    (node,), _ = nodes({"Gres": "gpu:v100:4,shard:16", "GresUsed": used})

    assert sum(n for _, n in node.used) == taken
    assert node.shards == 16


def test_a_node_that_is_not_understood_is_left_out() -> None:
    """It gets no work; the others do."""
    (odd, good), _ = nodes({"Gres": "gpu:a:b:c:d"}, {"NodeList": "v100-2"})

    assert not odd.available and "does not understand" in odd.reason
    assert good.available


def test_what_a_job_needs_beside_gpus() -> None:
    """Memory over all nodes, whole nodes, licences, reservation."""
    (job,) = jobs({"tres-alloc": "cpu=4,mem=1200M,node=2,billing=4", "OverSubscribe": "NO", "Licenses": "matlab:1",
                   "Reservation": "maint"})  # fmt: skip

    assert (job.memory_bytes, job.exclusive, job.licenses, job.reservation) == (1200 << 20, True, "matlab:1", "maint")


def test_details_are_by_array() -> None:
    """The older format folds arrays, and tells throttle and excluded nodes."""
    rows = [("10_[1-199:3%7]", "k80-1,v100-1"), ("4", "v100-1"), ("5", "N/A"), ("6_[1,3]", ""), ("7_[1%x]", "a["),
            ("10_0", "k80-1,v100-1")]  # fmt: skip
    text = "".join(f"{a}{SEP}{MARK}{b}{SEP}{MARK}\n" for a, b in rows)

    assert DETAIL_FORMAT.format(MARK) == f"%i{SEP}{MARK}%x{SEP}{MARK}"
    both = Details(("k80-1", "v100-1"), 7)
    assert parsing.parse_details(text, MARK) == {"10": both, "10_0": both, "4": Details(("v100-1",), None)}


def test_long_node_lists_are_folded() -> None:
    """scontrol reads lines of 4,095 characters."""
    names = [f"gpu-node-{i:04}" for i in range(2000)]

    assert fold(names[:3]) == "gpu-node-0000,gpu-node-0001,gpu-node-0002"
    assert len(fold(names)) < 100 and expand(fold(names)) == tuple(names)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("UNLIMITED", None), ("infinite", None), ("10:00", 600.0), ("1:00:00", 3600.0), ("2-00:00:00", 172800.0),
     ("365-00:00:00", 31536000.0), ("5", 5.0)],
)  # fmt: skip
def test_time_limits(text: str, seconds: float | None) -> None:
    """All of Slurm's spellings."""
    assert parsing.parse_time_limit(text) == seconds


@pytest.mark.parametrize(
    ("field", "word", "exclusive"),
    [("OverSubscribe", "OK", False), ("OverSubscribe", "YES", False), ("OverSubscribe", "NO", True),
     ("Exclusive", "NO", False), ("Exclusive", "NODE", True), ("Exclusive", "TOPO", True)],
)  # fmt: skip
def test_who_wants_whole_nodes(field: str, word: str, exclusive: bool) -> None:
    """Up to 24.11 one word says it; 26.05 has a field of its own, and shows NO for every other job in the old one."""
    fields = JOB_FIELDS if field == "OverSubscribe" else parsing.newer_fields()
    text = text_of([{**JOB, field: word}], fields)

    assert parsing.parse_jobs(text, MARK, fields)[0].exclusive is exclusive


@pytest.mark.parametrize("field", ["OverSubscribe", "Exclusive"])
@pytest.mark.parametrize(
    ("word", "label", "shared"),
    [("USER", "(null)", (True, "")), ("MCS", "red", (False, "red")), ("MCS", "(null)", (False, "")),
     ("OK", "red", (False, ""))],
)  # fmt: skip
def test_with_whom_a_job_shares_its_nodes(field: str, word: str, label: str, shared: tuple[bool, str]) -> None:
    """With its user's jobs only, or those of its MCS label: it is not alone there."""
    word = "NO" if (field, word) == ("Exclusive", "OK") else word
    fields = (*(JOB_FIELDS if field == "OverSubscribe" else parsing.newer_fields()), "MCSLabel")
    text = text_of([{**JOB, field: word, "MCSLabel": label}], fields)

    (job,) = parsing.parse_jobs(text, MARK, fields)

    assert (job.by_user, job.mcs) == shared and not job.exclusive


@pytest.mark.parametrize(
    ("tier", "mode", "read"),
    [("1", "OFF", (1, False)), ("10", "REQUEUE", (10, True)), ("2", "CANCEL", (2, True)),
     ("3", "GANG,SUSPEND", (3, False)), ("N/A", "", (1, False))],
)  # fmt: skip
def test_which_partitions_jobs_may_be_stopped_for_others(tier: str, mode: str, read: tuple[int, bool]) -> None:
    """A suspended job keeps its GPUs, and makes way for nobody."""
    fields = (*NODE_FIELDS, "PriorityTier", "PreemptMode")
    text = text_of([{**NODE, "PriorityTier": tier, "PreemptMode": mode}], fields)

    _, (partition,) = parsing.parse_nodes(text, MARK, fields)
    assert (partition.tier, partition.preemptible) == read
    assert nodes({})[1][0] == Partition("all", ("v100-1",))


@pytest.mark.parametrize(
    ("gres", "disk", "shape", "asked"),
    [("gres:gpu:2", "0", "*:*:*", Fittings()),
     ("gres/gpu:2,gres/nic:cx6=1,shard:2", "1000M", "2:*:*", Fittings((("nic:cx6", 1),), 1000, 2)),
     ("gres:nic,gres:bandwidth:no_consume:4G", "1G", "*:*:1",
      Fittings((("bandwidth", 4 << 30), ("nic", 1)), 1024, threads=1)),
     ("(null)", "odd", "odd", Fittings())],
)  # fmt: skip
def test_what_a_job_asks_of_its_nodes(gres: str, disk: str, shape: str, asked: Fittings) -> None:
    """Other GRES, local disk, sockets, cores and threads, in the words of each release; parts of GPUs are none."""
    fields = (*JOB_FIELDS, "MinTmpDisk", "SCT")
    record = {**JOB, "tres-per-node": gres, "MinTmpDisk": disk, "SCT": shape}

    assert parsing.parse_jobs(text_of([record], fields), MARK, fields)[0].asks == asked


@pytest.mark.parametrize(
    ("shown", "limits"),
    [(("4", "N/A"), (4, 0)), (("0", "2"), (0, 2)), (("65534", "65535"), (0, 0)), (("N/A", ""), (0, 0))],
)
def test_tasks_on_each_node_or_socket(shown: tuple[str, str], limits: tuple[int, int]) -> None:
    """As its owner asked; Slurm's marks of no limit are none."""
    fields = (*JOB_FIELDS, "NTPerNode", "NTPerSocket")
    record = {**JOB, "NTPerNode": shown[0], "NTPerSocket": shown[1]}
    job = parsing.parse_jobs(text_of([record], fields), MARK, fields)[0]
    assert (job.tasks_per_node, job.tasks_per_socket) == limits


def test_which_nodes_have_what_is_asked() -> None:
    """A GRES of any type, or of one; as much disk, and sockets."""
    fields = (*NODE_FIELDS, "Disk", "SocketCoreThread")
    record = {**NODE, "Gres": "gpu:v100:4(S:0),nic:cx6:2,nic:cx5:1", "Disk": "2000", "SocketCoreThread": "2:8:1"}
    has = parsing.parse_nodes(text_of([record], fields), MARK, fields)[0][0].has

    assert has == Fittings((("nic:cx5", 1), ("nic:cx6", 2)), 2000, 2, 8, 1)
    fits = [Fittings(), Fittings((("nic", 3),)), Fittings((("nic:cx6", 2),)), Fittings((), 2000, 2, 8, 1)]
    short = [Fittings((("nic:cx6", 3),)), Fittings((("fpga", 1),)), Fittings((), 2001), Fittings((), 0, 3)]
    assert all(has.cover(asked) for asked in fits) and not any(has.cover(asked) for asked in short)


@pytest.mark.parametrize(("text", "cpus"), [("gres:gpu:2", 2), ("gpu:3", 3), ("gres/gpu:4", 4), ("N/A", 0), ("", 0)])
def test_cpus_for_each_gpu(text: str, cpus: int) -> None:
    """By the user's wish, or the default of a partition, which Slurm writes in other words."""
    fields = (*JOB_FIELDS, "cpus-per-tres")
    assert parsing.parse_jobs(text_of([{**JOB, "cpus-per-tres": text}], fields), MARK, fields)[0].cpus_per_gpu == cpus
