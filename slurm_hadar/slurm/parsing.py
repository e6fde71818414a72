"""Slurm's texts turned into records.

Where one record ends and the next begins :mod:`~slurm_hadar.slurm.framing` says, whatever users have written into them.
A job whose own record is not understood costs that job alone, which then says so in :attr:`SlurmJob.fault`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from slurm_hadar.errors import SlurmParseError
from slurm_hadar.model import JobState, Partition
from slurm_hadar.slurm.framing import SEP, records
from slurm_hadar.slurm.node_lists import expand
from slurm_hadar.slurm.state import Daemon, SlurmJob, SlurmNode
from slurm_hadar.slurm.tres import (
    fittings,
    gpu_numbers,
    node_shards,
    parse_gres,
    parse_tres,
    per_gpu,
    requests,
    shared_gpus,
    shares,
    text_or_empty,
    with_shared,
)

__all__ = [
    "DETAIL_FORMAT",
    "JOB_FIELDS",
    "MORE_JOB_FIELDS",
    "MORE_NODE_FIELDS",
    "NODE_FIELDS",
    "Details",
    "each_job",
    "job_state",
    "newer_fields",
    "node_is_bad",
    "parse_details",
    "parse_jobs",
    "parse_nodes",
    "parse_ping",
    "parse_time_limit",
    "unreadable",
]

JOB_FIELDS = (
    "JobID", "JobArrayID", "ArrayJobID", "HetJobID", "State", "Reason", "UserName", "UserID", "QOS", "Partition",
    "NodeList", "ReqNodes", "tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task", "tres-alloc",
    "NumNodes", "MaxNodes", "NumTasks", "NumCPUs", "TimeLimit", "SubmitTime", "EligibleTime", "StartTime", "EndTime",
    "Requeue", "RestartCnt", "BatchFlag", "PriorityLong", "OverSubscribe", "Licenses", "Reservation", "SchedNodes",
    "Feature", "Dependency", "Account", "WorkDir", "Name", "Comment",
)  # fmt: skip
#: Asked for beside these; a text without them can be read, too.
MORE_JOB_FIELDS = (
    "Deadline", "MinTmpDisk", "SCT", "cpus-per-tres", "MCSLabel", "NTPerNode", "NTPerSocket", "ReqSwitch",
)  # fmt: skip
NODE_FIELDS = ("NodeList", "StateComplete", "Gres", "GresUsed", "CPUsState", "Memory", "AllocMem", "Partition",
               "Available", "Time", "Features", "Reason")  # fmt: skip
MORE_NODE_FIELDS = ("PriorityTier", "PreemptMode", "Disk", "SocketCoreThread")  # as those of jobs
_STATES = {
    "PENDING": JobState.PENDING, "REQUEUED": JobState.PENDING, "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING, "SPECIAL_EXIT": JobState.PENDING, "RUNNING": JobState.RUNNING,
    "CONFIGURING": JobState.RUNNING, "RESIZING": JobState.RUNNING, "SIGNALING": JobState.RUNNING,
    "COMPLETING": JobState.COMPLETING, "STAGE_OUT": JobState.COMPLETING, "SUSPENDED": JobState.SUSPENDED,
    "STOPPED": JobState.SUSPENDED, "COMPLETED": JobState.DONE, "CANCELLED": JobState.FAILED,
    "FAILED": JobState.FAILED, "TIMEOUT": JobState.FAILED, "NODE_FAIL": JobState.FAILED,
    "PREEMPTED": JobState.FAILED, "BOOT_FAIL": JobState.FAILED, "DEADLINE": JobState.FAILED,
    "OUT_OF_MEMORY": JobState.FAILED, "REVOKED": JobState.FAILED, "RESV_DEL_HOLD": JobState.PENDING,
}  # fmt: skip
_BAD_NODE = re.compile(  # dynamic_future is there: a node of cloud or spare hardware that has registered (slurmd -F)
    r"down|drain|fail|inval|unknown|no_respond|power|reboot|maint|planned_down|blocked|\bfuture|error"
)
_MAINTENANCE = re.compile(r"\bmaint(?:enance)?\b")
_SWITCHED_ON = re.compile(r"\b(?:powered_down|powering_up|power_up)\b")  # by Slurm, for the job that it starts there
_JOB_ID = re.compile(r"[1-9][0-9]{0,17}(?:[_+][0-9]{1,9})?")
_DIGITS = re.compile(r"[0-9]{1,15}")
_FREES_GPUS = ("REQUEUE", "CANCEL")  # a suspended job keeps its GPUs
_SHARING = {"NO": "OK", "USER": "USER", "MCS": "MCS"}  # what Exclusive shows in the words of OverSubscribe, else NO
_SHARES = ("OK", "YES", "USER", "MCS")  # its nodes, with some jobs at least
_NO_LIMIT = 0xFFFE
_NO_VALUE = 0xFFFFFFFE  # Slurm shows its marks for "not set" and "infinite" as plain numbers


def parse_jobs(text: str, mark: str, fields: Sequence[str] = JOB_FIELDS) -> tuple[SlurmJob, ...]:
    """All of :func:`each_job`."""
    return tuple(each_job((text,), mark, fields))


def each_job(parts: Iterable[str], mark: str, fields: Sequence[str] = JOB_FIELDS) -> Iterator[SlurmJob]:
    """Read the output of ``squeue -h -r -t all -O`` :func:`format_option` (``fields``: JOB_FIELDS, or
    :func:`newer_fields`), in ``parts`` as it comes, job by job."""
    return (_job(record) for record in records(parts, fields, mark, "squeue"))


def newer_fields() -> tuple[str, ...]:
    """JOB_FIELDS for releases that tell apart who shares no GPU or core and who shares no node (26.05)."""
    return tuple("Exclusive" if name == "OverSubscribe" else name for name in JOB_FIELDS)


def _job(r: dict[str, str]) -> SlurmJob:
    """The job, or as much of it as is sure, with what is wrong with the rest."""
    job_id = r["JobArrayID"]
    try:
        if not _JOB_ID.fullmatch(job_id):
            raise SlurmParseError(f"squeue shows a job id this version does not understand: {job_id!r:.80}")
        return _understood(r)
    except (SlurmParseError, ValueError, OverflowError) as error:
        return unreadable(job_id, r["UserName"], r["NodeList"], r["State"], r["Name"], r["Comment"], str(error))


def unreadable(job_id: str, user: str, nodes: str, state: str, name: str, comment: str, why: str) -> SlurmJob:
    """A job whose record is not understood: it is shown, with the reason, and left to Slurm. ``nodes`` as Slurm writes
    them: a job that has some counts as running."""
    try:
        held = expand(nodes)
    except SlurmParseError:
        held = ()
    word = state.split("+")[0].split(" ")[0]
    assumed = _STATES.get(word, JobState.RUNNING if text_or_empty(nodes) else JobState.PENDING)
    return SlurmJob(
        job_id=job_id,
        raw_id=0,
        state=assumed,
        state_text=word,
        reason="",
        user=user,
        account="",
        qos="",
        partition="",
        nodes=held,
        req_nodes=(),
        features="",
        gpus=(),
        num_nodes=max(1, len(held)),
        max_nodes=max(1, len(held)),
        num_tasks=1,
        num_cpus=1,
        time_limit_s=None,
        submit=None,
        eligible=None,
        start=None,
        end=None,
        requeue=False,
        restarts=0,
        batch=False,
        priority=1,
        dependency="",
        array_id=None,
        het_id=None,
        name=name,
        comment=text_or_empty(comment),
        fault=f"Slurm's record of it cannot be read: {why}",
    )


def _understood(r: dict[str, str]) -> SlurmJob:
    job_id = r["JobArrayID"]
    state_text = r["State"].split("+")[0].split(" ")[0]
    state, asked = job_state(state_text, job_id), parse_tres(r["tres-alloc"])
    nodes, most = _int(r, "NumNodes", 1), _int(r, "MaxNodes", 0)
    if state is JobState.PENDING and most:  # what Slurm has reckoned with may be more than the fewest that it asks for
        nodes = asked.get("node", nodes)
    tasks = _int(r, "NumTasks", 1)
    if state is JobState.PENDING and "Exclusive" in r and most == tasks:  # 26.05's word for no limit
        most = nodes
    array = r["ArrayJobID"] if "_" in job_id else None
    cpus = _int(r, "NumCPUs", 1)
    sharing = _SHARING.get(r["Exclusive"], "NO") if "Exclusive" in r else r["OverSubscribe"]
    return SlurmJob(
        job_id=job_id,
        raw_id=_int(r, "JobID", 0),
        state=state,
        state_text=state_text,
        reason=text_or_empty(r["Reason"]),
        user=r["UserName"],
        account=text_or_empty(r["Account"]),
        qos=text_or_empty(r["QOS"]),
        partition=r["Partition"],
        nodes=expand(r["NodeList"]),
        req_nodes=expand(r["ReqNodes"]),
        sched_nodes=expand(r["SchedNodes"]),
        features=text_or_empty(r["Feature"]),
        gpus=requests(**{per: r[f"tres-per-{per}"] for per in ("job", "node", "socket", "task")}),
        shares=shares(r[f"tres-per-{per}"] for per in ("job", "node", "socket", "task")),
        num_nodes=nodes,
        max_nodes=most or nodes,
        num_tasks=tasks,
        num_cpus=cpus,
        time_limit_s=parse_time_limit(r["TimeLimit"]),
        submit=_time(r, "SubmitTime"),
        eligible=_time(r, "EligibleTime"),
        start=_time(r, "StartTime"),
        end=_time(r, "EndTime"),
        requeue=r["Requeue"] == "1",
        restarts=_int(r, "RestartCnt", 0),
        batch=r["BatchFlag"] != "0",  # 2 after a launch that failed
        priority=_int(r, "PriorityLong", 1),
        dependency=text_or_empty(r["Dependency"]),
        array_id=array,
        het_id=text_or_empty(r["HetJobID"]) or None,
        uid=int(r["UserID"]) if _DIGITS.fullmatch(r["UserID"]) else None,
        memory_bytes=asked.get("mem", 0),
        exclusive=sharing not in _SHARES,
        by_user=sharing == "USER",
        mcs=text_or_empty(r.get("MCSLabel", "")) if sharing == "MCS" else "",
        deadline=_time(r, "Deadline") if "Deadline" in r else None,
        licenses=text_or_empty(r["Licenses"]),
        reservation=text_or_empty(r["Reservation"]),
        work_dir=r["WorkDir"],
        name=r["Name"],
        comment=text_or_empty(r["Comment"]),
        asks=fittings(r["tres-per-node"], r.get("MinTmpDisk", ""), r.get("SCT", "")),
        cpus_per_gpu=per_gpu(r.get("cpus-per-tres", "")),
        tasks_per_node=_limit(r.get("NTPerNode", "")),
        tasks_per_socket=_limit(r.get("NTPerSocket", "")),
        switches=_limit(r.get("ReqSwitch", "")),
    )


def _limit(text: str) -> int:
    """A number of 16 bits; 0 for ``N/A`` and for Slurm's marks of no limit."""
    number = int(text) if _DIGITS.fullmatch(text) else 0
    return number if number < _NO_LIMIT else 0


