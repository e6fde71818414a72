"""Which jobs can be steered: the rules of what stock Slurm can do to a job.

Every reason returned here is shown to the job's owner, so it names the cause and the fix.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from slurm_hadar.comment import JobComment, is_ours, looks_like_ours, read
from slurm_hadar.config import Config, Mode
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.steering.elastic import gang_sizes, has_room
from slurm_hadar.controller.steering.forms import is_elastic, node_range, placement_of, tasks_are_even
from slurm_hadar.controller.steering.nodes import (
    NodeBook,
    NodeFacts,
    constraint_known,
    nodes_counted,
)
from slurm_hadar.model import JobState, Mix
from slurm_hadar.slurm.state import SlurmJob

__all__ = [
    "LAUNCH_FAILED",
    "TRANSIENT_HOLDS",
    "may_end",
    "may_relaunch",
    "may_retry",
    "out_of_scope",
    "pinned_reason",
    "put_off_by_us",
    "unreadable",
]

_NO_SHARDS = (
    "asks for shards, of which no node has as many on each of its GPUs, or Slurm does not say which GPUs are in use"
)
TRANSIENT_HOLDS = ("BadConstraints",)
LAUNCH_FAILED = "launch failed requeued held"
REQUEUE_DELAY_S = 125.0  # Slurm's 120, and the seconds that its clock may be ahead
_START_WITHIN_S = 5.0  # a start time that is nearer to the last requeue may be one from before it; leases are longer
_FAILS_WITHIN_S = 2.0  # times of Slurm are whole seconds
_TAKEN_IN_WITHIN_S = 5.0  # job_submit.lua runs first; slurmctld may wait for its locks then


def pinned_reason(
    job: SlurmJob,
    comment: JobComment,
    record: JobRecord | None,
    config: Config,
    nodes: NodeBook,
    acting_only: bool,
) -> str | None:
    """Why the job cannot or must not be steered; None if it can. ``acting_only``: also where its partition is in a mode
    that only looks."""
    return (
        _by_consent(job, comment, config)
        or _by_kind(job)
        or _by_request(job)
        or _by_state(job, record, comment)
        or _by_nodes(job, record, nodes)
        or (_by_place(job, comment, record, nodes) if record is not None else None)
        or (_by_mode(job, config) if acting_only else None)
    )


def _by_mode(job: SlurmJob, config: Config) -> str | None:
    mode = config.mode(job.partition)
    return None if mode is Mode.ACT else f"partition {job.partition} is in mode {mode}"


def out_of_scope(job: SlurmJob, config: Config) -> str | None:
    """Why the job may be another controller's; None if it is this one's to look after."""
    scope = config.controller
    if scope.users and job.user not in scope.users:
        return f"user {job.user} is outside this controller's scope"
    if scope.partitions and not set(job.partition.split(",")) <= set(scope.partitions):
        return f"partition {job.partition} is outside this controller's scope"
    return None


def _by_consent(job: SlurmJob, comment: JobComment, config: Config) -> str | None:
    """Scope, exemptions, and the owner's word."""
    if not is_ours(job.comment):
        near = "; its own looks like one, but does not begin with hadar: (small letters, a colon)"
        return f"has no hadar: comment{near if looks_like_ours(job.comment) else ''}"
    if comment.pin:
        return "pin=yes in its comment"
    if (outside := out_of_scope(job, config)) is not None:
        return outside
    guard, partitions = config.guard, job.partition.split(",")
    if job.user in guard.exempt_users or job.qos in guard.exempt_qos:
        return f"user {job.user} or QOS {job.qos} is exempt by the configuration"
    if set(partitions) & set(guard.exempt_partitions):
        return f"partition {job.partition} is exempt by the configuration"
    return None


def _by_kind(job: SlurmJob) -> str | None:
    if job.het_id:
        return "is a component of a heterogeneous job; submit a plain job to have it steered"
    if not job.batch:
        return "is not a batch job; only sbatch jobs can be moved"
    if not job.requeue:
        return "was submitted with --no-requeue; submit with --requeue to have it steered"
    if job.deadline is not None:
        return (
            "has a --deadline, past which Slurm cancels what was put off; say deadline= in the comment instead to have "
            "it steered"
        )
    return None


