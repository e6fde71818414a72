"""What Slurm said, as plain records: no interpretation, no policy, no memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_hadar.model import JobState, Partition

__all__ = [
    "Access", "EVERYBODY",
    "Bounds", "ClusterState", "Daemon", "Fittings", "GpuRequest", "Licence", "Limit", "NOTHING_MORE", "PartitionTerms",
    "Reservation", "SlurmJob", "SlurmNode", "Write", "WriteResult",
]  # fmt: skip


# Slurm's words for a job that is not any more what it was when it was looked at
_OVERTAKEN = (
    "already finished", "already completing", "already completed", "no longer pending", "is pending execution",
    "invalid job id", "job/step already",
)  # fmt: skip
# and for one that is not this user's to change
_DENIED = ("Invalid user id", "Access/permission denied")


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs a job asks for: ``per`` node, job or task; ``types`` maps type to count, with "" for untyped GPUs."""

    per: str = "node"
    types: tuple[tuple[str, int], ...] = ()

    @property
    def count(self) -> int:
        """GPUs, whatever their types."""
        return sum(n for _, n in self.types)

    @property
    def typed(self) -> bool:
        """Whether it names GPU types."""
        return any(name for name, _ in self.types)


@dataclass(frozen=True, slots=True)
class Fittings:
    """What a node has, or a job asks of each of its nodes, beside GPUs, CPUs and memory: other GRES by name, with a
    type or without (``nic``, ``nic:cx6``), MiB of local disk, sockets, cores of each and threads of each of these."""

    gres: tuple[tuple[str, int], ...] = ()
    disk_mib: float = 0
    sockets: int = 0
    cores: int = 0
    threads: int = 0

    def cover(self, asked: Fittings) -> bool:
        """Whether a node with these has what is asked, whoever uses it now."""
        counts = ("disk_mib", "sockets", "cores", "threads")
        return all(self._has(name) >= count for name, count in asked.gres) and all(
            getattr(self, name) >= getattr(asked, name) for name in counts
        )

    def _has(self, name: str) -> int:
        return sum(count for has, count in self.gres if name in (has, has.partition(":")[0]))


