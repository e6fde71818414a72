"""Jobs with shards of GPUs as a policy sees them: who is whose guest, and what pairs keep of their speeds.

A policy puts guests on the GPU of a host (:mod:`slurm_hadar.policies.toolkit.shared_gpus.pairing`). Slurm gives shards
to whoever asks for them: of several on a GPU the first that came is the host. Who is on a GPU together with a job that
is left to Slurm is left to it, too."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_hadar.config import JobsSection, SharedBy, SharedGpus
from slurm_hadar.controller.observe.company import companies, on_gpus
from slurm_hadar.controller.observe.jobs.facts import JobFacts
from slurm_hadar.controller.observe.sources import Sources
from slurm_hadar.controller.steering.nodes import NodeBook
from slurm_hadar.model import MOST_SLOW_DOWN, Company, Job, JobState, Kept, Pairing, Snapshot
from slurm_hadar.policies.toolkit.shared_gpus.company import duties_of, fits, shares_kept
from slurm_hadar.policies.toolkit.shared_gpus.turn_shares import EQUAL
from slurm_hadar.slurm.state import SlurmJob
from slurm_hadar.throughput.colocation import published

__all__ = [
    "UserPairings",
    "accepted_slow_down",
    "fit_together",
    "gpu_bytes",
    "likeness",
    "measured_companies",
    "most_taken",
    "note_company",
    "note_needs",
    "own_turns",
    "pairings",
    "with_company",
]

_HALF: Kept = (0.5, 0.5)
_SEP = "\x1f"
_MARGIN = 1.1  # Salus' released code adds 10 % to persistent memory, and 5 % to both


def _misfits(known: Mapping[str, JobFacts | None], jobs: Iterable[SlurmJob]) -> tuple[dict[str, str], dict[str, str]]:
    """The hosts of guests; and why others that could be steered are not: for their company on their GPU."""
    hosts: dict[str, str] = {}
    pinned: dict[str, str] = {}
    gpus = on_gpus(jobs)
    unknown = {node for node, number in gpus if number is None}
    for (node, _), everybody in gpus.items():
        there = [job for job in everybody if job.state is not JobState.COMPLETING]
        ours = [job.job_id for job in there if (facts := known.get(job.job_id)) is not None and facts.pinned is None]
        if node in unknown:
            pinned.update(dict.fromkeys(ours, f"has a part of a GPU of {node}, and Slurm does not say of which"))
        elif len(there) == len(ours):
            hosts.update(dict.fromkeys(ours[1:], ours[0]))
        else:
            pinned.update(dict.fromkeys(ours, _beside([job.job_id for job in there if job.job_id not in ours])))
    return hosts, pinned


def _beside(left: Sequence[str]) -> str:
    """That a job goes with those on its GPU who are ``left`` to Slurm."""
    who = f"job {left[0]}, which is" if len(left) == 1 else f"jobs {', '.join(left)}, which are"
    return f"shares its GPU with {who} left to Slurm: then so is everybody on it"


def _named(user: str, workload: str) -> str:
    return f"{user}{_SEP}{workload}"


def likeness(facts: JobFacts) -> str:
    """What pairings call the job: how fast two are together is measured of one user's jobs."""
    return _named(facts.job.user, facts.workload(1))


def accepted_slow_down(facts: JobFacts, site: float, nodes: NodeBook) -> float:
    """How many times as long the job's iterations may take: what its owner says, else the site; where neither says
    anything, what it asked for. One that asks for 1 of 4 shards of a GPU asks for a quarter of its time."""
    if not facts.job.shards:
        return 1.0  # Slurm cannot make its GPU a shared one
    if facts.comment.slow_down is not None:
        return facts.comment.slow_down
    if site > 1:
        return site
    per_gpu = [nodes[n].per_gpu for n in (facts.job.nodes or facts.form.nodes or nodes) if nodes[n].per_gpu]
    return min(MOST_SLOW_DOWN, max(1.0, min(per_gpu, default=1) / max(1, facts.record.shards)))