def _by_request(job: SlurmJob) -> str | None:
    if job.shares:
        return _by_part(job)
    if not job.gpus:
        return "asks for no GPUs"
    if len(job.gpus) > 1:
        return "asks for GPUs in more than one way; ask with --gres=gpu:N only"
    request = job.gpus[0]
    if request.typed:
        names = ", ".join(t for t, _ in request.types if t)
        return (
            f"asks for GPU type {names}, which Slurm cannot change; ask for --gres=gpu:{request.count} "
            "and say types= in the comment"
        )
    if request.per == "task" and not tasks_are_even(job, len(job.nodes) or job.num_nodes):
        return (
            f"asks for GPUs per task, on {job.num_nodes} nodes, over which Slurm may spread its tasks unevenly; "
            "ask for --ntasks-per-node, too, to have it steered"
        )
    if request.per not in ("node", "job", "task"):
        return f"asks for GPUs per {request.per}; ask with --gres=gpu:N"
    if job.features and not constraint_known(job.features):
        return f"has a --constraint that cannot be followed: {job.features}"
    return None


def _by_part(job: SlurmJob) -> str | None:
    """Of a job that asks for a part of a GPU: Slurm cannot be told which GPU, but which node, and how many shards."""
    if not job.shards or job.gpus or max(job.num_nodes, job.max_nodes) > 1:
        with_gpus = " beside whole GPUs" if job.gpus else ""
        nodes = " on several nodes" if job.max_nodes > 1 else ""
        return (
            f"asks for a part of a GPU ({job.shares}){with_gpus}{nodes}, which Slurm places and starts; to have it "
            "steered ask for --gres=shard:N alone, untyped, on one node"
        )
    if job.array_id and read(job.comment)[0].fork is not None:
        return "is a copy of a forked job that asks for a part of a GPU; forked jobs take whole GPUs"
    if job.features and not constraint_known(job.features):
        return f"has a --constraint that cannot be followed: {job.features}"
    return None


def _by_state(job: SlurmJob, record: JobRecord | None, comment: JobComment) -> str | None:
    if job.state is JobState.SUSPENDED:
        return "is suspended"
    if job.state is JobState.COMPLETING:
        return "is ending"
    if job.state is JobState.RUNNING and job.priority == 0:
        return "has a hold on it: once stopped, it would not start again"
    if job.state is not JobState.PENDING:
        return None
    if job.held and job.reason not in TRANSIENT_HOLDS and not may_relaunch(job, record):
        return f"is held ({job.reason or 'priority 0'})"
    if job.dependency and job.reason in ("Dependency", "DependencyNeverSatisfied"):
        return f"waits for its dependency {job.dependency}"
    return "has a begin time of its own" if _own_begin(job, record, comment) else None


def _own_begin(job: SlurmJob, record: JobRecord | None, comment: JobComment) -> bool:
    """Whether the job waits for a moment to come that its owner or an administrator chose: neither this controller's
    lease, nor that to which Slurm puts off what it has requeued. Slurm may show any reason until then."""
    if job.eligible is None or job.eligible <= time.time() or put_off_by_us(job, record, comment):
        return False
    submit = job.submit or 0.0
    put_off_since = record is not None and record.lease_low is not None and record.lease_low > submit + _START_WITHIN_S
    requeued = job.restarts > 0 and job.eligible <= submit + REQUEUE_DELAY_S and not put_off_since
    return not requeued


def put_off_by_us(job: SlurmJob, record: JobRecord | None, comment: JobComment) -> bool:
    """Whether the job waits for a moment to come that this controller chose, or job_submit.lua for it."""
    if job.eligible is None or job.eligible <= time.time():
        return False
    return (record is not None and record.deferred(job.eligible)) or _leased_at_submission(job, comment)


def unreadable(job: SlurmJob) -> str | None:
    """Why nobody can tell what the job is or wants: Slurm's record of it, or its comment; None if both can be read."""
    return job.fault or read(job.comment)[1]


def may_relaunch(job: SlurmJob, record: JobRecord | None) -> bool:
    """Whether Slurm holds the job because its script could not be started on its nodes, as where a run that slurmctld
    has forgotten is still ending there. It is released once; what fails again is for people to look at."""
    return job.held and job.reason == LAUNCH_FAILED and record is not None and record.relaunched == 0


def may_end(job: SlurmJob, comment: JobComment, config: Config) -> bool:
    """Whether a copy of a forked job that is not needed any more is this controller's to cancel."""
    return config.mode(job.partition) is Mode.ACT and _by_consent(job, comment, config) is None


def may_retry(job: SlurmJob, comment: JobComment, record: JobRecord, config: Config) -> bool:
    """Whether a job that failed in the moment of a restart is to be put back into the queue, which Slurm is told once.

    Slurm ends what is left of a lost run when the node is back, or when slurmctld is, and a new run of the job with it
    that it has just started there. What has run before seldom fails so fast by itself; a job with retry= says when it
    did, and after its last retry it is over.
    """
    if unreadable(job) is not None or (comment.retry is not None and record.retries >= comment.retry):
        return False
    if not config.jobs.retry_failed_restart or record.relaunched or config.mode(job.partition) is not Mode.ACT:
        return False
    if job.state_text != "FAILED" or not job.restarts or job.start is None or job.end is None:
        return False
    fast = job.end - job.start <= _FAILS_WITHIN_S
    return fast and (_by_consent(job, comment, config) or _by_kind(job)) is None