#: A job that asks for GPUs, CPUs and memory only.
NOTHING_MORE = Fittings()


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One record of the queue. ``job_id`` is ``123``, ``123_4`` for an array task, ``123+1`` for a component of a
    heterogeneous job; it is what scontrol is told. Times are epoch seconds, None where Slurm has none; ``end`` of
    a job that runs is when its time limit ends it. ``memory_bytes`` is over all its nodes, 0 where Slurm does not say;
    ``exclusive``: it shares its nodes with no job; ``by_user``: with its user's only; ``mcs``: with those only that
    have this MCS label and say so, too. ``throttle``: how many tasks of its array
    may run at once. ``sched_nodes``: where the backfill scheduler means to start a waiting job, at ``start``.
    ``shares``: the part of a GPU that it asks for (``shard:2``), if it does; ``gpu_number``: on which GPU of its node
    it has that, by Slurm's count, None where that is not known. ``max_nodes`` is how
    many nodes a waiting job asks for at most; ``num_nodes`` at least, where Slurm tells: of a job that sets no limit,
    and with pyslurm of each, it is what Slurm last reckoned with, as when it ran. ``deadline``: when Slurm ends it, or
    cancels it as soon as it cannot be done before that (``--deadline``). ``fault``: why Slurm's record of the job
    cannot be read; nothing else of it is sure then. ``asks``: of each of its nodes. ``cpus_per_gpu``: the CPUs that it
    has for each GPU, by its owner's wish or, once Slurm has tried to start it, the partition's default; 0 = its CPUs
    are counted otherwise. ``tasks_per_node`` and ``tasks_per_socket`` as its owner asked (``--ntasks-per-node``), 0 =
    not so, as with ``switches``, the most that its nodes may be below."""

    job_id: str
    raw_id: int
    state: JobState
    state_text: str
    reason: str
    user: str
    account: str
    qos: str
    partition: str
    nodes: tuple[str, ...]
    req_nodes: tuple[str, ...]
    features: str
    gpus: tuple[GpuRequest, ...]
    num_nodes: int
    max_nodes: int
    num_tasks: int
    num_cpus: int
    time_limit_s: float | None
    submit: float | None
    eligible: float | None
    start: float | None
    end: float | None
    requeue: bool
    restarts: int
    batch: bool
    priority: int
    dependency: str
    array_id: str | None
    het_id: str | None
    work_dir: str = ""
    name: str = ""
    comment: str = ""
    uid: int | None = None
    memory_bytes: int = 0
    exclusive: bool = False
    by_user: bool = False
    mcs: str = ""
    licenses: str = ""
    reservation: str = ""
    exc_nodes: tuple[str, ...] = ()
    throttle: int | None = None
    sched_nodes: tuple[str, ...] = ()
    shares: str = ""
    gpu_number: int | None = None
    deadline: float | None = None
    fault: str | None = None
    asks: Fittings = NOTHING_MORE
    cpus_per_gpu: int = 0
    tasks_per_node: int = 0
    tasks_per_socket: int = 0
    switches: int = 0

    @property
    def gpu_count(self) -> int:
        """How many GPUs it asks for in all, as far as Slurm says; those per socket count once."""
        times = {"node": self.num_nodes, "task": self.num_tasks}
        return sum(request.count * max(1, times.get(request.per, 1)) for request in self.gpus)

    @property
    def shards(self) -> int:
        """How many shards of one GPU it asks for with ``--gres=shard:N``; 0 where it asks otherwise."""
        kind, _, count = self.shares.partition(":")
        if kind != "shard" or (count and not count.isdecimal()):
            return 0
        return int(count or 1)

    @property
    def configuring(self) -> bool:
        """Whether it has its nodes, which are made ready for it: switched on, or by a prolog."""
        return self.state_text == "CONFIGURING"

    @property
    def held(self) -> bool:
        """Whether somebody holds it (priority 0): its owner, an administrator, or Slurm itself."""
        return self.state is JobState.PENDING and self.priority == 0


@dataclass(frozen=True, slots=True)
class SlurmNode:
    """One node. ``used`` counts GPUs held per type, as a whole or in ``shards``, of which the node has so many;
    ``whole``: where it has shards, the numbers of the GPUs held as a whole, None where Slurm does not say which.
    ``available`` is False for drained, down and unresponsive nodes, and those that are being switched off, but not for
    those that power saving has switched off. ``maintenance``: it is a reservation for maintenance that makes it so, and
    nothing else. ``has``: what else there is."""

    name: str
    gpus: tuple[tuple[str, int], ...] = ()
    used: tuple[tuple[str, int], ...] = ()
    state: str = "idle"
    available: bool = True
    reason: str = ""
    features: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    cpus: int = 0
    cpus_used: int = 0
    memory_bytes: int = 0
    memory_used_bytes: int = 0
    shards: int = 0
    whole: frozenset[int] | None = None
    has: Fittings = NOTHING_MORE
    maintenance: bool = False

    def cpu_step(self, whole_sockets: bool) -> int:
        """Slurm hands out CPUs in multiples of so many: the threads of a core, unless it counts a core as one CPU, or
        those of a socket."""
        has = self.has
        threads = has.threads if self.cpus > has.sockets * has.cores else 1
        return max(1, threads * (has.cores if whole_sockets else 1))

    @property
    def off(self) -> bool:
        """Whether power saving has switched it off, or is switching it off."""
        return "powered_down" in self.state or "powering_down" in self.state

    @property
    def coming_up(self) -> bool:
        """Whether power saving is switching it on."""
        return "powering_up" in self.state or "power_up" in self.state

    @property
    def gpus_held(self) -> int:
        """How many of its GPUs are held, as a whole or in part."""
        return sum(count for _, count in self.used)


@dataclass(frozen=True, slots=True)
class Limit:
    """``most`` of something that the jobs of a scope may have at once, of which ``used`` are in use.

    ``what`` is ``jobs`` or a TRES as Slurm names it (``cpu``, ``mem`` in bytes, ``node``, ``gres/gpu``). ``scope`` is
    ("qos", name), ("qos-user", name, uid), ("qos-account", name, account), ("account", name) or
    ("user", account, user).
    ``each_job``: what any one job may have, whatever the others do.
    """

    scope: tuple[str, ...]
    what: str
    most: int
    used: int = 0
    each_job: bool = False


@dataclass(frozen=True, slots=True)
class Licence:
    """A licence of Slurm's: so many, of which ``free`` are neither used nor reserved."""

    name: str
    total: int
    free: int


