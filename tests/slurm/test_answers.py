"""What scontrol answers to a batch of writes, and what it tells of limits."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from slurm_hadar.model import JobState
from slurm_hadar.slurm.answers import bare, complaints, results
from slurm_hadar.slurm.limits import parse_bounds
from slurm_hadar.slurm.state import Access, Licence, Limit, PartitionTerms, Write, WriteResult
from slurm_hadar.testing.fake_slurm import FakeSlurm

WHEN = (("StartTime", "now+60"),)
NOISE = "scontrol: error: Ignoring ControlMachine since SlurmctldHost is set.\n"


def verdicts(stderr: str, *jobs: str, code: int = 1) -> dict[str, str | None]:
    """What became of each job, none of which looks changed."""
    writes = [Write("update", jobs, WHEN)]
    return {r.job_id: r.error for r in results(writes, complaints(writes, stderr, code, {bare(NOISE)}), {})}


def test_complaints_about_ranges_are_the_jobs_in_them() -> None:
    """scontrol names the tasks of an array that share an answer in one list."""
    said = "16_1-3,7: Job has already finished\n16_8-12:2: Invalid job id specified\n16_20-21: No error\n"

    found = verdicts(said, "16_1", "16_2", "16_3", "16_4", "16_7", "16_8", "16_9", "16_10", "16_20")

    assert {job for job, error in found.items() if error} == {"16_1", "16_2", "16_3", "16_7", "16_8", "16_10"}
    assert found["16_1"] == "Job has already finished" and found["16_8"] == "Invalid job id specified"


def test_of_a_refusal_since_the_partition_is_inactive_the_job_decides() -> None:
    """Slurm looks at that last, and has put the job off."""
    slurm, now = FakeSlurm({"v100-1": ("v100", 4)}), time.time()
    shown = {job: replace(slurm.jobs[slurm.submit()], eligible=now + wait_s) for job, wait_s in (("1", 60), ("2", -60))}
    writes = [Write("update", ("1", "2"), WHEN)]
    refused = "Requested partition configuration not available now"

    told = complaints(writes, f"{refused} for job 1\n{refused} for job 2\n", 1)

    assert told.doubtful
    assert [r.error for r in results(writes, told, shown, now)] == [None, refused]


def test_a_line_that_names_no_job_is_not_explained_by_one_that_does() -> None:
    """Who is not named is looked at."""
    slurm, now = FakeSlurm({"v100-1": ("v100", 4)}), time.time()
    shown = {job: replace(slurm.jobs[slurm.submit()], eligible=now + wait_s) for job, wait_s in
             (("1", 60), ("2", 60), ("3", -60))}  # fmt: skip
    writes = [Write("update", ("1", "2", "3"), WHEN)]

    told = complaints(writes, "Invalid node name specified\nAccess/permission denied for job 1\n", 1)

    assert [r.error for r in results(writes, told, shown, now)] == [
        "Access/permission denied", None, "Invalid node name specified",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["16_1-99999999999999: x", "16_-: x", "16_: x", "16_5-1: x", "99_1-3: Job y"])
def test_odd_ranges_are_nobodys(text: str) -> None:
    """They are no job's: those that are not named are looked at."""
    assert verdicts(text + "\n7: Job has already finished\n", "7", "16_4") == {
        "7": "Job has already finished",
        "16_4": text,
    }


def test_what_names_no_job_is_no_refusal_where_scontrol_succeeds() -> None:
    """A line about slurm.conf stands there whatever is asked."""
    assert verdicts(NOISE, "1", "2", code=0) == {"1": None, "2": None}
    assert verdicts(NOISE + "Job has already finished for job 1\n", "1", "2") == {
        "1": "Job has already finished", "2": None,
    }  # fmt: skip


