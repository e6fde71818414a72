"""What Slurm would refuse or leave waiting, apart from GPUs in use: limits, licences, reservations, partitions' terms.

Read in one call of ``scontrol -o``. Who may not see a part of it (``PrivateData``) gets what is shown; the rest is
learned from the reasons that Slurm gives.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from slurm_hadar.errors import SlurmParseError
from slurm_hadar.slurm.node_lists import expand
from slurm_hadar.slurm.state import (
    EVERYBODY,
    Access,
    Bounds,
    Licence,
    Limit,
    PartitionTerms,
    Reservation,
    SlurmJob,
    SlurmNode,
)
from slurm_hadar.slurm.tres import text_or_empty

__all__ = ["QUESTIONS", "open_maintained", "parse_bounds"]

#: What to ask ``scontrol -o``, a line each, for :func:`parse_bounds`.
QUESTIONS = "show licenses\nshow reservations\nshow partitions\nshow assoc flags=assoc,qos\n"

_WORD = re.compile(r"(\w+)=(\S*)")
_LIMIT = re.compile(r"([^=,()]+)=(\d{1,15})\((\d{1,15})\)")
_EACH_JOB = re.compile(r"([^=,()]+)=(\d{1,15})(?=,|$)")
_COUNT = re.compile(r"(\d{1,15})\((\d{1,15})\)")
_INSIDE = re.compile(r"(\S+)=\{([^}]*)\}")
_NUMBER = re.compile(r"\d{1,9}")
_ID = re.compile(r"(.*)\((\d+)\)")
_PER_GPU = re.compile(r"\bDefCpuPerGPU=(\d{1,9})", re.IGNORECASE)
_MIB = 1 << 20  # in which these texts count memory


def parse_bounds(text: str, job_defaults: str = "", associations: bool = True) -> Bounds:
    """Read scontrol's answers to QUESTIONS, in any order. Lines that are not understood tell nothing. ``job_defaults``:
    the cluster's ``JobDefaults``; ``associations``: whether Slurm minds whose account and QOS a job has
    (``AccountingStorageEnforce``)."""
    limits: list[Limit] = []
    licences: dict[str, Licence] = {}
    reservations: list[Reservation] = []
    parents: dict[str, str] = {}
    partitions: dict[str, PartitionTerms] = {}
    for line in text.splitlines():
        words = dict(_WORD.findall(line.partition(" Account Limits=")[0]))
        if line.startswith("LicenseName="):
            found = _licence(words)
            licences[found.name] = found
        elif line.startswith("ReservationName="):
            reservations += _reservation(words, line)
        elif line.startswith("PartitionName="):
            partitions[words["PartitionName"]] = _terms(words, job_defaults, associations)
        elif line.startswith("ClusterName="):
            limits += _association(words)
            parent = _ID.fullmatch(words.get("ParentAccount", ""))
            if parent and not words.get("UserName"):
                parents[words["Account"]] = parent[1]
        elif line.startswith("QOS="):
            limits += _qos(words, line)
    return Bounds(tuple(limits), licences, tuple(reservations), parents, partitions)


def open_maintained(
    nodes: Iterable[SlurmNode], jobs: Iterable[SlurmJob], reservations: Iterable[Reservation], now: float
) -> tuple[SlurmNode, ...]:
    """The nodes; those in maintenance are available where jobs that run or wait name the reservation that says so.
    To all others they are closed as reserved nodes are."""
    named = {name for job in jobs if job.state.active for name in job.reservation.split(",") if name}
    current = [r for r in reservations if r.whole and r.start <= now < r.end and r.name in named]
    open_ = {name for reservation in current for name in reservation.nodes}
    return tuple(replace(n, available=True, reason="") if n.maintenance and n.name in open_ else n for n in nodes)


def _terms(words: Mapping[str, str], job_defaults: str, associations: bool) -> PartitionTerms:
    numbers = {name: int(text) for name, text in words.items() if _NUMBER.fullmatch(text)}
    default = _PER_GPU.search(words.get("JobDefaults", "")) or _PER_GPU.search(job_defaults)
    return PartitionTerms(
        numbers.get("MinNodes", 0),
        numbers.get("MaxNodes"),
        numbers.get("MaxCPUsPerNode"),
        int(default[1]) if default else 0,
        _access(words, "Accounts") if associations else EVERYBODY,
        _access(words, "Qos") if associations else EVERYBODY,
        words.get("ExclusiveUser") == "YES",
        text_or_empty(words.get("QoS", "")),
    )


def _access(words: Mapping[str, str], what: str) -> Access:
    """Slurm shows, and minds, who is denied only where nobody in particular is allowed."""
    allowed, denied = words.get(f"Allow{what}", "ALL"), words.get(f"Deny{what}", "")
    return Access(None if allowed == "ALL" else _names(allowed), _names(denied))


def _names(text: str) -> frozenset[str]:
    return frozenset(name for name in text_or_empty(text).split(",") if name)


def _listed(text: str) -> Access:
    """The users or accounts of a reservation: ``a,b``, or ``-a,-b`` for all others."""
    names = _names(text)
    denied = frozenset(name[1:] for name in names if name.startswith("-"))
    return Access(None if not names or denied else names, denied)


def _licence(words: Mapping[str, str]) -> Licence:
    total, used, reserved = (
        int(v) if (v := words.get(k, "0")).isdecimal() else 0 for k in ("Total", "Used", "Reserved")
    )
    return Licence(words["LicenseName"], total, max(0, total - used - reserved))


def _reservation(words: Mapping[str, str], line: str) -> Iterator[Reservation]:
    start, end = words.get("StartTime", ""), words.get("EndTime", "")
    try:
        nodes = frozenset(expand(text_or_empty(words.get("Nodes", ""))))
    except SlurmParseError:
        return
    if nodes and start.isdecimal() and end.isdecimal():
        flags = words.get("Flags", "").split(",")
        # of a group, a partition or a QOS, that takes who names it only: the rest is Slurm's to judge
        narrow = ("Groups", "PartitionName", "AllowedPartitions", "QOS")
        plain = all(not text_or_empty(words.get(name, "")) for name in narrow)
        yield Reservation(
            words["ReservationName"],
            nodes,
            float(start),
            float(end),
            " CoreIDs=" not in line,
            "FLEX" in flags,
            "MAGNETIC" in flags and plain,
            "AllowedPartitions" in words,  # by which 26.05 is known
            _listed(words.get("Users", "")),
            _listed(words.get("Accounts", "")),
        )


def _association(words: Mapping[str, str]) -> Iterator[Limit]:
    account, user = words.get("Account", ""), _ID.fullmatch(words.get("UserName", ""))
    if words.get("Partition"):
        return  # an association of one partition: what it limits is learned from Slurm's reasons
    scope = ("user", account, user[1]) if user else ("account", account)
    yield from _counted(scope, words)
    if user and (count := _COUNT.fullmatch(words.get("MaxJobs", ""))):  # an account only hands its own down to users
        yield Limit(scope, "jobs", int(count[1]), int(count[2]))


def _qos(words: Mapping[str, str], line: str) -> Iterator[Limit]:
    found = _ID.fullmatch(words["QOS"])
    if found is None:
        return
    yield from _counted(("qos", found[1]), words)
    _, _, rest = line.partition(" Account Limits=")
    accounts, _, users = rest.partition(" User Limits=")
    for kind, part in (("qos-account", accounts), ("qos-user", users)):
        for who, inside in _INSIDE.findall(part):
            named = _ID.fullmatch(who) if kind == "qos-user" else None  # alice(1001) in 24.11, 1001 in 22.05
            yield from _counted((kind, found[1], named[2] if named else who), dict(_WORD.findall(inside)))


def _counted(scope: tuple[str, ...], words: Mapping[str, str]) -> Iterator[Limit]:
    for key in ("GrpJobs", "MaxJobsPU", "MaxJobsPA"):
        if count := _COUNT.fullmatch(words.get(key, "")):
            yield Limit(scope, "jobs", int(count[1]), int(count[2]))
    for key in ("GrpTRES", "MaxTRESPU", "MaxTRESPA"):
        for what, most, used in _LIMIT.findall(words.get(key, "")):
            scale = _MIB if what == "mem" else 1
            yield Limit(scope, what, int(most) * scale, int(used) * scale)
    for what, most in _EACH_JOB.findall(words.get("MaxTRESPJ", "")):
        yield Limit(scope, what, int(most) * (_MIB if what == "mem" else 1), each_job=True)