def job_state(text: str, job_id: str) -> JobState:
    """Slurm's word for a job's state, such as ``RUNNING`` or ``CANCELLED by 0``."""
    word = text.split("+")[0].split(" ")[0]
    if word not in _STATES:
        raise SlurmParseError(f"Slurm shows job {job_id} in a state this version does not know: {text!r}")
    return _STATES[word]


def node_is_bad(state: str) -> bool:
    """Whether a node in this state (lower case, with flags) must get no new work. One that power saving has switched
    off is free, unlike one that is being switched off. One that has not answered yet, as right after it is resumed, is
    Slurm's to judge: it sets it down before long, or starts jobs there."""
    return bool(_BAD_NODE.search(_SWITCHED_ON.sub("", state))) or "*" in state


def parse_nodes(
    text: str, mark: str, fields: Sequence[str] = NODE_FIELDS
) -> tuple[tuple[SlurmNode, ...], tuple[Partition, ...]]:
    """Read the output of ``sinfo -h -N -O`` :func:`format_option` (``fields``): one record per node and partition."""
    nodes: dict[str, SlurmNode] = {}
    members: dict[str, list[str]] = {}
    belongs: dict[str, list[str]] = {}
    partitions: dict[str, Partition] = {}
    for r in records((text,), fields, mark, "sinfo"):
        name, partition = r["NodeList"], r["Partition"].rstrip("*")
        members.setdefault(partition, []).append(name)
        belongs.setdefault(name, []).append(partition)
        partitions[partition] = _partition(partition, r)
        if name not in nodes:
            nodes[name] = _node(r)
    whole = tuple(replace(p, nodes=tuple(sorted(members[p.name]))) for _, p in sorted(partitions.items()))
    return tuple(_with_partitions(nodes[n], tuple(sorted(set(belongs[n])))) for n in sorted(nodes)), whole


