"""What Slurm would refuse a job beside GPUs in use, as a policy's snapshot has it: quotas, needs, nodes that are
closed.

With limits, never around them: where Slurm shows them they are reckoned with beforehand; where it does not, the reasons
that it gives for a job that does not start are learned from (:class:`Lessons`).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.steering.vain_tries import VainTries
from slurm_hadar.controller.words import clock
from slurm_hadar.model import Draw, Form, JobState, Needs, Quota
from slurm_hadar.slurm.parsing import fold
from slurm_hadar.slurm.state import ClusterState, Limit, Reservation, SlurmJob, SlurmNode
from slurm_hadar.units import counted

__all__ = [
    "Lessons", "QuotaBook", "keeps_back", "node_room", "note_unfit", "of_a_known_throttle", "of_one_partition",
    "unfit_reason",
]  # fmt: skip

# What Slurm says of a job that waits for room, for its turn or for its time, or how its last run ended: nothing
# keeps it from starting. All else does, and so may any word of a later release.
_WAITS_FOR_ROOM = frozenset((
    "", "None", "Resources", "Priority", "BeginTime", "Prolog", "Cleaning", "SchedDefer", "NonZeroExitCode",
    "JobLaunchFailure", "RaisedSignal", "TimeLimit", "SystemFailure", "OutOfMemory", "InactiveLimit",
))  # fmt: skip
# What does not pass by itself, whoever else runs: its owner or an administrator has to change something.
_NEVER = {
    "PartitionTimeLimit": "its time limit is longer than partition {0.partition} allows",
    "QOSMaxWallDurationPerJobLimit": "its time limit is longer than QOS {0.qos} allows",
    "AssocMaxWallDurationPerJobLimit": "its time limit is longer than account {0.account} allows",
    "InvalidAccount": "account {0.account} is not valid",
    "InvalidQOS": "QOS {0.qos} is not valid for it",
    **dict.fromkeys(
        ("AccountNotAllowed", "Job's account not permitted to use this partition"),
        "account {0.account} may not use partition {0.partition}",
    ),
    **dict.fromkeys(
        ("QOSNotAllowed", "Job's QOS not permitted to use this partition"),
        "QOS {0.qos} may not be used in partition {0.partition}",
    ),
}
_THROTTLED = "JobArrayTaskLimit"
_SAYS_NOTHING = ("", "None", "BeginTime")
_OF_QOS = re.compile(r"QOS|MaxGRES|MaxCpu|MaxMem|MaxNode|MaxJobs")
_LICENCE = re.compile(r"([^:,;|]+)(?::(\d{1,9}))?")
_LONGEST_TRIES_S = 1800.0
_PASS_ROUNDS = 2  # for a node where a job did not get what seemed free
_UNFIT_ROUNDS = 10  # for a node that is not what a job asks for
_LONGEST_UNFIT_S = 86400.0


def keeps_back(reason: str) -> bool:
    """Whether this reason of a waiting job means that Slurm would not start it, whatever GPUs are free."""
    return reason not in _WAITS_FOR_ROOM and _first(reason) not in _WAITS_FOR_ROOM


def of_one_partition(job: SlurmJob) -> bool:
    """Whether the reason of a waiting job is about one of its partitions, and another may start it."""
    return "," in job.partition and _first(job.reason) in _NEVER


def of_a_known_throttle(job: SlurmJob) -> bool:
    """Whether the reason of a waiting job is that of its array's tasks enough run. It stands until Slurm looks at the
    job again; how many may run is reckoned with."""
    return job.throttle is not None and job.reason.startswith(_THROTTLED)


def _never_starts(job: SlurmJob, reason: str) -> str | None:
    """Why Slurm will not start a waiting job as it is, however long it waits, if this is its reason; None if it may. Of
    several partitions Slurm tells the reason of one only, and another may have it."""
    why = _NEVER.get(_first(reason))
    if why is None or "," in job.partition:
        return None
    return f"cannot start as it was submitted: {why.format(job)}; Slurm says {reason}"


def _first(reason: str) -> str:
    """The word of a reason, without what it is about; some commands write its spaces as underscores."""
    return re.split(r"[,:(]", reason, maxsplit=1)[0].replace("_", " ").strip()


@dataclass
class _Lesson:
    """That jobs of one scope do not start: since when that is known, until when none is tried, how long it was this
    time, which one is tried in this round, and which had their turn."""

    reason: str
    since: float
    until: float
    wait_s: float
    probe: str = ""
    passed: set[str] = field(default_factory=set)


class Lessons:
    """What was learned from jobs that did not start: by job, array, user under a QOS, or account.

    A scope whose job was kept back is left alone for a while, which grows with each try up to half an hour; then one of
    its jobs may be tried in each round, in turn, and all when one has started.
    """

    def __init__(self) -> None:
        self._found: dict[tuple[str, ...], _Lesson] = {}
        self.vain = VainTries()

    def learn(self, job: SlurmJob, reason: str, now: float, first_s: float, tried: bool) -> None:
        """Slurm keeps the job back. ``first_s``: how long its like are left alone after the first time. Only a job that
        was ``tried`` makes that time grow."""
        scope = _scope(job, reason)
        old = self._found.get(scope)
        if old is None or (tried and old.until <= now):
            wait_s = first_s if old is None else min(_LONGEST_TRIES_S, max(first_s, 2 * old.wait_s))
            self._found[scope] = _Lesson(reason, now, now + wait_s, wait_s)
        elif _first(reason) in _NEVER:
            old.reason = reason

    def tried_in_vain(self, job: SlurmJob, record: JobRecord, nodes: Sequence[str], now: float, round_s: float) -> None:
        """The job was given these nodes, which had room, and was not started. It may be for something there: they are
        not tried again for two rounds, nor with its like, but others are at once. From the second time on it is for
        the job, which is left alone, so that others get their turn."""
        record.keep_off(nodes, now + _PASS_ROUNDS * round_s)
        self.vain.note(job, record, nodes, now, round_s)
        scope, reason = _scope(job, ""), f"{job.reason or 'no reason given'}, beside free GPUs"
        if scope in self._found:
            self.learn(job, reason, now, round_s, tried=True)
        else:
            self._found[scope] = _Lesson(reason, now, now, 0.0)

    def forget(self, job: SlurmJob) -> None:
        """The job runs: what kept its like back is over, if it has started since. One that ran before may be the very
        reason, such as a task of an array of which one may run at a time."""
        for scope in _scopes(job) if self._found else ():
            lesson = self._found.get(scope)
            if lesson is not None and (job.start or 0.0) > lesson.since:
                del self._found[scope]

    def reason(self, job: SlurmJob, now: float) -> str | None:
        """Why the job is not to be tried now; None if it may be."""
        for scope in _scopes(job) if self._found else ():
            lesson = self._found.get(scope)
            if lesson is None:
                continue
            if lesson.until > now:
                return (
                    f"Slurm keeps it from starting ({lesson.reason}); tried again in {math.ceil(lesson.until - now)} s"
                )
            if scope == ("job", job.job_id):
                continue
            if not lesson.probe and job.job_id not in lesson.passed:
                lesson.probe = job.job_id
            if lesson.probe != job.job_id:
                return f"Slurm keeps its like from starting ({lesson.reason}); they are tried one by one"
        return None

    def never(self, job: SlurmJob, now: float) -> str | None:
        """Why Slurm will not start the waiting job as it is. While the job is put off Slurm does not say: then what it
        said last counts, until it says something else."""
        lesson = self._found.get(("job", job.job_id))
        if job.reason in _SAYS_NOTHING:
            return _never_starts(job, lesson.reason) if lesson is not None else None
        never = _never_starts(job, job.reason)
        if never is not None:
            self.learn(job, job.reason, now, 0.0, tried=False)
        elif lesson is not None and _never_starts(job, lesson.reason) is not None:
            del self._found["job", job.job_id]
        return never

    def expire(self, jobs: Mapping[str, SlurmJob]) -> None:
        """A new round: forget what was learned of jobs that are gone, and let the next of each scope have its turn."""
        kept = {scope for job in jobs.values() if job.state is JobState.PENDING for scope in _scopes(job)}
        self._found = {scope: lesson for scope, lesson in self._found.items() if scope in kept}
        for lesson in self._found.values():
            lesson.passed = lesson.passed | {lesson.probe} if lesson.probe else set()
            lesson.probe = ""


def note_unfit(record: JobRecord, nodes: Sequence[str], reason: str, now: float, round_s: float) -> None:
    """Slurm holds the job since these nodes, which had room, are not what it asks for: it asks for something that
    nobody has reckoned with. They are not tried again for a time that grows with each such try. From the second on the
    job is left to Slurm for as long, which knows where it fits."""
    record.unfit += 1
    first_s = _UNFIT_ROUNDS * round_s
    wait_s = max(first_s, min(_LONGEST_UNFIT_S, first_s * 2 ** min(record.unfit - 1, 30)))
    record.keep_off(nodes, now + wait_s)
    record.unfit_on, record.unfit_until = f"{fold(nodes)} ({reason})", now + wait_s


def unfit_reason(job: SlurmJob, record: JobRecord, now: float) -> str | None:
    """Why a job is left to Slurm for a while that was found unfit for nodes; if it runs, until it is over, since moved
    it might not start again. None if it is not."""
    waits = job.state is JobState.PENDING
    if record.unfit < 2 or (waits and record.unfit_until <= now):
        return None
    until = f" until {clock(record.unfit_until)}" if waits else ""
    return (
        f"asks for something of a node that is not known here, and is left to Slurm{until}: Slurm would not have it on "
        f"{record.unfit_on}, where GPUs were free"
    )


def _scope(job: SlurmJob, reason: str) -> tuple[str, ...]:
    """Whose matter the reason is."""
    if _first(reason) in _NEVER:
        return ("job", job.job_id)
    if reason.startswith(_THROTTLED) and job.array_id:
        return ("array", job.array_id)
    if _OF_QOS.match(reason):
        if "PerUser" in reason:
            return ("qos", job.qos, "user", job.user)
        if "PerAccount" in reason:
            return ("qos", job.qos, "account", job.account)
        return ("qos", job.qos) if "Grp" in reason else ("job", job.job_id)
    if reason.startswith("Assoc"):
        return ("account", job.account) if "Grp" in reason else ("account", job.account, "user", job.user)
    if reason.startswith("Licenses"):
        return ("licences", job.licenses)
    return ("job", job.job_id)


def _scopes(job: SlurmJob) -> tuple[tuple[str, ...], ...]:
    """Every scope that a job can be in."""
    return (
        ("job", job.job_id), ("array", job.array_id or ""), ("qos", job.qos), ("qos", job.qos, "user", job.user),
        ("qos", job.qos, "account", job.account), ("account", job.account), ("licences", job.licenses),
        ("account", job.account, "user", job.user),
    )  # fmt: skip


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
        return all(asked[limit.what] <= limit.most for limit in self._limits_of(job) if limit.what in asked)

    def may_have_shards(self, job: SlurmJob, shards: int) -> bool:
        """Whether the owner may ask for so many shards of a GPU in one job."""
        return all(shards <= limit.most for limit in self._limits_of(job) if limit.what == "gres/shard")

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

    def _limits_of(self, job: SlurmJob) -> Iterator[Limit]:
        if not self._by_scope:
            return
        scopes: list[tuple[str, ...]] = [
            ("qos", job.qos),
            ("qos-user", job.qos, str(job.uid)),
            ("qos-account", job.qos, job.account),
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