def fit_together(one: tuple[int, int] | None, other: tuple[int, int] | None, gpu_bytes: int | None) -> bool:
    """Whether two that take turns have room. What is not known of both fits: then it is the broker that lets in only
    who does."""
    return one is None or other is None or fits((one, other), gpu_bytes)


def _parted(pair: Pairing) -> tuple[tuple[str, str], Pairing]:
    """The users of two likenesses, and the pair of their workloads."""
    (user, _, first), (others_user, _, second) = (name.partition(_SEP) for name in pair[:2])
    return (user, others_user), (first, second, pair[2])


@dataclass(frozen=True)
class UserPairings(Mapping[Pairing, Kept]):
    """What two jobs keep of their speeds: as was measured of the jobs of one of their users, else ``prior``. Jobs of
    different users are paired only if that is allowed by ``shared_by``: a broker gives turns to one user's jobs, unless
    root runs one for all. So are those only whose memory fits together, where it is known what they take: ``taken`` is
    persistent and ephemeral bytes by user and workload, ``gpu_bytes`` what GPUs of a type have."""

    likenesses: frozenset[str]
    gpu_types: frozenset[str]
    measured: Mapping[str, Mapping[Pairing, Kept]]
    prior: SharedGpus
    shared_by: SharedBy = SharedBy.USER
    taken: Mapping[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    gpu_bytes: Mapping[str, int] = field(default_factory=dict)

    def __getitem__(self, pair: Pairing) -> Kept:
        one, other, gpu_type = pair
        users, workloads = _parted(pair)
        strangers = len({*users}) > 1 and self.shared_by is SharedBy.USER
        if strangers or gpu_type not in self.gpu_types or not {one, other} <= self.likenesses:
            raise KeyError(pair)
        mine, others = (self.taken.get((user, workloads[n])) for n, user in enumerate(users))
        if not fit_together(mine, others, self.gpu_bytes.get(gpu_type)):
            raise KeyError(pair)
        known = self._measured(pair)
        if known is None:
            known = _HALF if self.prior is SharedGpus.TURNS else published()[workloads]
        return known

    def known_by(self, pair: Pairing) -> str:
        """``measured`` here, or what is assumed: ``turns`` or ``beside``."""
        return self.prior.value if self._measured(pair) is None else "measured"

    def _measured(self, pair: Pairing) -> Kept | None:
        users, workloads = _parted(pair)
        by_users = (self.measured.get(user, {}).get(workloads) for user in users)
        return next((kept for kept in by_users if kept is not None), None)

    def __iter__(self) -> Iterator[Pairing]:
        every = ((a, b, t) for a in self.likenesses for b in self.likenesses for t in self.gpu_types)
        return (pair for pair in every if self.get(pair) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return bool(self.likenesses)


def pairings(jobs: Iterable[Job], nodes: NodeBook, sources: Sources, settings: JobsSection) -> Mapping[Pairing, Kept]:
    """Of the jobs that may share a GPU; empty where none may."""
    named = {job.pairs_as: job.user for job in jobs if job.pairs_as and job.pinned is None}
    if not named:
        return {}
    measured: Mapping[str, Mapping[Pairing, Kept]] = {}
    if sources.profiles is not None:
        with sources.best_effort():
            measured = sources.profiles.pairings()
    types = frozenset(node.gpu_type for node in nodes.values() if node.gpu_type and node.per_gpu)
    room, taken = gpu_bytes(nodes), most_taken(sources)
    return UserPairings(frozenset(named), types, measured, settings.shared_gpus, settings.shared_by, taken, room)


def gpu_bytes(nodes: NodeBook) -> dict[str, int]:
    """The memory of the GPU types that can be shared, where it is known."""
    types = {node.gpu_type for node in nodes.values() if node.gpu_type and node.per_gpu}
    return {t: gb * 10**9 for t in types if (gb := nodes.memory_of(t)) is not None}


def measured_companies(jobs: Iterable[Job], sources: Sources) -> dict[Company, float]:
    """What was measured of jobs of one user beside others of that user, by what :func:`likeness` calls them."""
    found: dict[Company, float] = {}
    if sources.profiles is None:
        return found
    users = {job.user for job in jobs if job.pairs_as and job.pinned is None}
    with sources.best_effort():
        known = sources.profiles.companies() if users else {}
        for user in users & known.keys():
            for (one, others, gpu_type), keeps in known[user].items():
                names = [_named(user, workload) for workload in (one, *others)]
                found[names[0], tuple(sorted(names[1:])), gpu_type] = keeps
    return found


def most_taken(sources: Sources) -> dict[tuple[str, str], tuple[int, int]]:
    """Persistent and ephemeral bytes by user and workload, on the type where they were most."""
    most: dict[tuple[str, str], tuple[int, int]] = {}
    if sources.profiles is None:
        return most
    with sources.best_effort():
        for needs in sources.profiles.needs():
            if needs.persistent_bytes is not None and needs.ephemeral_bytes is not None:
                low = most.get((needs.user, needs.workload), (0, 0))
                sizes = max(low[0], needs.persistent_bytes), max(low[1], needs.ephemeral_bytes)
                most[needs.user, needs.workload] = sizes
    return most


def note_company(known: Mapping[str, JobFacts | None], jobs: Iterable[SlurmJob], snapshot: Snapshot) -> None:
    """Into the records of those who share a GPU: with whom, what they keep of their speeds, and how that is known."""
    company, kept = companies(jobs), shares_kept(snapshot, snapshot.job)
    for job_id, facts in known.items():
        if facts is None:
            continue
        shares = company.get(job_id)
        if shares is not None and shares["with"] and isinstance(snapshot.pairings, UserPairings):
            others = shares["with"]
            if job_id in kept:
                shares |= {"keeps": kept[job_id], "known_by": _known_by(snapshot, snapshot.pairings, [job_id, *others])}
            elif len(others) > 1 and snapshot.turns:
                shares |= {"keeps": 1 / (1 + len(others)), "known_by": SharedGpus.TURNS.value}
            only = known.get(others[0]) if len(others) == 1 else None
            turns = EQUAL if only is None else own_turns(facts, only)
            shares |= {} if turns == EQUAL else {"turns": turns}
        facts.record.company = shares or {}


def _known_by(snapshot: Snapshot, pairs: UserPairings, ids: Sequence[str]) -> str:
    """How it is known what the first of these keeps in the company of the others."""
    jobs = [snapshot.job[job_id] for job_id in ids]
    (gpu_type,) = jobs[0].placement.by_type
    one, *others = (job.pairs_as for job in jobs)
    if len(others) == 1:
        measured = pairs.known_by((one, others[0], gpu_type)) == "measured"
    else:
        measured = (one, tuple(sorted(others)), gpu_type) in snapshot.measured
    if measured:
        return "measured"
    return "duties" if snapshot.turns and min(duties_of(jobs, gpu_type)) < 1 else pairs.prior.value


def own_turns(facts: JobFacts, other: JobFacts) -> float:
    """The job's share of the turns that it takes with another, as they were last told."""
    if facts.host == other.job.job_id:
        return facts.record.turns
    return 1.0 - other.record.turns if other.host == facts.job.job_id else EQUAL


def note_needs(known: Mapping[str, JobFacts | None], sources: Sources) -> None:
    """Into the records of jobs with shards that wait: what those of their user and workload took of a GPU's memory, on
    the type where that was most, and a margin."""
    waiting = [f for f in known.values() if f is not None and f.job.shards and f.job.state is JobState.PENDING]
    if sources.profiles is None or not waiting:
        return
    most = most_taken(sources)
    for facts in waiting:
        taken = most.get((facts.job.user, facts.workload(1)), ())
        facts.record.needs_mib = [math.ceil(_MARGIN * size / 2**20) for size in taken]


def with_company(known: Mapping[str, JobFacts | None], jobs: Iterable[SlurmJob]) -> dict[str, JobFacts | None]:
    """The facts with hosts, and with those left to Slurm whose company a policy could not have chosen."""
    hosts, pinned = _misfits(known, jobs)
    found = dict(known)
    for job_id, facts in known.items():
        if facts is not None and (job_id in hosts or job_id in pinned):
            found[job_id] = replace(facts, host=hosts.get(job_id), pinned=facts.pinned or pinned.get(job_id))
    return found
