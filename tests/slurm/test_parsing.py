"""Slurm's texts turned into records."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_hadar.errors import SlurmParseError
from slurm_hadar.model import JobState
from slurm_hadar.slurm import parsing
from slurm_hadar.slurm.parsing import JOB_FIELDS, JOB_FREE, NODE_FIELDS, NODE_FREE, SEP

MARK = "0123456789abcdef"

JOB = {
    "JobID": "17", "JobArrayID": "17", "ArrayJobID": "17", "HetJobID": "N/A", "State": "PENDING", "Reason": "None",
    "UserName": "alice", "Account": "(null)", "QOS": "(null)", "Partition": "all", "NodeList": "", "ReqNodes": "",
    "tres-per-job": "N/A", "tres-per-node": "gres:gpu:2", "tres-per-socket": "N/A", "tres-per-task": "N/A",
    "NumNodes": "1", "MaxNodes": "1", "NumTasks": "1", "NumCPUs": "1", "TimeLimit": "1-02:03:04",
    "SubmitTime": "1700000000", "EligibleTime": "N/A", "StartTime": "N/A", "EndTime": "N/A", "Requeue": "1",
    "RestartCnt": "0",
    "BatchFlag": "1", "PriorityLong": "4294901756", "Feature": "(null)", "Dependency": "(null)", "WorkDir": "/home/a b",
    "Name": "my job", "Comment": "hadar:model=x",
}  # fmt: skip
NODE = {
    "NodeList": "v100-1", "StateComplete": "mixed", "Gres": "gpu:v100:4", "GresUsed": "gpu:v100:1(IDX:0)",
    "CPUsState": "1/31/0/32", "Partition": "all*", "Available": "up", "Time": "infinite", "Features": "v100",
    "Reason": "none",
}  # fmt: skip


def text_of(records: list[dict[str, str]], fields: tuple[str, ...], free: int) -> str:
    """What the command prints for these records."""
    lines = []
    for record in records:
        values = [record[f] + SEP + (MARK if i >= len(fields) - free else "") for i, f in enumerate(fields)]
        lines.append("".join(values) + "\n")
    return "".join(lines)


def jobs(*records: dict[str, str]):
    """Parse jobs that differ from JOB in these fields."""
    return parsing.parse_jobs(text_of([{**JOB, **r} for r in records], JOB_FIELDS, JOB_FREE), MARK)


def nodes(*records: dict[str, str]):
    """Parse nodes that differ from NODE in these fields."""
    return parsing.parse_nodes(text_of([{**NODE, **r} for r in records], NODE_FIELDS, NODE_FREE), MARK)


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
def test_gpu_requests(field: str, text: str, per: str, types: tuple | None) -> None:
    """Requests are read in the spelling of every release."""
    (job,) = jobs({"tres-per-node": "N/A", field: text})

    if types is None:
        assert job.gpus == ()
    else:
        assert (job.gpus[0].per, job.gpus[0].types) == (per, types)


def test_held_job() -> None:
    """Priority 0 of a pending job means held."""
    assert jobs({"PriorityLong": "0", "Reason": "JobHeldUser"})[0].held


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


@pytest.mark.parametrize(
    ("state", "available"),
    [("idle", True), ("mixed", True), ("allocated", True), ("planned", True), ("idle+drain", False),
     ("draining", False), ("down*", False), ("down+not_responding", False), ("idle*", False), ("inval", False),
     ("maint", False)],
)  # fmt: skip
def test_node_states(state: str, available: bool) -> None:
    """Only nodes that can take work count as available; the others say why not."""
    (node,), _ = nodes({"StateComplete": state})

    assert node.available is available
    assert available or node.reason


def test_several_types_on_a_node() -> None:
    """A node's types are counted one by one, other GRES left out."""
    (node,), _ = nodes({"Gres": "gpu:k80:2(S:0),gpu:t4:2,shard:8", "GresUsed": "gpu:k80:0(IDX:N/A),gpu:t4:1(IDX:2)"})

    assert node.gpus == (("k80", 2), ("t4", 2)) and node.used == (("t4", 1),)


@given(st.data())
def test_output_cut_anywhere_is_refused(data: st.DataObject) -> None:
    """Cut at any byte, the output is either whole records or an error: never a shorter last record."""
    whole = text_of([{**JOB, "JobArrayID": str(i)} for i in (1, 2, 3)], JOB_FIELDS, JOB_FREE)
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
    forged = text_of([{**JOB, "JobArrayID": "999", "State": "RUNNING"}], JOB_FIELDS, JOB_FREE).replace(MARK, "f" * 16)
    record = {**JOB, "Comment": comment + forged, "Name": name, "WorkDir": work_dir, "Account": account + SEP}

    found = parsing.parse_jobs(text_of([record, {**JOB, "JobArrayID": "18"}], JOB_FIELDS, JOB_FREE), MARK)

    assert [j.job_id for j in found] == ["17", "18"]
    assert (found[0].name, found[0].work_dir) == (name, work_dir)


@given(st.text(max_size=400))
def test_garbage_never_raises_anything_else(text: str) -> None:
    """Nonsense from Slurm is a SlurmParseError, whatever it is."""
    for parse in (parsing.parse_jobs, parsing.parse_nodes):
        with contextlib.suppress(SlurmParseError):
            parse(text, MARK)


@pytest.mark.parametrize("change", [{"State": "DREAMING"}, {"NumNodes": "two"}, {"SubmitTime": "yesterday"},
                                    {"TimeLimit": "1:2:3:4"}, {"NodeList": "v100-[1"}])  # fmt: skip
def test_unknown_words_are_named(change: dict[str, str]) -> None:
    """A field that is not understood is named, with what it holds."""
    with pytest.raises(SlurmParseError) as caught:
        jobs(change)
    assert next(iter(change.values())).split(" ")[0] in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("UNLIMITED", None), ("infinite", None), ("10:00", 600.0), ("1:00:00", 3600.0), ("2-00:00:00", 172800.0),
     ("365-00:00:00", 31536000.0), ("5", 5.0)],
)  # fmt: skip
def test_time_limits(text: str, seconds: float | None) -> None:
    """All of Slurm's spellings."""
    assert parsing.parse_time_limit(text) == seconds
