"""What is learned from jobs that Slurm does not start: why, which of their like are left alone, and which nodes are not
what a job asks for."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.steering.vain_tries import VainTries
from slurm_hadar.controller.words import clock
from slurm_hadar.model import JobState
from slurm_hadar.slurm.node_lists import fold
from slurm_hadar.slurm.state import SlurmJob

__all__ = ["Lessons", "keeps_back", "note_unfit", "of_a_known_throttle", "of_one_partition", "unfit_reason"]

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

    def clock_set(self, by_s: float) -> None:
        """The clock was set: who is left alone is so for as long as before."""
        for lesson in self._found.values():
            lesson.since += by_s
            lesson.until += by_s
        self.vain.clock_set(by_s)

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