def _leased_at_submission(job: SlurmJob, comment: JobComment) -> bool:
    """Whether the begin time is that which job_submit.lua gives new jobs, so that they are seen before they start:
    counted from a moment before slurmctld took the job in. Any other is somebody's wish."""
    if comment.lease is None or job.eligible is None or job.submit is None:
        return False
    return -1.0 <= job.submit + comment.lease - job.eligible <= _TAKEN_IN_WITHIN_S


def _by_nodes(job: SlurmJob, record: JobRecord | None, nodes: Mapping[str, NodeFacts]) -> str | None:
    steered = record is not None and record.steered
    if job.req_nodes and not steered:
        return "asks for nodes by name (-w); use --constraint or types= in the comment"
    most = max((node.per_gpu for node in nodes.values()), default=0)
    if job.shards > most:
        return f"asks for {job.shards} shards of a GPU, and no GPU has more than {most}" if most else _NO_SHARDS
    if job.state is JobState.PENDING:
        return None
    for name in job.nodes:
        node = nodes.get(name)
        if node is None or not node.available:
            away = "in maintenance" if node is not None and node.maintenance else "drained, down or gone"
            return f"runs on {name}, which is {away}"
        if node.several_types:
            return f"runs on {name}, which has several GPU types that Slurm cannot choose between"
    if job.state is JobState.RUNNING and not placement_of(job, nodes):
        return "has an uneven number of GPUs on its nodes"
    return None


def _by_place(job: SlurmJob, comment: JobComment, record: JobRecord, nodes: NodeBook) -> str | None:
    """That no placement of ours would do for the job, were the cluster empty, and that it is not its owner who wants it
    so: where Slurm has room for it, on unlike nodes or unevenly, it is not to be kept from using that."""
    if record.node_range:
        low, high = record.node_range
        return f"asks for {low} to {high} nodes; ask for one number with -N, and say nodes= in the comment instead"
    low, high, mix = node_range(job, comment, record, nodes)
    if (unlike := _by_likeness(job, low, high, mix, nodes)) is not None:
        return unlike
    its_wish = comment.types is not None or comment.mem_gb is not None or comment.mix is not None
    if its_wish or job.shards or not record.workers:
        return None
    groups = nodes.groups(job, mix)
    sizes: tuple[int, ...] = (record.workers,)
    if is_elastic(job, comment, record, nodes):
        sizes = gang_sizes(comment.gpus or (), record.workers, low, high, comment.batch, groups)
    if any(has_room(size, low, high, groups) for size in sizes) or not _slurm_has_room(job, record, nodes):
        return None
    count = f"{low} node{'s'[: low > 1]}" if high == low else f"{low} to {high} nodes"
    return (
        f"finds no {record.workers} GPUs of one type on {count}, equally many on each, in the whole cluster, and is "
        "left to Slurm; say nodes= or mix= in the comment to have it steered"
    )


def _by_likeness(job: SlurmJob, low: int, high: int, mix: Mix, nodes: NodeBook) -> str | None:
    """What Slurm asks of all nodes of a job together, where the nodes open to it are not alike in that."""
    counted = nodes_counted(job.features)
    if counted is not None and not low == counted == high:
        return (
            f"asks for {high} node{'s'[: high > 1]}, {counted} of them with --constraint={job.features}, which cannot "
            "be followed; ask for the same feature on all to have it steered"
        )
    if high > 1 and job.switches:
        return f"asks for nodes below few switches (--switches={job.switches}), which Slurm alone knows and waits for"
    if low > 1 and not nodes.are_one(job.partition, job.features):
        return (
            f"asks for {low} nodes in partitions {job.partition}, with unlike nodes, of which Slurm takes one; "
            "name one with -p to have it steered"
        )
    if low > 1 and not nodes.alternatives_alike(job.partition, job.features, mix):
        return (
            f"asks for {low} nodes with --constraint={job.features}, the same one of these on all, which differ among "
            "the nodes open to it; name one of them to have it steered"
        )
    return None


def _slurm_has_room(job: SlurmJob, record: JobRecord, nodes: NodeBook) -> bool:
    """Whether Slurm could start the job somewhere, were the cluster empty, by its GPUs alone."""
    gpus = [nodes[n].gpus for n in nodes.open_to(job.partition, job.features, job.asks).difference(job.exc_nodes)]
    if job.gpus[0].per != "node":
        return sum(gpus) >= record.workers
    return sum(has >= record.workers // record.nodes for has in gpus) >= record.nodes