def test_where_scontrol_does_not_say_which_write_failed_the_jobs_decide() -> None:
    """What is as it was asked for was taken; a requeue that took effect, too."""
    slurm, now = FakeSlurm({"v100-1": ("v100", 4)}), time.time()
    for _ in range(5):
        slurm.submit()
    for job_id in ("1", "2"):
        slurm.start(job_id, "v100-1")
    shown = {j.job_id: j for j in slurm.read_jobs()}
    shown["1"] = replace(shown["1"], state=JobState.COMPLETING)
    shown["3"] = replace(shown["3"], eligible=now + 60, req_nodes=("n1", "n2"))
    shown["4"] = replace(shown["4"], eligible=now, req_nodes=("n1",), priority=0)
    shown["5"] = replace(shown["5"], state=JobState.RUNNING, eligible=now)
    writes = [
        Write("requeue", ("1", "2", "7")), Write("update", ("3", "4", "5"), WHEN), Write("release", ("3", "4")),
        Write("update", ("3",), (("NodeList", "n[1-2]"), ("NumNodes", "1-1"), ("Comment", "hadar:"))),
        Write("update", ("4",), (("NodeList", ""), ("StartTime", "now"))), Write("restart", ("5",)),
        Write("update", ("3",), (("NumNodes", "2-2"),)), Write("update", ("3",), (("Comment", "hadar:pin=yes"),)),
    ]  # fmt: skip

    told = complaints(writes, NOISE + "Request aborted\n", 1, {bare(NOISE)})
    found = [(r.write.verb, r.job_id, r.error) for r in results(writes, told, shown, now)]

    assert {error for *_, error in found} == {None, "Request aborted"}
    assert [(verb, job_id, error is None) for verb, job_id, error in found] == [
        ("requeue", "1", True), ("requeue", "2", False), ("requeue", "7", False),
        ("update", "3", True), ("update", "4", False), ("update", "5", False),
        ("release", "3", True), ("release", "4", False), ("update", "3", True), ("update", "4", False),
        ("restart", "5", True), ("update", "3", False), ("update", "3", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "overtaken"),
    [("Job has already finished", True), ("Job is no longer pending execution", True),
     ("Invalid job id specified", True),
     ("Job is pending execution", True), ("Invalid node name specified", False), ("Access/permission denied", False),
     (None, False)],
)  # fmt: skip
def test_what_came_too_late_is_no_refusal(error: str | None, overtaken: bool) -> None:
    """A job may end, start or be cancelled between the look and the write."""
    assert WriteResult("1", Write("update", ("1",)), error).overtaken is overtaken


QOS = (
    "QOS=small(2) GrpJobs=N(1) GrpTRES=cpu=N(1),gres/gpu=6(2) MaxTRESPJ=gres/gpu=4 Account Limits= "
    "lab={MaxJobsPA=7(1) MaxTRESPA=cpu=N(1)} "
    "User Limits= 1001={MaxJobsPU=1(1) MaxTRESPU=cpu=2(1),gres/gpu:v100=2(1)}"
)
ASSOC = """scontrol: show licenses
LicenseName=matlab Total=5 Used=2 Free=3 Reserved=1 Remote=no
scontrol: show reservations
ReservationName=r1 StartTime=1795380665 EndTime=1795381265 Duration=00:10:00 Nodes=k80-[1-2] NodeCnt=2 CoreCnt=64
ReservationName=r2 StartTime=1795384795 EndTime=1795385395 Nodes=k80-1 NodeCnt=1 CoreCnt=3    NodeName=k80-1 CoreIDs=0-2
ReservationName=r4 StartTime=1795384795 EndTime=1795385395 Nodes=k80-1 Features=(null) Flags=FLEX,SPEC_NODES TRES=cpu=64
ReservationName=r3 StartTime=soon EndTime=later Nodes=k80-[1
Association Records
ClusterName=c Account=root UserName= Partition= ID=1 ParentAccount= GrpJobs=N(2) GrpTRES=cpu=N(2),gres/gpu=N(3) MaxJobs=
ClusterName=c Account=lab UserName= Partition= ID=3 ParentAccount=root(1) GrpJobs=9(1) GrpTRES=cpu=N(1),gres/gpu=8(2)
ClusterName=c Account=lab UserName=bob(1001) Partition= ParentAccount= GrpJobs=N(1) GrpTRES=mem=100(50) MaxJobs=4(1)
ClusterName=c Account=lab UserName=bob(1001) Partition=big ParentAccount= GrpJobs=N(1) GrpTRES=cpu=1(1) MaxJobs=1(1)
QOS_LINE
scontrol:
""".replace("QOS_LINE", QOS)


def test_users_of_a_qos_are_named_in_24_11() -> None:
    """By name and number; the number counts."""
    assert parse_bounds(ASSOC.replace(" 1001={", " bob(1001)={")) == parse_bounds(ASSOC)


