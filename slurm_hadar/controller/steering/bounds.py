"""What Slurm would refuse a job beside GPUs in use, as a policy's snapshot has it: quotas, needs, nodes that are
closed.

With limits, never around them: where Slurm shows them they are reckoned with beforehand; where it does not, the reasons
that it gives for a job that does not start are learned from (:mod:`~slurm_hadar.controller.steering.lessons`).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.model import Draw, Form, JobState, Needs, Quota
from slurm_hadar.slurm.state import ClusterState, Limit, Reservation, SlurmJob, SlurmNode
from slurm_hadar.units import counted

__all__ = ["QuotaBook", "node_room"]

_LICENCE = re.compile(r"([^:,;|]+)(?::(\d{1,9}))?")


@dataclass
class QuotaBook:
    """What the jobs of one round need and draw of beside GPUs. ``quotas`` has each quota that a job was found to draw
    of, by name."""

    state: ClusterState
    quotas: dict[str, Quota] = field(default_factory=dict)

    def needs(self, job: SlurmJob, record: JobRecord) -> Needs:
        """What the job takes beside GPUs, in the shape that its owner asked for or scaled from it."""
        per_node, per_gpu = self._cpus(job, record)
        memory = _memory_per_cpu(job) if self.state.memory_counts else 0.0
        draws, by_user = tuple(self._draws(job, record)), self.state.bounds.by_user(job)
        return _needs(per_node, per_gpu, memory, job.exclusive, draws, by_user, job.mcs)

    def spent(self, needs: Needs) -> bool:
        """Whether nothing is left of a quota that these needs draw of."""
        return any(self.quotas[draw.quota].left <= 0 for draw in needs.draws)

    def explains(self, needs: Needs, workers: int) -> bool:
        """Whether less is left of a quota than a gang of ``workers`` draws, so that Slurm's reason is no news."""
        return any(draw.least(workers) > self.quotas[draw.quota].left for draw in needs.draws)

    def beyond(self, job: SlurmJob, record: JobRecord, form: Form) -> str | None:
        """Why Slurm will never start the job as it is, in none of the shapes of its form, though nobody else runs."""
        workers, (least, most) = min(form.gang_sizes), self.state.bounds.node_limits(job.partition)
        asked = f"cannot start as it was submitted: asks for {record.nodes} node{'s'[: record.nodes != 1]}"
        if most is not None and form.min_nodes > most:
            return f"{asked}, and partition {job.partition} allows {most} at most (MaxNodes)"
        if form.max_nodes < least:
            return f"{asked}, and partition {job.partition} {least} at least (MinNodes)"
        for limit in self._limits_of(job):
            draws = () if limit.each_job else self._drawn(limit, job, record)
            if any(draw.least(workers) > limit.most for draw in draws):
                return f"asks for more than the limit of {_whose(limit)} allows: {_most(limit)} at once"
        return None

    def _draws(self, job: SlurmJob, record: JobRecord) -> Iterator[Draw]:
        if job.licenses:
            yield from self._licences(job)
        if job.throttle is not None and job.array_id:
            name = f"array {job.array_id}"
            if name not in self.quotas:
                left = job.throttle - self._running_tasks.get(job.array_id, 0)
                words = f"{counted(job.throttle, 'task')} of array {job.array_id} may run at once (%{job.throttle})"
                self.quotas[name] = Quota(name, float(left), words)
            yield Draw(name, "job")
        for limit in self._limits_of(job):
            if not limit.each_job:
                yield from self._drawn(limit, job, record)

    def may_have(self, job: SlurmJob, record: JobRecord, gpus: int, nodes: int) -> bool:
        """Whether the owner may ask for so many GPUs in one job. What Slurm is told with an operator's rights is not
        held against such limits any more, so nothing beyond them is ever told."""
        per_node, per_gpu = self._cpus(job, record)
        asked = {"gres/gpu": gpus, "node": nodes, "cpu": math.ceil(per_node * nodes + per_gpu * gpus)}
        return all(asked[limit.what] <= limit.most for limit in self._every_limit(job) if limit.what in asked)

    def may_have_shards(self, job: SlurmJob, shards: int) -> bool:
        """Whether the owner may ask for so many shards of a GPU in one job."""
        return all(shards <= limit.most for limit in self._every_limit(job) if limit.what == "gres/shard")

    def _licences(self, job: SlurmJob) -> Iterator[Draw]:
        if "|" in job.licenses:
            return  # one of several: which, Slurm chooses
        for name, count in _LICENCE.findall(job.licenses):
            licence = self.state.bounds.licences.get(name)
            if licence is None:
                continue
            words = f"{licence.free} of {licence.total} licences {name} are free"
            quota = self.quotas.setdefault(f"licence {name}", Quota(f"licence {name}", float(licence.free), words))
            yield Draw(quota.name, "job", float(count or 1))

    @functools.cached_property
    def _running_tasks(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for job in self.state.jobs:
            if job.array_id and job.state in (JobState.RUNNING, JobState.COMPLETING, JobState.SUSPENDED):
                found[job.array_id] = found.get(job.array_id, 0) + 1
        return found

    @functools.cached_property
    def _by_scope(self) -> dict[tuple[str, ...], list[Limit]]:
        found: dict[tuple[str, ...], list[Limit]] = {}
        for limit in self.state.bounds.limits:
            found.setdefault(limit.scope, []).append(limit)
        return found

    def _limits_of(self, job: SlurmJob) -> list[Limit]:
        """Those that Slurm minds: what a QOS limits is not limited by an association, and of a limit that the job's QOS
        has and that of its partition only one counts. The partition's does, unless the other has the flag OverPartQOS,
        which is not shown where limits are: so the one that leaves more, and Slurm's reason tells of the other."""
        of_qos: dict[tuple[str, str, bool], Limit] = {}
        rest: list[Limit] = []
        for limit in self._every_limit(job):
            kind, what = limit.scope[0], limit.what
            if not kind.startswith("qos"):
                by = ("qos", "qos-user") if (kind, what) == ("user", "jobs") else ("qos",)
                rest += [] if any((each, what, False) in of_qos for each in by) else [limit]
                continue
            other = of_qos.setdefault((kind, what, limit.each_job), limit)
            if limit.most - limit.used > other.most - other.used:
                of_qos[kind, what, limit.each_job] = limit
        return [*of_qos.values(), *rest]

    def _every_limit(self, job: SlurmJob) -> Iterator[Limit]:
        """Those of QOS first."""
        if not self._by_scope:
            return
        names = self.state.bounds.qos_of(job)
        scopes: list[tuple[str, ...]] = [
            *(("qos", name) for name in names),
            *(("qos-user", name, str(job.uid)) for name in names),
            *(("qos-account", name, job.account) for name in names),
            ("user", job.account, job.user),
            *(("account", account) for account in self.state.bounds.accounts_of(job)),
        ]
        for scope in scopes:
            yield from self._by_scope.get(scope, ())

    def _drawn(self, limit: Limit, job: SlurmJob, record: JobRecord) -> Iterator[Draw]:
        kind, _, gpu_type = limit.what.partition("gres/gpu")[2].partition(":")
        each, per = 1.0, "job"
        if job.shards and limit.what.startswith("gres/gpu"):
            return  # shards are a kind of their own
        if job.shards and limit.what == "gres/shard":
            each = float(record.shards or job.shards)
        elif limit.what.startswith("gres/gpu") and not kind:
            per = gpu_type or "gpu"
        elif limit.what == "node":
            per = "node"
        elif limit.what in ("cpu", "mem"):
            per_node, per_gpu = self._cpus(job, record)
            per, each = ("gpu", per_gpu) if per_gpu else ("node", per_node)
            each *= _memory_per_cpu(job) if limit.what == "mem" else 1.0
        elif limit.what != "jobs":
            return  # billing and the like: learned from Slurm's reasons
        name = f"{' '.join(limit.scope)} {limit.what}"
        self.quotas.setdefault(name, Quota(name, float(limit.most - limit.used), _words(limit)))
        yield Draw(name, per, each)

    def closed(self, job: SlurmJob, now: float) -> tuple[frozenset[str] | None, frozenset[str]]:
        """The only nodes that the job may have (None = all), and those that it may not: by its own wish, reserved, or
        in none of its partitions that takes it."""
        closed = {*job.exc_nodes, *self._foreign(job)}
        if not self.state.bounds.reservations:
            return None, frozenset(closed)
        own = self._own(job)
        own = [r for r in own if r.start <= now] or own
        closed.update(self.reserved(job, now))
        runs = job.state is not JobState.PENDING  # in a magnetic one maybe by no wish of its own
        if not own or any(r.flex or (runs and r.magnetic) for r in own):
            return None, frozenset(closed)
        return frozenset().union(*(r.nodes for r in own)), frozenset(closed)

    def _foreign(self, job: SlurmJob) -> frozenset[str]:
        """The nodes of its partitions that only such have as do not take it. Where none does, Slurm says so."""
        names = job.partition.split(",")
        admitting = self.state.bounds.admitting(job) if len(names) > 1 else names
        if not admitting or len(admitting) == len(names):
            return frozenset()
        of = {p.name: frozenset(p.nodes) for p in self.state.partitions}
        ours, all_ = (frozenset().union(*(of.get(name, ()) for name in some)) for some in (admitting, names))
        return all_ - ours

    def reserved(self, job: SlurmJob, now: float) -> dict[str, Reservation]:
        """The nodes that others have reserved before the job would end by its time limit; of several the first."""
        until = now + job.time_limit_s if job.time_limit_s is not None else float("inf")
        own, found = self._own(job), dict[str, Reservation]()
        for reservation in sorted(self.state.bounds.reservations, key=lambda r: r.start, reverse=True):
            if reservation in own or (reservation.start <= now and self._drawn_in(job, reservation, until)):
                continue
            if reservation.whole and reservation.start < until and reservation.end > now:
                found |= dict.fromkeys(reservation.nodes, reservation)
        return found

    def awaited(self, job: SlurmJob, now: float) -> Reservation | None:
        """The reservation that has to begin before the job may start: the first of those that it names; None if it
        waits for none."""
        own = self._own(job)
        if any(r.flex or r.start <= now for r in own):
            return None
        return min(own, key=lambda r: r.start, default=None)

    def _cpus(self, job: SlurmJob, record: JobRecord) -> tuple[float, float]:
        """CPUs for each node and for each GPU that the job has, in whatever shape it is placed: one of them is 0."""
        per_task, by_gpu = max(1, record.cpus // record.tasks), self.state.bounds.cpus_per_gpu(job)
        if by_gpu * record.workers >= record.tasks:
            return 0.0, float(by_gpu)
        if record.tasks == record.workers > record.nodes:
            return 0.0, float(per_task)
        return max(record.cpus, record.tasks * per_task) / record.nodes, 0.0

    def _own(self, job: SlurmJob) -> list[Reservation]:
        """The reservations that the job names, of which it may use any."""
        names = job.reservation.split(",") if job.reservation else ()
        return [r for r in self.state.bounds.reservations if r.name in names]

    def _drawn_in(self, job: SlurmJob, reservation: Reservation, until: float) -> bool:
        """Whether a magnetic reservation takes the job, which names none and may run until then; it may run elsewhere
        too."""
        if not reservation.magnetic or job.reservation or (reservation.outlasts and until > reservation.end):
            return False
        accounts = self.state.bounds.accounts_of(job)
        return reservation.users.admits(job.user) and reservation.accounts.admits(*accounts)


def _memory_per_cpu(job: SlurmJob) -> float:
    return job.memory_bytes / max(1, job.num_cpus)


@functools.lru_cache(maxsize=4096)
def _needs(*needs: Any) -> Needs:
    """Most jobs are alike; each set of needs is kept once."""
    return Needs(*needs)


def _words(limit: Limit) -> str:
    return f"the limit of {_whose(limit)} is reached: {_most(limit)} at once"


def _most(limit: Limit) -> str:
    return f"{limit.most / 2**30:.3g} GiB of memory" if limit.what == "mem" else f"{limit.most} {limit.what}"


def _whose(limit: Limit) -> str:
    kind, *names = limit.scope
    return {
        "qos": "QOS {0}",
        "qos-user": "QOS {0} for each user",
        "qos-account": "QOS {0} for account {1}",
        "account": "account {0}",
        "user": "user {1} in account {0}",
    }[kind].format(*names)


def node_room(
    node: SlurmNode, our_cpus: float, our_memory: float, memory_counts: bool
) -> tuple[int | None, int | None, bool]:
    """What a policy may hand out on a node beside GPUs: CPUs and bytes of memory that are free or held by jobs that
    it may move (``our_...``), None where that is not counted; and whether others' jobs are there."""
    if node.cpus <= 0:
        return None, None, False
    memory = node.memory_bytes - node.memory_used_bytes + our_memory
    counted = memory_counts and node.memory_bytes > 0
    return (
        max(0, int(node.cpus - node.cpus_used + our_cpus)),
        max(0, int(memory)) if counted else None,
        node.cpus_used > our_cpus + 0.5,
    )
