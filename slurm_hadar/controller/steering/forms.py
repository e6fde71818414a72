"""In which shapes a job may run, as far as stock Slurm can give it these, and what it holds where it runs."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from slurm_hadar.comment import JobComment
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.steering.elastic import gang_sizes
from slurm_hadar.controller.steering.nodes import (
    NodeBook,
    NodeFacts,
    groups_open,
    nodes_counted,
)
from slurm_hadar.model import EMPTY, Form, JobState, Mix, Placement
from slurm_hadar.slurm.state import SlurmJob

__all__ = [
    "by_task",
    "form_of",
    "gpus_asked",
    "is_elastic",
    "no_type",
    "node_range",
    "placement_of",
    "shared_form",
    "size_kept",
    "tasks_are_even",
    "types_of",
    "whole_of",
]


def placement_of(job: SlurmJob, nodes: Mapping[str, NodeFacts]) -> Placement:
    """The GPUs that a running job with one untyped request holds; EMPTY if that cannot be told or it does not run. Who
    has shards of a GPU holds that GPU, with others or not."""
    if job.state is not JobState.RUNNING or not job.nodes:
        return EMPTY
    each = 1 if job.shards and not job.gpus and len(job.nodes) == 1 else _each(job)
    if each is None:
        return EMPTY
    types = {name: nodes[name].gpu_type for name in job.nodes if name in nodes}
    if len(types) != len(job.nodes) or None in types.values():
        return EMPTY
    return Placement.of({name: {gpu_type: each} for name, gpu_type in types.items() if gpu_type})


def _each(job: SlurmJob) -> int | None:
    """How many GPUs a running job with one request has on each of its nodes; None where they may lie unevenly."""
    request = job.gpus[0] if len(job.gpus) == 1 else None
    if request is None or (request.per == "task" and not tasks_are_even(job, len(job.nodes))):
        return None
    if request.per == "task":
        return request.count * job.num_tasks // len(job.nodes)
    return request.count if request.per == "node" or (request.per == "job" and len(job.nodes) == 1) else None


def tasks_are_even(job: SlurmJob, nodes: int) -> bool:
    """Whether Slurm starts equally many of the job's tasks on each of so many nodes: else it spreads them as it likes,
    seven and one of eight (seen on 22.05)."""
    return nodes == 1 or job.num_tasks in (nodes, nodes * job.tasks_per_node)


def whole_of(job: SlurmJob, placement: Placement, alone: Mapping[str, Mapping[str, int]]) -> Placement:
    """All GPUs of the nodes of a running job, where Slurm has given it these whole; EMPTY where it has only those of
    its placement. ``alone``: what is in use on nodes where one job is; with ``--exclusive=user`` that is what it asked
    for."""
    if not job.exclusive or job.shards or not set(placement.nodes) <= alone.keys():
        return EMPTY
    whole = Placement.of({node: {t: max(n, alone[node].get(t, 0))} for node, t, n in placement.items()})
    return EMPTY if whole == placement else whole


def gpus_asked(job: SlurmJob) -> int | None:
    """How many GPUs the job asks for, on the nodes that it has if it runs; None where that is counted otherwise. Shards
    are of one GPU."""
    if job.shards and not job.gpus:
        return 1
    request = job.gpus[0] if len(job.gpus) == 1 else None
    if request is None or request.per not in ("node", "job", "task"):
        return None
    times = {"node": len(job.nodes) or job.num_nodes, "task": job.num_tasks}
    return request.count * max(1, times.get(request.per, 1))


def form_of(job: SlurmJob, comment: JobComment, record: JobRecord, nodes: NodeBook, now: float) -> Form:
    """Which placements the job's form allows: gang size as asked, other sizes and the node range from the comment.

    A job that starts several tasks per node keeps its node count: changing it would change what ``srun`` starts. Which
    of those are elastic :func:`size_kept` says.
    """
    low, high, mix = node_range(job, comment, record, nodes)
    # where it runs it may stay: what speaks against a node is about starting there
    avoid = {n for n, until in record.avoid.items() if until > now and n not in job.nodes}
    if job.shards:
        avoid |= {name for name, node in nodes.items() if node.per_gpu < job.shards}
    open_nodes = _open_nodes(job, nodes, avoid)
    types, small = types_of(comment, nodes)
    sizes: tuple[int, ...] = ()
    if is_elastic(job, comment, record, nodes):
        groups = groups_open(nodes, open_nodes, types, mix)
        sizes = gang_sizes(comment.gpus or (), record.workers, low, high, comment.batch, groups)
    return shared_form(
        Form(
            workers=record.workers,
            min_nodes=low,
            max_nodes=max(low, min(high, max(sizes, default=record.workers))),
            uniform=True,
            mix=mix,
            types=types,
            nodes=open_nodes,
            sizes=sizes,
            memory_gb=comment.mem_gb,
            small=small,
        )
    )


def node_range(job: SlurmJob, comment: JobComment, record: JobRecord, nodes: NodeBook) -> tuple[int, int, Mix]:
    """The fewest and most nodes that a job may have, and whether they may be unlike. Those of a job all lie in one of
    its partitions, which may limit their number, and have the same one of ``[a|b]``."""
    if comment.fork is not None and job.array_id:  # a copy stays on one node: other nodes have other copies
        return 1, 1, Mix.NEVER
    low, high = comment.nodes or (record.nodes, record.nodes)
    if record.tasks != record.nodes or _keeps_shape(job, nodes):
        low = high = record.nodes
    mix = comment.mix or Mix.NEVER
    one_place = nodes.are_one(job.partition, job.features) and nodes.alternatives_alike(
        job.partition, job.features, mix
    )
    if low == 1 and not one_place:
        high = 1
    counted = nodes_counted(job.features)
    if counted is not None and low <= counted <= high:
        low = high = counted
    least, most = nodes.bounds.node_limits(job.partition)
    allowed = max(low, least), high if most is None else min(high, most)
    if allowed[0] <= allowed[1]:  # else it cannot start at all
        low, high = allowed
    return low, max(low, high), mix


def is_elastic(job: SlurmJob, comment: JobComment, record: JobRecord, nodes: NodeBook) -> bool:
    """Whether the job may be given other sizes: its comment names some, and Slurm can change its shape."""
    whole = record.workers > 0 and not job.shards
    return comment.gpus is not None and whole and size_kept(job, record, nodes) is None


def size_kept(job: SlurmJob, record: JobRecord, nodes: NodeBook) -> str | None:
    """Why a job whose comment allows other sizes keeps its own; None if Slurm can give it another.

    With one task on each node any size will do. Else tasks follow the GPUs, where the job has one for each: by their
    number, the only one of these that a job's owner may have changed. Another number than ``--ntasks-per-node`` or
    ``--ntasks-per-socket`` allow is ``BadConstraints``, or more tasks than were told; and the tasks of several nodes
    Slurm spreads as it likes, seven and one of eight (seen on 22.05).
    """
    if by_task(job):
        return "it asks for GPUs per task; ask with --gres=gpu:N"
    if _keeps_shape(job, nodes):
        return "it asks for other GRES, and its CPUs are counted by GPUs"
    if record.tasks == record.nodes:
        return None
    torchrun = "ask for one task on each node, and start a worker per GPU by torchrun"
    if record.tasks != record.workers:
        return f"its {record.tasks} tasks are neither one on each node nor one per GPU; {torchrun}"
    for option, each in (("node", job.tasks_per_node), ("socket", job.tasks_per_socket)):
        if each:
            plain = f"ask for --ntasks={record.tasks} instead, or " if record.nodes == 1 else ""
            return f"--ntasks-per-{option}={each} cannot be changed with its GPUs; {plain}{torchrun}"
    if record.nodes > 1:
        return f"Slurm would not spread its tasks over {record.nodes} nodes as its GPUs; {torchrun}"
    return None


def _keeps_shape(job: SlurmJob, nodes: NodeBook) -> bool:
    """Whether only its owner can change the job's shape: what it asks for per task stands beside whatever it is told,
    and of one with other GRES whose CPUs are counted by GPUs Slurm reckons the CPUs wrongly, or finds no node, once it
    was told other tasks (seen on 22.05)."""
    return by_task(job) or (bool(job.asks.gres) and nodes.bounds.cpus_per_gpu(job) > 0)


def by_task(job: SlurmJob) -> bool:
    """Whether the job asks for GPUs by ``--gpus-per-task``."""
    return any(request.per == "task" for request in job.gpus)


def types_of(comment: JobComment, nodes: NodeBook) -> tuple[frozenset[str] | None, tuple[tuple[str, int | None], ...]]:
    """The only GPU types that a job may have (None = all), and those with too little memory for it, with their GB."""
    small = nodes.small(comment.mem_gb) if comment.mem_gb is not None else ()
    if not small:
        return comment.types, ()
    accepted = comment.types if comment.types is not None else frozenset(nodes.gpu_types)
    return accepted - {gpu_type for gpu_type, _ in small}, small


def no_type(comment: JobComment, nodes: NodeBook) -> str | None:
    """Why no GPU type of the cluster is one that the job accepts, whatever is free; None if one is, or no node has only
    one type."""
    types, small = types_of(comment, nodes)
    if types is None or not nodes.gpu_types or not types.isdisjoint(nodes.gpu_types):
        return None
    form = Form(1, types=types, memory_gb=comment.mem_gb, small=small)
    short = form.shortage(nodes.gpu_types)
    others = set(nodes.gpu_types) - {t for t, _ in small}
    wanted = f"{', '.join(sorted(others))} not in types={'+'.join(sorted(comment.types or ()))}" if others else ""
    return "; ".join(part for part in (short, wanted) if part)


@functools.lru_cache(maxsize=4096)
def shared_form(form: Form) -> Form:
    """The same form for all that are alike, since most jobs of a long queue are."""
    return form


def _open_nodes(job: SlurmJob, nodes: NodeBook, avoid: set[str]) -> frozenset[str] | None:
    """Nodes that partitions, constraint and past failures leave open; None where they leave all."""
    chosen = nodes.open_to(job.partition, job.features, job.asks)
    if job.state is JobState.RUNNING:  # where it runs it may stay, whatever was changed about the node since
        chosen |= frozenset(job.nodes)
    if avoid:
        chosen -= avoid
    return None if len(chosen) == len(nodes) else chosen
