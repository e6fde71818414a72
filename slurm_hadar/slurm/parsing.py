"""Slurm's texts turned into records. Raises SlurmParseError for anything cut short or not understood.

Free texts (work directory, names, comments, reasons) are whatever a user typed, so records and free fields are
separated by a mark drawn anew for each read: nobody can write a comment that forges another job's record.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence

from ClusterShell.NodeSet import NodeSet, NodeSetException

from slurm_hadar.errors import SlurmParseError
from slurm_hadar.model import JobState, Partition
from slurm_hadar.slurm.state import Daemon, GpuRequest, SlurmJob, SlurmNode

__all__ = [
    "JOB_FIELDS", "NODE_FIELDS", "SEP", "expand", "fold", "format_option", "job_state", "node_is_bad", "parse_gres",
    "parse_jobs", "parse_nodes", "parse_ping", "parse_request", "parse_time_limit", "text_or_empty",
]  # fmt: skip

SEP = "\x1f"

# Machine-made fields first, free texts last. Without slurmdbd an account may be any text.
JOB_FIELDS = (
    "JobID", "JobArrayID", "ArrayJobID", "HetJobID", "State", "Reason", "UserName", "QOS", "Partition", "NodeList",
    "ReqNodes", "tres-per-job", "tres-per-node", "tres-per-socket", "tres-per-task", "NumNodes", "MaxNodes", "NumTasks",
    "NumCPUs", "TimeLimit", "SubmitTime", "EligibleTime", "StartTime", "EndTime", "Requeue", "RestartCnt", "BatchFlag",
    "PriorityLong", "Feature", "Dependency", "Account", "WorkDir", "Name", "Comment",
)  # fmt: skip
JOB_FREE = 4
NODE_FIELDS = ("NodeList", "StateComplete", "Gres", "GresUsed", "CPUsState", "Partition", "Available", "Time",
               "Features", "Reason")  # fmt: skip
NODE_FREE = 1

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
_BAD_NODE = re.compile(r"down|drain|fail|inval|unknown|no_respond|power|reboot|maint|planned_down|blocked|future|error")
_GRES = re.compile(r"gpu(?::([^:(]+))?:(\d+)(?:\([^)]*\))?")
_REQUEST = re.compile(r"(?:gres[:/])?gpu(?::([A-Za-z][^:=,]*))?(?:[:=](\d+))?")
_DIGITS = re.compile(r"[0-9]{1,15}")
_RANGE = re.compile(r"([0-9]+)-([0-9]+)")
_MOST_NODES = 100_000  # more than any cluster; a range with a wrong digit must not fill the memory
_NO_VALUE = 0xFFFFFFFE  # Slurm shows its marks for "not set" and "infinite" as plain numbers
_NOTHING = frozenset(("", "N/A", "(null)", "NONE", "None", "n/a", "none", "Unknown"))


def format_option(fields: Sequence[str], free: int, mark: str) -> str:
    """The value of ``-O``/``--Format`` that makes :func:`_records` able to read the output."""
    machine = [f"{name}:{SEP}" for name in fields[: len(fields) - free]]
    texts = [f"{name}:{SEP}{mark}" for name in fields[len(fields) - free :]]
    return ",".join(machine + texts)


def _records(text: str, fields: Sequence[str], free: int, mark: str, what: str) -> Iterator[dict[str, str]]:
    """Split output into records: every field ends with SEP, free ones with SEP + mark, a record with a line end."""
    free_end = SEP + mark
    position, number = 0, 0
    known: dict[str, str] = {}  # most values stand in many records; each is kept once
    while position < len(text):
        number += 1
        values = []
        for index in range(len(fields)):
            end = SEP if index < len(fields) - free else free_end
            stop = text.find(end, position)
            if stop < 0:
                raise SlurmParseError(
                    f"{what} output is cut short in record {number} at field {fields[index]}; nothing was changed"
                )
            value = text[position:stop]
            # a user's text is taken as it is: blanks may be part of a directory's name
            value = value.strip() if end == SEP else value
            values.append(known.setdefault(value, value))
            position = stop + len(end)
        if not text.startswith("\n", position):
            raise SlurmParseError(f"{what} output has no line end after record {number}; nothing was changed")
        position += 1
        yield dict(zip(fields, values, strict=True))


def parse_jobs(text: str, mark: str) -> tuple[SlurmJob, ...]:
    """Read the output of ``squeue -h -r -t all -O`` :func:`format_option` (JOB_FIELDS)."""
    return tuple(_job(record) for record in _records(text, JOB_FIELDS, JOB_FREE, mark, "squeue"))


def _job(r: dict[str, str]) -> SlurmJob:
    job_id = r["JobArrayID"]
    state_text = r["State"].split("+")[0].split(" ")[0]
    nodes = _int(r, "NumNodes", 1)
    array = r["ArrayJobID"] if "_" in job_id else None
    return SlurmJob(
        job_id=job_id,
        raw_id=_int(r, "JobID", 0),
        state=job_state(state_text, job_id),
        state_text=state_text,
        reason=text_or_empty(r["Reason"]),
        user=r["UserName"],
        account=text_or_empty(r["Account"]),
        qos=text_or_empty(r["QOS"]),
        partition=r["Partition"],
        nodes=expand(r["NodeList"]),
        req_nodes=expand(r["ReqNodes"]),
        features=text_or_empty(r["Feature"]),
        gpus=_requests(r),
        num_nodes=nodes,
        max_nodes=max(nodes, _int(r, "MaxNodes", nodes)),
        num_tasks=_int(r, "NumTasks", 1),
        num_cpus=_int(r, "NumCPUs", 1),
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
        work_dir=r["WorkDir"],
        name=r["Name"],
        comment=text_or_empty(r["Comment"]),
    )


def job_state(text: str, job_id: str) -> JobState:
    """Slurm's word for a job's state, such as ``RUNNING`` or ``CANCELLED by 0``."""
    word = text.split("+")[0].split(" ")[0]
    if word not in _STATES:
        raise SlurmParseError(f"Slurm shows job {job_id} in a state this version does not know: {text!r}")
    return _STATES[word]


def node_is_bad(state: str) -> bool:
    """Whether a node in this state (lower case, with flags) must get no new work."""
    return bool(_BAD_NODE.search(state)) or "*" in state


def parse_nodes(text: str, mark: str) -> tuple[tuple[SlurmNode, ...], tuple[Partition, ...]]:
    """Read the output of ``sinfo -h -N -O`` :func:`format_option` (NODE_FIELDS): one record per node and partition."""
    nodes: dict[str, SlurmNode] = {}
    members: dict[str, list[str]] = {}
    partitions: dict[str, Partition] = {}
    for r in _records(text, NODE_FIELDS, NODE_FREE, mark, "sinfo"):
        name, partition = r["NodeList"], r["Partition"].rstrip("*")
        members.setdefault(partition, []).append(name)
        limit = parse_time_limit(r["Time"])
        partitions[partition] = Partition(partition, (), limit, r["Available"] == "up")
        if name not in nodes:
            nodes[name] = _node(r)
    belongs = {n: tuple(sorted(p for p, names in members.items() if n in names)) for n in nodes}
    whole = tuple(
        Partition(p.name, tuple(sorted(members[p.name])), p.max_time_s, p.up) for _, p in sorted(partitions.items())
    )
    return tuple(_with_partitions(nodes[n], belongs[n]) for n in sorted(nodes)), whole


def _with_partitions(node: SlurmNode, partitions: tuple[str, ...]) -> SlurmNode:
    return SlurmNode(
        node.name, node.gpus, node.used, node.state, node.available, node.reason, node.features, partitions,
        node.cpus, node.cpus_used,
    )  # fmt: skip


def _node(r: dict[str, str]) -> SlurmNode:
    name, state = r["NodeList"], r["StateComplete"].lower()
    bad = node_is_bad(state)
    cpus = r["CPUsState"].split("/")
    if len(cpus) != 4 or not all(c.isdecimal() for c in cpus):
        raise SlurmParseError(f"sinfo shows no CPU counts for node {name}: {r['CPUsState']!r}")
    return SlurmNode(
        name=name,
        gpus=parse_gres(r["Gres"]),
        used=parse_gres(r["GresUsed"]),
        state=state,
        available=not bad,
        reason=text_or_empty(r["Reason"]) or (state if bad else ""),
        features=tuple(f for f in text_or_empty(r["Features"]).split(",") if f),
        cpus=int(cpus[3]),
        cpus_used=int(cpus[0]),
    )


def parse_gres(text: str) -> tuple[tuple[str, int], ...]:
    """GPUs per type in a node's ``Gres`` or ``GresUsed``: ``gpu:v100:4(IDX:0-1)`` gives (("v100", 4),).

    GPUs without a type count as type ``gpu``; other GRES are not looked at.
    """
    total: dict[str, int] = {}
    for match in _GRES.finditer(text_or_empty(text)):
        name = match[1] or "gpu"
        total[name] = total.get(name, 0) + int(match[2])
    return tuple(sorted((t, n) for t, n in total.items() if n))


def _requests(r: dict[str, str]) -> tuple[GpuRequest, ...]:
    found = []
    for per in ("job", "node", "socket", "task"):
        types = parse_request(r[f"tres-per-{per}"])
        if types:
            found.append(GpuRequest(per, types))
    return tuple(found)


@functools.lru_cache(maxsize=1024)
def parse_request(text: str) -> tuple[tuple[str, int], ...]:
    """GPUs in a TRES request, ``gres:gpu:2`` (22.05) or ``gres/gpu:v100:2`` (later), as ((type or "", count),)."""
    total: dict[str, int] = {}
    for part in text_or_empty(text).split(","):
        match = _REQUEST.fullmatch(part)
        if match:
            name = match[1] or ""
            total[name] = total.get(name, 0) + int(match[2] or 1)
    return tuple(sorted((t, n) for t, n in total.items() if n))


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


def expand(text: str) -> tuple[str, ...]:
    """Node names in a Slurm node list, sorted as Slurm sorts them; empty for none."""
    if text_or_empty(text) == "":
        return ()
    try:
        # each range first, since the set spells them out; then their combinations, of which it only knows the number
        if any(int(last) - int(first) > _MOST_NODES for first, last in _RANGE.findall(text)):
            raise NodeSetException(f"more than {_MOST_NODES} nodes")
        found = NodeSet(text)
        if len(found) > _MOST_NODES:
            raise NodeSetException(f"{len(found)} nodes")
        return tuple(found)
    except (NodeSetException, ValueError, AssertionError) as error:  # of ClusterShell, for numbers beyond reason
        raise SlurmParseError(f"Slurm shows a node list this version does not understand: {text!r} ({error})") from None


def fold(nodes: Sequence[str]) -> str:
    """The names as one comma list. Not folded into brackets: scontrol takes both, and a plain list is easier read."""
    return ",".join(nodes)


def text_or_empty(value: str) -> str:
    """Empty where Slurm writes one of its words for nothing."""
    return "" if value in _NOTHING else value


def _int(r: dict[str, str], field: str, default: int) -> int:
    value = text_or_empty(r[field])
    if not value:
        return default
    digits = value.split("-")[0]  # "1-2" is a range; its lower end is what is asked for at least
    if not _DIGITS.fullmatch(digits):
        raise SlurmParseError(f"squeue shows {field}={value!r} for job {r['JobArrayID']}, where a number is expected")
    return default if int(digits) >= _NO_VALUE else int(digits)


def _time(r: dict[str, str], field: str) -> float | None:
    value = text_or_empty(r[field])
    if not value:
        return None
    if not _DIGITS.fullmatch(value.removeprefix("-")):
        raise SlurmParseError(f"squeue shows {field}={value!r} for job {r['JobArrayID']}, where epoch seconds belong")
    return float(value)


def parse_ping(text: str) -> tuple[Daemon, ...]:
    """Every slurmctld that ``scontrol ping`` names, in the order in which they act. Raises SlurmParseError for none."""
    found = re.findall(r"^Slurmctld\((\w+)\) at (\S+) is (UP|DOWN)", text, re.MULTILINE)
    if not found:
        raise SlurmParseError("scontrol ping says nothing that this version understands")
    return tuple(Daemon(role, host, state == "UP") for role, host, state in found)