def _partition(name: str, r: dict[str, str]) -> Partition:
    tier, mode = r.get("PriorityTier", ""), r.get("PreemptMode", "")  # the cluster's, where it has none of its own
    return Partition(
        name,
        max_time_s=parse_time_limit(r["Time"]),
        up=r["Available"] in ("up", "drain"),  # which takes no more jobs, and runs those that it has
        tier=int(tier) if _DIGITS.fullmatch(tier) else 1,
        preemptible=any(word in mode for word in _FREES_GPUS),
        inactive=r["Available"].startswith("inact"),
    )


def _with_partitions(node: SlurmNode, partitions: tuple[str, ...]) -> SlurmNode:
    return replace(node, partitions=partitions)


def _node(r: dict[str, str]) -> SlurmNode:
    name, state = r["NodeList"], r["StateComplete"].lower()
    bad, reason = node_is_bad(state), text_or_empty(r["Reason"])
    maintenance = bad and not node_is_bad(_MAINTENANCE.sub("", state))
    try:
        gpus = parse_gres(r["Gres"])
        used = with_shared(gpus, parse_gres(r["GresUsed"]), shared_gpus(r["GresUsed"]))
    except SlurmParseError as error:  # the other nodes are read all the same
        gpus, used, bad, maintenance, reason = (), (), True, False, str(error)
    shards = node_shards(r["Gres"])
    cpus = r["CPUsState"].split("/")
    if len(cpus) != 4 or not all(c.isdecimal() for c in cpus):
        raise SlurmParseError(f"sinfo shows no CPU counts for node {name}: {r['CPUsState']!r}")
    return SlurmNode(
        name=name,
        gpus=gpus,
        used=used,
        state=state,
        available=not bad,
        reason=reason or (state if bad else ""),
        features=tuple(f for f in text_or_empty(r["Features"]).split(",") if f),
        cpus=int(cpus[3]),
        shards=shards,
        cpus_used=int(cpus[0]),
        memory_bytes=_mebibytes(r["Memory"]),
        memory_used_bytes=_mebibytes(r["AllocMem"]),
        whole=gpu_numbers(r["GresUsed"], "gpu") if shards else None,
        has=fittings(r["Gres"], r.get("Disk", ""), r.get("SocketCoreThread", "")),
        maintenance=maintenance,
    )


