"""The exact words to Slurm for each thing the controller wants: pure functions, no I/O.

Every trap behind these lines was met on a real cluster: GPU requests are merged, not replaced, so they stay untyped
and are cleared with an empty string; node and task counts are set together; nothing is ever held.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from slurm_hadar.comment import read, with_asked, with_needs
from slurm_hadar.controller.agents.notes import Seal
from slurm_hadar.controller.journal import JobRecord
from slurm_hadar.controller.steering.forms import by_task
from slurm_hadar.model import Placement
from slurm_hadar.slurm.node_lists import fold
from slurm_hadar.slurm.state import SlurmJob, Write

__all__ = [
    "RESTART_GAP_S", "defer", "free", "give_back", "lease", "let_go", "place", "requeue", "restart", "tasks_told",
]  # fmt: skip

RESTART_GAP_S = 2.0  # a job restarted on a node in the second of its kill is refused there and fails
_LIST_CHUNK = 1000


def requeue(job_ids: Iterable[str]) -> list[Write]:
    """Stop running jobs and put them back into the queue."""
    ids = tuple(job_ids)
    return [Write("requeue", ids)] if ids else []


def restart(job_ids: Iterable[str]) -> list[Write]:
    """Put jobs that are over back into the queue."""
    ids = tuple(job_ids)
    return [Write("restart", ids)] if ids else []


def lease(jobs: Iterable[SlurmJob], seconds: float) -> list[Write]:
    """Make waiting jobs ineligible for ``seconds`` from now: one call for many jobs."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = defaultdict(list)
    for job in jobs:
        alike[(*_tasks_kept(job), ("StartTime", _after(seconds)))].append(job.job_id)
    return [
        Write("update", tuple(ids[i : i + _LIST_CHUNK]), fields)
        for fields, ids in alike.items()
        for i in range(0, len(ids), _LIST_CHUNK)
    ]


def place(
    job: SlurmJob, record: JobRecord, placement: Placement, seal: Seal, after_s: float = 0.0, shards: int = 0
) -> Write:
    """Start a pending job on exactly these nodes, ``after_s`` seconds from now. ``shards``: so many of one GPU, if it
    asks for a part of one; 0 = as many as its owner asked for."""
    fields = (
        *_shape(job, record, placement, shards),
        ("NodeList", fold(placement.nodes)),
        ("StartTime", _after(after_s)),
    )
    return _update(job, *fields, *_limit(job, record), *_mark(job, record, seal))


def tasks_told(job: SlurmJob, record: JobRecord, placement: Placement) -> int | None:
    """How many tasks :func:`place` tells Slurm; None where the job has that shape already."""
    tasks = dict(_shape(job, record, placement, 0)).get("NumTasks")
    return None if tasks is None else int(tasks)


def defer(job: SlurmJob, record: JobRecord, seconds: float) -> Write:
    """Lease a job that was steered before, and give it back the shape its owner asked for and every node, so that it
    starts like any other job should the controller not come back."""
    return _update(job, *_owner_shape(job, record), ("NodeList", ""), ("StartTime", _after(seconds)))


def give_back(job: SlurmJob, record: JobRecord) -> Write:
    """Give a job that is not to be steered any more its owner's shape and every node; when it starts stays as it is."""
    return _update(job, *_owner_shape(job, record), ("NodeList", ""))


def free(job: SlurmJob, record: JobRecord) -> Write:
    """Undo all steering of a pending job: it is eligible at once, as its owner submitted it."""
    return _update(job, *_owner_shape(job, record), ("NodeList", ""), ("StartTime", "now"))


def let_go(job: SlurmJob) -> Write:
    """Every node, at once, for a pending job of which nobody knows what its owner asked for."""
    return _update(job, ("NodeList", ""), ("StartTime", "now"))


def _update(job: SlurmJob, *fields: tuple[str, str]) -> Write:
    kept = () if "NumTasks" in dict(fields) else _tasks_kept(job)
    return Write("update", (job.job_id,), (*kept, *fields))