@dataclass(frozen=True, slots=True)
class Access:
    """Whom something takes: only the ``allowed`` names (None = everybody), without those that are ``denied``."""

    allowed: frozenset[str] | None = None
    denied: frozenset[str] = frozenset()

    def admits(self, *names: str) -> bool:
        """Whether it takes who has these names, such as an account and those above it."""
        return self.denied.isdisjoint(names) and (self.allowed is None or not self.allowed.isdisjoint(names))


#: No distinction of persons.
EVERYBODY = Access()


@dataclass(frozen=True, slots=True)
class Reservation:
    """Nodes set apart from ``start`` to ``end`` (epoch seconds) for jobs that name the reservation. ``whole``: all of
    the nodes, not some of their cores only. ``flex``: its jobs may begin before it does, and on other nodes.
    ``magnetic``: also for jobs that name none, if ``users`` and ``accounts`` admit them; ``outlasts``: only for those
    of them that end before it does, by their time limits."""

    name: str
    nodes: frozenset[str]
    start: float
    end: float
    whole: bool = True
    flex: bool = False
    magnetic: bool = False
    outlasts: bool = False
    users: Access = EVERYBODY
    accounts: Access = EVERYBODY


@dataclass(frozen=True, slots=True)
class PartitionTerms:
    """What a partition asks of its jobs: how many nodes each may have (None = any number), how many CPUs of a node its
    jobs may have together (None = all), and how many a job gets for each GPU whose owner counts none; of which
    ``accounts`` and ``qos`` they are; whether each shares its nodes with jobs of its user only (``by_user``); and the
    QOS whose limits hold for all of them ("" = none, ``own_qos``)."""

    min_nodes: int = 0
    max_nodes: int | None = None
    max_cpus_per_node: int | None = None
    cpus_per_gpu: int = 0
    accounts: Access = EVERYBODY
    qos: Access = EVERYBODY
    by_user: bool = False
    own_qos: str = ""


_NO_TERMS = PartitionTerms()