def test_limits_licences_and_reservations() -> None:
    """Everything that has a number, by whom it binds; what is not set or not understood tells nothing."""
    found = parse_bounds(ASSOC)

    assert set(found.limits) == {
        Limit(("account", "lab"), "jobs", 9, 1),
        Limit(("account", "lab"), "gres/gpu", 8, 2),
        Limit(("user", "lab", "bob"), "mem", 100 << 20, 50 << 20),
        Limit(("user", "lab", "bob"), "jobs", 4, 1),
        Limit(("qos", "small"), "gres/gpu", 6, 2),
        Limit(("qos-account", "small", "lab"), "jobs", 7, 1),
        Limit(("qos-user", "small", "1001"), "jobs", 1, 1),
        Limit(("qos-user", "small", "1001"), "cpu", 2, 1),
        Limit(("qos-user", "small", "1001"), "gres/gpu:v100", 2, 1),
        Limit(("qos", "small"), "gres/gpu", 4, each_job=True),
    }
    assert found.licences == {"matlab": Licence("matlab", 5, 2)}
    assert [(r.name, sorted(r.nodes), r.whole, r.flex) for r in found.reservations] == [
        ("r1", ["k80-1", "k80-2"], True, False),
        ("r2", ["k80-1"], False, False),
        ("r4", ["k80-1"], True, True),
    ]
    assert found.parents == {"lab": "root"}


PARTITIONS = """\
PartitionName=all MaxNodes=UNLIMITED MaxTime=UNLIMITED MinNodes=0 MaxCPUsPerNode=UNLIMITED Nodes=n1 JobDefaults=(null)
PartitionName=few MaxNodes=2 MinNodes=1 MaxCPUsPerNode=8 JobDefaults=DefCpuPerGPU=3,DefMemPerGPU=4000 TRES=cpu=64
"""


def test_whom_partitions_and_reservations_take() -> None:
    """By account and QOS, if Slurm minds them; who is denied counts where nobody in particular is allowed. And who may
    be beside whom."""
    text = (
        "PartitionName=own QoS=bounded ExclusiveUser=YES\n"
        "PartitionName=b ExclusiveUser=NO AllowGroups=ALL DenyAccounts=x,y AllowQos=foo State=UP\n"
        "PartitionName=a AllowAccounts=ALL QoS=N/A\n"
        "ReservationName=m StartTime=1 EndTime=9 Nodes=n1 Flags=FLEX,MAGNETIC Users=-eve Groups=(null) Accounts=lab\n"
        "ReservationName=g StartTime=1 EndTime=9 Nodes=n1 Flags=MAGNETIC Users=(null) Groups=them Accounts=(null)\n"
        "ReservationName=n StartTime=1 EndTime=9 Nodes=n1 Flags=MAGNETIC AllowedPartitions=(null) QOS=(null) Users=al\n"
        "ReservationName=q StartTime=1 EndTime=9 Nodes=n1 Flags=MAGNETIC AllowedPartitions=a QOS=(null) Users=al\n"
    )
    b = PartitionTerms(accounts=Access(None, frozenset({"x", "y"})), qos=Access(frozenset({"foo"})))
    found = parse_bounds(text)

    assert found.partitions == {"a": PartitionTerms(), "b": b, "own": PartitionTerms(by_user=True, own_qos="bounded")}
    assert parse_bounds(text, associations=False).partitions["b"] == PartitionTerms()
    al = Access(frozenset({"al"}))
    assert [(r.magnetic, r.outlasts, r.users, r.accounts) for r in found.reservations] == [
        (True, False, Access(None, frozenset({"eve"})), Access(frozenset({"lab"}))), (False, False, Access(), Access()),
        (True, True, al, Access()), (False, True, al, Access()),
    ]  # fmt: skip


def test_terms_of_partitions() -> None:
    """How many nodes and CPUs; what is not limited tells nothing. Its own defaults go before the cluster's."""
    few = PartitionTerms(1, 2, 8, 3)

    assert parse_bounds(PARTITIONS).partitions == {"all": PartitionTerms(), "few": few}
    found = parse_bounds(PARTITIONS, "DefCpuPerGPU=5")
    assert found.partitions == {"all": PartitionTerms(cpus_per_gpu=5), "few": few}
    assert (found.node_limits("few"), found.node_limits("all,few"), found.node_limits("new")) == (
        (1, 2), (0, None), (0, None)
    )  # fmt: skip