def _tasks_kept(job: SlurmJob) -> tuple[tuple[str, str], ...]:
    """With any change of a waiting job that was submitted with ``--ntasks-per-gpu`` Slurm 24.11 leaves it the tasks of
    one GPU on each node, unless it is told how many they are. No more than nodes is no wish of the owner's: told, they
    would be one."""
    return (("NumTasks", str(job.num_tasks)),) if job.num_tasks > job.num_nodes else ()


def _mark(job: SlurmJob, record: JobRecord, seal: Seal) -> tuple[tuple[str, str], ...]:
    """A word in the job's own comment that its nodes are ours, what its owner asked for, and what its like took of a
    shared GPU's memory. Without the first two, who has lost the journal would take the nodes for the owner's wish, and
    never give the job others. Sealed, since it is given back with this controller's rights."""
    shape = (record.shards or record.workers, record.nodes, record.tasks, record.cpus)
    text = with_asked(job.comment, shape, seal.of(job.job_id, job.user, shape)) or job.comment
    if len(record.needs_mib) == 2:
        text = with_needs(text, (record.needs_mib[0], record.needs_mib[1]))
    return (("Comment", text),) if text != job.comment else ()


def _limit(job: SlurmJob, record: JobRecord) -> tuple[tuple[str, str], ...]:
    """A shorter time limit where the owner says how long the job may run in all: each run begins Slurm's own anew.
    Never a longer one."""
    whole_s = read(job.comment)[0].max_time_s
    left_s = None if whole_s is None else max(60.0, whole_s - record.ran_in_all_s)
    if left_s is None or (job.time_limit_s is not None and job.time_limit_s <= left_s):
        return ()
    return (("TimeLimit", str(math.ceil(left_s / 60))),)


def _after(seconds: float) -> str:
    return "now" if seconds <= 0 else f"now+{math.ceil(seconds)}"


def _shape(job: SlurmJob, record: JobRecord, placement: Placement, shards: int) -> tuple[tuple[str, str], ...]:
    """GPU, node, task and CPU counts for ``placement``; empty where the job has that shape already."""
    if job.shards:
        return _part(job, shards or record.shards)
    nodes = len(placement.nodes)
    return _resize(job, record, nodes, placement.workers // nodes)


def _owner_shape(job: SlurmJob, record: JobRecord) -> tuple[tuple[str, str], ...]:
    if job.shards:
        return _part(job, record.shards)
    if record.workers % record.nodes:  # no equal share is as many: it keeps what it was given, as its comment allows
        return ()
    return _resize(job, record, record.nodes, record.workers // record.nodes)


def _part(job: SlurmJob, shards: int) -> tuple[tuple[str, str], ...]:
    """Nodes, tasks and CPUs of a job with a part of a GPU stay what they are."""
    return () if shards in (0, job.shards) else (("TresPerNode", f"gres:shard:{shards}{_other_gres(job)}"),)


def _other_gres(job: SlurmJob) -> str:
    """What stands in the same field as the GPUs, and would be lost if it was not told again."""
    return "".join(f",gres:{name}:{count}" for name, count in job.asks.gres)


def _resize(job: SlurmJob, record: JobRecord, nodes: int, each: int) -> tuple[tuple[str, str], ...]:
    there = job.num_nodes == nodes and job.max_nodes == nodes
    if by_task(job):
        return () if there else (("NumNodes", f"{nodes}-{nodes}"),)
    request = job.gpus[0] if job.gpus else None
    same_for = request.per if request is not None and request.count == each else None
    if there and (same_for == "node" or (same_for == "job" and nodes == 1)):
        return ()
    per_gpu = record.tasks == record.workers > record.nodes
    tasks = nodes * each if per_gpu else record.tasks if nodes == record.nodes else nodes
    # a new number of GPUs makes Slurm forget how many CPUs belong to each
    by_gpu = max(tasks, nodes * each * job.cpus_per_gpu)
    cpus = by_gpu if job.cpus_per_gpu else tasks * max(1, record.cpus // record.tasks)
    cleared = (("TresPerJob", ""),) if request is not None and request.per == "job" else ()
    return (
        *cleared,
        ("TresPerNode", f"gres:gpu:{each}{_other_gres(job)}"),
        ("NumNodes", f"{nodes}-{nodes}"),
        ("NumTasks", str(tasks)),
        ("NumCPUs", str(cpus)),
    )