def _mebibytes(text: str) -> int:
    return int(text) << 20 if _DIGITS.fullmatch(text) else 0


class Details(NamedTuple):
    """What squeue tells in its older format only: the nodes that the owner excludes, and how many tasks of its array
    may run at once (None = any number)."""

    exc_nodes: tuple[str, ...] = ()
    throttle: int | None = None


#: Whose details are asked for: those that a round may place, of which one that runs keeps what its owner excludes.
DETAIL_STATES = "PENDING,RUNNING,SUSPENDED"
#: The value of ``-o`` for :func:`parse_details`, to be formatted with the mark.
DETAIL_FORMAT = f"%i{SEP}{{0}}%x{SEP}{{0}}"


def parse_details(text: str, mark: str) -> dict[str, Details]:
    """Read the output of ``squeue --array-unique -h -t`` DETAIL_STATES ``-o`` DETAIL_FORMAT: by job, of a job array by
    its id, whose throttle stands beside the tasks that wait, and by task where one is a record of its own, whose owner
    may have changed it alone. Of others only those that have any; those whose lists are not understood are left out."""
    found: dict[str, Details] = {}
    apart: dict[str, Details] = {}
    for r in records((text,), ("job", "excluded"), mark, "squeue"):
        array, _, tasks = r["job"].partition("_")
        _, percent, most = tasks.rstrip("]").rpartition("%")
        try:
            details = Details(expand(r["excluded"]), int(most) if percent and _DIGITS.fullmatch(most) else None)
        except SlurmParseError:
            continue
        if tasks.isdecimal():
            apart[r["job"]] = details
        elif details != Details():
            found[array] = details
    whole = {task: found.get(task.partition("_")[0], Details()) for task in apart}
    return {**found, **{task: details._replace(throttle=whole[task].throttle) for task, details in apart.items()}}


