"""One round: the snapshot that a policy is given, and the plan that it answers with."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from slurm_hadar.model.gpus import EMPTY, Node, Partition, Placement
from slurm_hadar.model.job import Job, Quota

__all__ = ["Company", "Kept", "Pairing", "Plan", "Snapshot", "Tier", "Wait"]

#: Two workloads (as :func:`slurm_hadar.throughput.table.workload` writes them) on one GPU of a type.
Pairing = tuple[str, str, str]
#: What each of the two keeps of its speed alone on that GPU: shares in (0, 1].
Kept = tuple[float, float]
#: A workload, those of the others on its GPU, sorted, and the GPU's type.
Company = tuple[str, tuple[str, ...], str]


class Tier(enum.StrEnum):
    """Why a job does not run, from what only its owner can mend to what passes by itself."""

    CANNOT_RUN = "cannot-run"
    CAPACITY = "waits-for-capacity"
    POLICY = "waits-by-policy"
    TRANSIENT = "transient"


@dataclass(frozen=True)
class Snapshot:
    """Cluster and jobs at one instant: frozen, complete, the only input of a policy.

    ``user_usage`` and ``account_usage`` are the GPU-seconds per GPU type that users and accounts have had lately (older
    ones count less). ``memory`` is what the last plan of the same policy asked to be given back (:class:`Plan`); empty
    in the first round, and whenever it was lost. ``quotas`` are those that jobs' ``needs`` name. ``pairings`` is what
    workloads keep of their speeds on one GPU, each pair in either order; empty = no GPU is given to two jobs. With
    ``turns`` jobs on a GPU take turns, of two in shares that a plan may choose, and ``pairings`` is what they keep by
    equal ones. ``measured`` is what was measured there of one workload in the company of others, and ``gpu_bytes`` the
    memory of GPU types, where it is known (:mod:`slurm_hadar.policies.toolkit.shared_gpus.company`).
    """

    time: float
    nodes: tuple[Node, ...]
    jobs: tuple[Job, ...]
    partitions: tuple[Partition, ...] = ()
    round_s: float = 360.0
    user_usage: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    account_usage: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    memory: Mapping[str, Any] = field(default_factory=dict)
    quotas: tuple[Quota, ...] = ()
    pairings: Mapping[Pairing, Kept] = field(default_factory=dict)
    turns: bool = False
    measured: Mapping[Company, float] = field(default_factory=dict)
    gpu_bytes: Mapping[str, int] = field(default_factory=dict)

    @functools.cached_property
    def node(self) -> dict[str, Node]:
        """The nodes by name."""
        return {n.name: n for n in self.nodes}

    @functools.cached_property
    def job(self) -> dict[str, Job]:
        """The jobs by id."""
        return {j.job_id: j for j in self.jobs}

    @functools.cached_property
    def guests_of(self) -> dict[str, tuple[str, ...]]:
        """Who is on the GPU of which host as its guest, who has been there longest first."""
        found: dict[str, list[Job]] = {}
        for job in self.jobs:
            if job.host is not None:
                found.setdefault(job.host, []).append(job)
        return {
            host: tuple(j.job_id for j in sorted(guests, key=lambda j: (j.started or 0.0, j.job_id)))
            for host, guests in found.items()
        }

    @functools.cached_property
    def node_names(self) -> frozenset[str]:
        """The names of all nodes."""
        return frozenset(n.name for n in self.nodes)

    @functools.cached_property
    def steerable_jobs(self) -> tuple[Job, ...]:
        """Active jobs that are ours to steer, in order of arrival and then id."""
        jobs = [j for j in self.jobs if j.steerable]
        return tuple(sorted(jobs, key=lambda j: (j.arrival, j.job_id)))

    @functools.cached_property
    def has_tenants(self) -> bool:
        """Whether it matters whose jobs are on a node."""
        return any(n.tenants for n in self.nodes) or any(j.needs.by_user or j.needs.mcs for j in self.jobs)

    def capacity(self) -> dict[str, dict[str, int]]:
        """{node: {gpu type: count}} that a policy may hand out, GPUs of running steerable jobs included."""
        return {n.name: free for n in self.nodes if (free := n.steerable_gpus)}

    def with_jobs(self, jobs: Iterable[Job]) -> Snapshot:
        """The same moment with these jobs instead."""
        return replace(self, jobs=tuple(jobs))

    def without(self, reasons: Mapping[str, str]) -> Snapshot:
        """The same with these jobs pinned, each for its reason, and with them who shares a GPU with one of them; what
        they hold counts as taken."""
        reasons = dict(reasons)
        for job in [j for j in self.jobs if j.host is not None] * 2:  # twice: others may be guests of the same host
            for one, other in ((job.job_id, job.host), (job.host, job.job_id)):
                if one in reasons and other is not None:
                    reasons.setdefault(other, f"shares its GPU with job {one}, which is left alone")
        jobs = [replace(j, pinned=reasons[j.job_id]) if j.job_id in reasons else j for j in self.jobs]
        nodes = dict(self.node)
        for job in self.jobs:
            if job.job_id in reasons and job.steerable:
                held = job.held.as_dict() if job.host is None else {}  # a guest's GPUs are its host's
                tenants = [job.tenant] if self.has_tenants else []
                for name, counts in job.placement.shares:
                    if (node := nodes.get(name)) is not None:
                        taken = {t: node.taken.get(t, 0) + n for t, n in held.get(name, {}).items()}
                        there = replace(node, taken={**node.taken, **taken}, tenants=node.tenants.union(tenants))
                        nodes[name] = _beside(there, job, sum(n for _, n in counts)) if job.running else there
        return replace(self, jobs=tuple(jobs), nodes=tuple(nodes.values()))


def _beside(node: Node, job: Job, gpus: int) -> Node:
    """The node with what it has beside GPUs for others, once a running job that has so many GPUs there is to stay."""
    asked = job.needs.cpus_for(gpus)
    cpus, memory = node.cpus_given(asked), asked * job.needs.memory_per_cpu
    if job.needs.exclusive:  # it has all of them, whatever it asked for
        cpus = memory = math.inf
    partitions = job.partition.split(",")
    return replace(
        node,
        cpus=None if node.cpus is None else _less(node.cpus, cpus),
        memory_bytes=None if node.memory_bytes is None else _less(node.memory_bytes, memory),
        shared=True,
        partition_cpus={p: _less(n, cpus) if p in partitions else n for p, n in node.partition_cpus.items()},
    )


def _less(count: int, taken: float) -> int:
    return int(max(0, count - taken))


@dataclass(frozen=True, slots=True)
class Wait:
    """Why a job does not run this round. ``price`` is what its best allocation would cost, ``payoff`` utility less
    price, ``wanted`` that allocation; None where the policy has no such notion."""

    tier: Tier
    why: str
    price: float | None = None
    payoff: float | None = None
    wanted: Placement = EMPTY


@dataclass(frozen=True)
class Plan:
    """A policy's decision for one round.

    ``placements`` names every steerable job that shall run; a steerable job not in it waits, and ``waits`` says why.
    ``prices`` are per (node, GPU type). A plan that ``abstains`` leaves everything to Slurm. ``memory`` comes back in
    the next snapshot: what a policy may remember, in values that JSON can write. ``guests`` maps jobs that are placed
    on another's GPU to that job, their host, which by turns may have several; ``turns`` maps guests to their share of
    the turns there, 0 to 1, where the two have not equal ones.
    """

    policy: str
    placements: Mapping[str, Placement] = field(default_factory=dict)
    waits: Mapping[str, Wait] = field(default_factory=dict)
    prices: Mapping[tuple[str, str], float] = field(default_factory=dict)
    payoffs: Mapping[str, float] = field(default_factory=dict)
    abstains: bool = False
    memory: Mapping[str, Any] = field(default_factory=dict)
    guests: Mapping[str, str] = field(default_factory=dict)
    turns: Mapping[str, float] = field(default_factory=dict)

    def placement(self, job_id: str) -> Placement:
        """EMPTY for a job that is not to run."""
        return self.placements.get(job_id, EMPTY)