@dataclass(frozen=True)
class Bounds:
    """What Slurm would refuse or leave waiting, apart from GPUs in use, at one instant. ``parents`` maps an account
    to the one above it, ``partitions`` a partition to its terms."""

    limits: tuple[Limit, ...] = ()
    licences: Mapping[str, Licence] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()
    parents: Mapping[str, str] = field(default_factory=dict)
    partitions: Mapping[str, PartitionTerms] = field(default_factory=dict)

    def node_limits(self, partition: str) -> tuple[int, int | None]:
        """The fewest and most nodes of a job in one of these partitions (``a,b``)."""
        terms = self._terms(partition)
        most = [t.max_nodes for t in terms if t.max_nodes is not None]
        return min(t.min_nodes for t in terms), max(most) if len(most) == len(terms) else None

    def cpus_per_gpu(self, job: SlurmJob) -> int:
        """The CPUs that Slurm gives the job for each GPU; 0 = it counts them otherwise. Before it has tried to start a
        job, its partition's default is taken to hold for one that asks for one CPU for each task."""
        untried = job.state is JobState.PENDING and not job.restarts and job.num_cpus == job.num_tasks
        default = max(t.cpus_per_gpu for t in self._terms(job.partition)) if untried and job.gpus else 0
        return job.cpus_per_gpu or default

    def admitting(self, job: SlurmJob) -> tuple[str, ...]:
        """Those of the job's partitions whose terms may admit it. Whether a list of accounts means those below them,
        too, differs by release (22.05: no, 24.11: yes): only what both refuse is not among them."""
        names = job.partition.split(",")
        terms = zip(names, self._terms(job.partition), strict=True)
        return tuple(name for name, t in terms if self._takes_account(t.accounts, job) and t.qos.admits(job.qos))

    def _takes_account(self, access: Access, job: SlurmJob) -> bool:
        return job.account not in access.denied and Access(access.allowed).admits(*self.accounts_of(job))

    def by_user(self, job: SlurmJob) -> bool:
        """Whether the job shares its nodes with its user's only, by its own wish or in a partition that it may start
        in."""
        return job.by_user or not self._by_user.isdisjoint(job.partition.split(","))

    @functools.cached_property
    def _by_user(self) -> frozenset[str]:
        return frozenset(name for name, terms in self.partitions.items() if terms.by_user)

    def qos_of(self, job: SlurmJob) -> tuple[str, ...]:
        """The QOS whose limits hold for the job: its own, and that of its partition; of several partitions only where
        all have the same."""
        own = {terms.own_qos for terms in self._terms(job.partition)}
        return tuple(dict.fromkeys((job.qos, *(own - {""} if len(own) == 1 else ()))))

    def accounts_of(self, job: SlurmJob) -> tuple[str, ...]:
        """The job's account and those above it."""
        found = [job.account]
        while (parent := self.parents.get(found[-1], "")) and parent not in found:
            found.append(parent)
        return tuple(found)

    def _terms(self, partition: str) -> list[PartitionTerms]:
        return [self.partitions.get(name, _NO_TERMS) for name in partition.split(",")]


@dataclass(frozen=True)
class ClusterState:
    """Everything the reads of one round give. ``read_s`` is how long they took. ``bounds``: what Slurm would refuse
    apart from what is in use; ``memory_counts``: whether memory is handed out by Slurm as CPUs are
    (``CR_..._Memory``); ``whole_sockets``: whether CPUs are handed out by sockets (``CR_Socket``);
    ``stops_by_tier``: whether Slurm stops jobs for those of partitions with a higher ``PriorityTier``
    (``preempt/partition_prio``)."""

    time: float
    jobs: tuple[SlurmJob, ...] = ()
    nodes: tuple[SlurmNode, ...] = ()
    partitions: tuple[Partition, ...] = ()
    read_s: float = 0.0
    bounds: Bounds = Bounds()
    memory_counts: bool = True
    stops_by_tier: bool = False
    whole_sockets: bool = False


@dataclass(frozen=True, slots=True)
class Daemon:
    """One slurmctld as ``scontrol ping`` shows it: ``role`` is primary, backup or backupN. ``address``: where it is
    reached, as a name or by numbers, where ``SlurmctldHost`` tells one."""

    role: str
    host: str
    up: bool
    address: str = ""


@dataclass(frozen=True, slots=True)
class Write:
    """One change to ask of Slurm: ``verb`` is update, requeue (of a job that is not over), restart (of one that is),
    release or cancel.

    ``fields`` are scontrol's own names and values, in the order to be given; a write without values that differ
    between jobs may name many jobs.
    """

    verb: str
    job_ids: tuple[str, ...]
    fields: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        pairs = "".join(f" {k}={v}" for k, v in self.fields)
        return f"{self.verb} {','.join(self.job_ids)}{pairs}"


@dataclass(frozen=True, slots=True)
class WriteResult:
    """What Slurm answered to a write about one job; ``error`` is None if it did not refuse."""

    job_id: str
    write: Write
    error: str | None = field(default=None)

    @property
    def overtaken(self) -> bool:
        """Whether it was refused only since the job had changed meanwhile: it ended, started, or was cancelled."""
        return self.error is not None and any(words in self.error.lower() for words in _OVERTAKEN)

    @property
    def denied(self) -> bool:
        """Whether the job is not this user's to change."""
        return self.error in _DENIED