def parse_time_limit(text: str) -> float | None:
    """Seconds in Slurm's ``[days-]hours:minutes:seconds`` or ``minutes:seconds``; None for no limit."""
    if text.upper() in ("UNLIMITED", "INFINITE", "NOT_SET", "PARTITION_LIMIT", "INVALID", "N/A", ""):
        return None
    days, dash, rest = text.rpartition("-")
    parts = rest.split(":")
    if not all(_DIGITS.fullmatch(p) for p in [*parts, *([days] if dash else [])]) or len(parts) > 3:
        raise SlurmParseError(f"Slurm shows a time limit this version does not understand: {text!r}")
    numbers = [int(p) for p in parts]
    if dash:
        numbers += [0] * (3 - len(numbers))
    seconds = 0
    for number in numbers:
        seconds = seconds * 60 + number
    return float(seconds + (int(days) * 86400 if dash else 0))


def _int(r: dict[str, str], field: str, default: int) -> int:
    value = text_or_empty(r[field])
    if not value:
        return default
    digits = value.split("-")[0]  # "1-2" is a range; its lower end is what is asked for at least
    if not _DIGITS.fullmatch(digits):
        raise SlurmParseError(f"squeue shows {field}={value!r} for job {r['JobArrayID']}, where a number is expected")
    number = _number(digits)
    return default if number >= _NO_VALUE else number


def _time(r: dict[str, str], field: str) -> float | None:
    value = text_or_empty(r[field])
    if not value:
        return None
    if not _DIGITS.fullmatch(value.removeprefix("-")):
        raise SlurmParseError(f"squeue shows {field}={value!r} for job {r['JobArrayID']}, where epoch seconds belong")
    return _seconds(value)


# Most numbers stand in many records: each is kept once
_number = functools.lru_cache(maxsize=4096)(int)
_seconds = functools.lru_cache(maxsize=4096)(float)


def parse_ping(text: str) -> tuple[Daemon, ...]:
    """Every slurmctld that ``scontrol ping`` names, in the order in which they act. Raises SlurmParseError for none."""
    found = re.findall(r"^Slurmctld\((\w+)\) at (\S+) is (UP|DOWN)", text, re.MULTILINE)
    if not found:
        raise SlurmParseError("scontrol ping says nothing that this version understands")
    return tuple(Daemon(role, host, state == "UP") for role, host, state in found)
