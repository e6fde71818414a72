"""A Slurm in memory behind the backend seam: what it does to a job is what stock Slurm was seen to do.

For tests of the controller and of policies inside it. Time is real, so leases expire; faults are set by hand.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from slurm_hadar.errors import SlurmParseError, SlurmUnavailable
from slurm_hadar.messages import token_fingerprint
from slurm_hadar.model import JobState, Partition, Tenant
from slurm_hadar.slurm.backend.base import Backend
from slurm_hadar.slurm.state import Bounds, ClusterState, Fittings, GpuRequest, SlurmJob, SlurmNode, Write, WriteResult
from slurm_hadar.slurm.tres import fittings, parse_request, shares
from slurm_hadar.testing.fake_limits import Limits, holds_gpus

__all__ = ["FakeSlurm"]


class FakeSlurm(Backend):
    """Nodes ``{name: (type, count)}``, each GPU in so many ``shards``; jobs are added with :meth:`submit`.

    Only jobs that were given a node list are started, unless ``eager``: then any that fits, as real Slurm does.
    ``away`` makes every call fail as if slurmctld were down; ``refuse`` maps a job to an error its writes get;
    ``stuck`` jobs stay pending for ever with the reason given; ``lost`` nodes are refused in node lists; ``limits`` are
    those that keep jobs waiting, which a read shows where ``tells_limits``. ``before_write`` is called between a
    round's reads and each of its writes. ``switches`` is what it says of its topology. ``partitions``: others than one
    that has all nodes; ``stops_by_tier``: what it says of preemption, which is left to the test; ``whole_sockets``:
    CPUs are handed out so.
    """

    name = "fake"

    def __init__(self, nodes: dict[str, tuple[str, int]], eager: bool = False, shards: int = 0) -> None:
        self.eager = eager
        self.nodes = {
            n: SlurmNode(n, gpus=((t, c),), features=(t,), partitions=("all",), cpus=32, shards=shards * c)
            for n, (t, c) in nodes.items()
        }
        self._shards = shards
        self._whole: dict[tuple[str, str], frozenset[int]] = {}  # numbers of GPUs, by job and node
        self.jobs: dict[str, SlurmJob] = {}
        self.away = False
        self.refuse: dict[str, str] = {}
        self.stuck: dict[str, str] = {}
        self.lost: set[str] = set()
        self.limits = Limits()
        self.tells_limits = True
        self._submitted = 0
        self.before_write: Callable[[], None] = lambda: None
        self.batches: list[tuple[Write, ...]] = []
        self.signals: list[tuple[str, str]] = []
        self.reads = 0
        self.switches = ""
        self.partitions: tuple[Partition, ...] = ()
        self.stops_by_tier = False
        self.whole_sockets = False

    def submit(self, gpus: int = 1, comment: str = "hadar:", nodes: int = 1, **fields: object) -> str:
        """Add a pending job asking for ``gpus`` per node on ``nodes`` nodes; returns its id."""
        self._submitted += 1
        number = self._submitted
        now = float(int(time.time()))
        job = SlurmJob(
            job_id=str(number),
            raw_id=number,
            state=JobState.PENDING,
            state_text="PENDING",
            reason="Resources",
            user="alice",
            account="",
            qos="",
            partition="all",
            nodes=(),
            req_nodes=(),
            features="",
            gpus=(GpuRequest("node", (("", gpus),)),),
            num_nodes=nodes,
            max_nodes=nodes,
            num_tasks=nodes,
            num_cpus=nodes,
            time_limit_s=None,
            submit=now,
            eligible=now,
            start=None,
            end=None,
            requeue=True,
            restarts=0,
            batch=True,
            priority=100,
            dependency="",
            array_id=None,
            het_id=None,
            name=f"job{number}",
            comment=comment,
        )
        job = replace(job, **fields)  # type: ignore[arg-type]
        self.jobs[job.job_id] = job
        return job.job_id

    def vouch(self, job_id: str, token: str = 64 * "a") -> None:
        """Name the job's report token in its comment, as hadar-srun does before anything is reported."""
        key, comment = f"key={token_fingerprint(token)}", self.jobs[job_id].comment
        if key not in comment:
            comma = "" if comment.endswith(":") else ","
            self.jobs[job_id] = replace(self.jobs[job_id], comment=f"{comment}{comma}{key}")

    def start(self, job_id: str, *nodes: str) -> None:
        """Let Slurm itself start a job."""
        now, job = float(int(time.time())), self.jobs[job_id]
        number = None
        for name in nodes:
            if job.shards:
                number = self._first_with(name, job.shards)
            else:
                free = [n for n, left in enumerate(self._free(name)) if left == self._per_gpu]
                self._whole[job_id, name] = frozenset(free[: job.gpus[0].count if job.gpus else 0])
        self.jobs[job_id] = replace(
            job,
            state=JobState.RUNNING,
            state_text="RUNNING",
            nodes=nodes,
            start=now,
            reason="",
            gpu_number=number,
        )

    def end(self, job_id: str) -> None:
        """Let a running job end well."""
        self.jobs[job_id] = replace(self.jobs[job_id], state=JobState.DONE, state_text="COMPLETED", nodes=())

    def fail(self, job_id: str, after_s: float = 0.0) -> None:
        """Let a running job fail, so long after its start."""
        job = self.jobs[job_id]
        end = (job.start or time.time()) + after_s
        self.jobs[job_id] = replace(job, state=JobState.FAILED, state_text="FAILED", reason="NonZeroExitCode", end=end)

    def hold(self, job_id: str, admin: bool = False) -> None:
        """Hold a pending job, as its owner or an administrator does."""
        reason = "JobHeldAdmin" if admin else "JobHeldUser"
        self.jobs[job_id] = replace(self.jobs[job_id], priority=0, reason=reason)

    def defer(self, job_id: str, until: float) -> None:
        """Give a pending job a start time, as its owner or an administrator does."""
        self.jobs[job_id] = replace(self.jobs[job_id], eligible=until, reason="BeginTime")

    def suspend(self, job_id: str) -> None:
        """Stop a running job for a while; it keeps its GPUs."""
        self.jobs[job_id] = replace(self.jobs[job_id], state=JobState.SUSPENDED, state_text="SUSPENDED")

    def resume(self, job_id: str) -> None:
        """Let a suspended job go on."""
        self.jobs[job_id] = replace(self.jobs[job_id], state=JobState.RUNNING, state_text="RUNNING")

    def used(self, node: str) -> int:
        """GPUs of a node that jobs have, in whole or in part."""
        if any(j.exclusive for j in self._on(node)):
            return sum(count for _, count in self.nodes[node].gpus)
        whole = sum(j.gpus[0].count for j in self._on(node) if j.gpus)
        return whole + len({j.gpu_number for j in self._on(node) if j.shards})

    @property
    def _per_gpu(self) -> int:
        return max(1, self._shards)

    def _held(self, node: str) -> frozenset[int]:
        """The numbers of the GPUs that jobs have as a whole."""
        return frozenset[int]().union(*(self._whole.get((j.job_id, node), ()) for j in self._on(node)))

    def _free(self, node: str) -> list[int]:
        """The shards that are free on each GPU."""
        free = [self._per_gpu] * sum(c for _, c in self.nodes[node].gpus)
        for number in self._held(node):
            free[number] = 0
        for job in self._on(node):
            if job.shards and job.gpu_number is not None:
                free[job.gpu_number] -= job.shards
        return free

    def _first_with(self, node: str, shards: int) -> int | None:
        return next((n for n, left in enumerate(self._free(node)) if left >= shards), None)

    def cpus_used(self, node: str) -> int:
        """CPUs of a node that jobs have."""
        return sum(self._cpus(j, node) for j in self._on(node))

    def _on(self, node: str) -> list[SlurmJob]:
        return [j for j in self.jobs.values() if holds_gpus(j) and node in j.nodes]

    def _cpus(self, job: SlurmJob, node: str) -> int:
        step = self.nodes[node].cpu_step(self.whole_sockets)
        return -(-job.num_cpus // max(1, job.num_nodes) // step) * step

    # The seam

    def version(self) -> str:
        return "22.05.8"

    def cluster_name(self) -> str:
        return "fake"

    def read(self) -> ClusterState:
        jobs = self.read_jobs()
        nodes = tuple(
            replace(
                n,
                used=tuple((t, self.used(n.name)) for t, _ in n.gpus),
                cpus_used=self.cpus_used(n.name),
                whole=self._held(n.name),
            )
            for _, n in sorted(self.nodes.items())
        )
        bounds = self.limits.bounds(self.jobs.values()) if self.tells_limits else Bounds()
        partitions = self.partitions or (Partition("all", tuple(sorted(self.nodes))),)
        return ClusterState(
            time.time(),
            jobs,
            nodes,
            partitions,
            bounds=bounds,
            stops_by_tier=self.stops_by_tier,
            whole_sockets=self.whole_sockets,
        )

    def topology(self) -> str:
        self._answer()
        return self.switches

    def each_job(self) -> Iterator[SlurmJob]:
        self._answer()
        self.reads += 1
        self._schedule()
        return iter(tuple(self.jobs.values()))

    def next_job_id(self) -> int | None:
        self._answer()
        return self._submitted + 1

    def comments_since(self, first: int, end: int) -> tuple[str, ...]:
        self._answer()
        return tuple(j.comment for j in self.jobs.values() if first <= j.raw_id < end and j.state.active)

    def gpus_in_use(self) -> dict[str, int]:
        self._answer()
        return {name: self.used(name) for name in self.nodes}

    def write(self, writes: Sequence[Write]) -> list[WriteResult]:
        self._answer()
        self.before_write()
        self.batches.append(tuple(writes))
        return [WriteResult(job_id, w, self._do(w, job_id)) for w in writes for job_id in w.job_ids]

    def signal(self, steps: Sequence[str], signal: str) -> None:
        self._answer()
        self.signals += [(step, signal) for step in steps]

    def cancel(self, job_ids: Sequence[str]) -> list[WriteResult]:
        self._answer()
        for job_id in self.jobs.keys() & set(job_ids) - self.refuse.keys():
            self.jobs[job_id] = replace(self.jobs[job_id], state=JobState.FAILED, state_text="CANCELLED", nodes=())
        write = Write("cancel", tuple(job_ids))
        return [WriteResult(job_id, write, self.refuse.get(job_id)) for job_id in job_ids]

    def clock_ahead_s(self) -> tuple[float, float]:
        return 0.0, 0.0

    def _answer(self) -> None:
        if self.away:
            raise SlurmUnavailable("slurmctld does not answer: connection refused")

    def _do(self, write: Write, job_id: str) -> str | None:
        job = self.jobs.get(job_id)
        if job is None:
            return "Invalid job id specified"
        if job_id in self.refuse:
            return self.refuse[job_id]
        if write.verb == "requeue" and not job.state.active:
            return "Job has already finished"
        if write.verb in ("requeue", "restart"):
            return self._requeue(job)
        if write.verb == "update":
            return self._update(job, dict(write.fields))
        if write.verb == "release" and job.held:
            self.jobs[job_id] = replace(job, priority=100, reason="None")
        return None

    def _requeue(self, job: SlurmJob) -> str | None:
        if job.state is JobState.PENDING:
            return "Job is pending execution"
        now = float(int(time.time()))
        self.jobs[job.job_id] = replace(
            job,
            state=JobState.PENDING,
            state_text="PENDING",
            reason="BeginTime",
            nodes=(),
            gpu_number=None,
            start=None,
            end=None,
            restarts=job.restarts + 1,
            submit=now,
            eligible=now + 121,
        )
        return None

    def _update(self, job: SlurmJob, fields: dict[str, str]) -> str | None:
        if not job.state.active:
            return "Job has already finished"
        if job.state is not JobState.PENDING:
            return "Job is no longer pending execution"
        nodes = tuple(n for n in fields.get("NodeList", ",".join(job.req_nodes)).split(",") if n)
        if self.lost & set(nodes):
            return "Invalid node name specified"
        asks = _asks(job, fields.get("TresPerNode", ""))
        changed = replace(job, req_nodes=nodes, reason=job.reason if job.held else "None", asks=asks)
        if job.shards and (told := fields.get("TresPerNode", "")):
            if not told.startswith("gres:shard:"):
                return "Invalid generic resource (gres) specification"
            changed = replace(changed, shares=shares((told,)))
        elif fields.get("TresPerNode"):
            try:
                changed = replace(changed, gpus=(GpuRequest("node", parse_request(fields["TresPerNode"])),))
            except SlurmParseError:
                return "Invalid generic resource (gres) specification"
        if fields.get("NumNodes"):
            least = fields["NumNodes"].split("-")[0]
            if not least.isdecimal():
                return "Node count specification invalid"
            count = int(least)
            changed = replace(changed, num_nodes=count, max_nodes=count)
        others: dict[str, Any] = {
            name: read(fields[field]) for field, (name, read) in _FIELDS.items() if fields.get(field)
        }
        self.jobs[job.job_id] = replace(changed, **others)
        return None

    def _schedule(self) -> None:
        """Start every eligible pending job that fits, in order of its id."""
        now = time.time()
        for job in sorted(self.jobs.values(), key=lambda j: j.raw_id):
            if job.state is not JobState.PENDING:
                continue
            if job.job_id in self.stuck:
                self.jobs[job.job_id] = replace(job, reason=self.stuck[job.job_id])
            elif job.held:
                continue
            elif self.limits.throttled(job, self.jobs.values()):
                self.jobs[job.job_id] = replace(job, reason="JobArrayTaskLimit")
            elif (job.eligible or 0) > now:
                self.jobs[job.job_id] = replace(job, reason="BeginTime")
            elif limited := self.limits.reason(job, self.jobs.values(), now):
                self.jobs[job.job_id] = replace(job, reason=limited)
            elif job.req_nodes or self.eager:
                self._try(job, now)

    def _try(self, job: SlurmJob, now: float) -> None:
        if set(job.exc_nodes) & set(job.req_nodes):
            self.jobs[job.job_id] = replace(job, priority=0, reason="BadConstraints")
            return
        rooms = [n for n in (job.req_nodes or sorted(self.nodes)) if self.has_room(job, n, now)]
        if len(rooms) >= job.num_nodes > 0 and (not job.req_nodes or len(rooms) == len(job.req_nodes)):
            self.start(job.job_id, *rooms[: job.num_nodes])
        else:
            reserved = not all(self.limits.admits(job, n, now) for n in job.req_nodes)
            reason = "ReqNodeNotAvail, May be reserved for other job" if reserved else "Resources"
            self.jobs[job.job_id] = replace(job, reason=reason)

    def has_room(self, job: SlurmJob, name: str, now: float) -> bool:
        """Whether the node could take the job's share this moment."""
        node = self.nodes.get(name)
        if node is None or not node.available or name in job.exc_nodes:
            return False
        others = self._on(name)
        alone = job.exclusive or any(j.exclusive for j in others)
        if not all(_tenant(other).admits(_tenant(job)) for other in others):
            return False
        if (alone and others) or not self.limits.admits(job, name, now):
            return False
        if job.shards and self._first_with(name, job.shards) is None:
            return False
        each = job.gpus[0].count if job.gpus else 0
        free = sum(c for _, c in node.gpus) - self.used(name)
        return free >= each >= 0 and node.cpus - self.cpus_used(name) >= self._cpus(job, name)

    def drain(self, names: Iterable[str]) -> None:
        """Let nodes take no more jobs."""
        for name in names:
            self.nodes[name] = replace(self.nodes[name], available=False, state="drained", reason="test")


def _tenant(job: SlurmJob) -> Tenant:
    return Tenant(job.user, job.by_user, job.mcs)


def _asks(job: SlurmJob, told: str) -> Fittings:
    """Other GRES that are not told again are lost."""
    return replace(job.asks, gres=fittings(told, "", "").gres) if told else job.asks


def _moment(text: str) -> float:
    return time.time() + (float(text.partition("+")[2]) if "+" in text else 0.0)


#: Fields of an update that set one of a job's: which, and how they are read.
_FIELDS: dict[str, tuple[str, Callable[[str], object]]] = {
    "NumTasks": ("num_tasks", int),
    "NumCPUs": ("num_cpus", int),
    "Comment": ("comment", str),
    "StartTime": ("eligible", _moment),
}
