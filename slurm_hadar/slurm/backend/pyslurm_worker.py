"""A process of its own that reads the queue through pyslurm and prints what it reads as JSON lines.

Apart, because pyslurm holds Python's global lock during calls (up to 10 s when slurmctld is away), because libslurm
may end the whole process on a broken configuration, and because pyslurm is GPL-2.0 and this package is not: nothing
else imports it. Started as ``python -m slurm_hadar.slurm.backend.pyslurm_worker``; each line on stdin is answered by
one line on stdout.
"""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["READY", "main"]

READY = "pyslurm ready"


def main() -> int:
    """Answer requests until stdin ends."""
    import pyslurm  # only ever in this process

    library = tuple(pyslurm.slurm_api_version()[:2])
    wanted = tuple(int(p) for p in pyslurm.__version__.split(".")[:2])
    if library != wanted:
        print(
            json.dumps({"error": f"pyslurm {pyslurm.__version__} was built for another Slurm than the {library} here"})
        )
        return 1
    pyslurm.Nodes.load()  # proves that a controller answers this library
    print(json.dumps({"ready": READY, "pyslurm": pyslurm.__version__}), flush=True)
    for _ in sys.stdin:
        try:
            answer = _answer(pyslurm)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # another release's API: say so
            answer = {"error": f"pyslurm {pyslurm.__version__} is not understood: {type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    return 0


def _answer(pyslurm: Any) -> dict[str, Any]:
    try:
        return {"jobs": [_job(j) for j in pyslurm.Jobs.load().values()]}
    except pyslurm.RPCError as error:
        return {"error": str(error).splitlines()[0]}


def _job(job: Any) -> dict[str, Any]:
    return {
        "id": job.id, "array_id": job.array_id, "array_task": job.array_task_id, "waiting": job.array_tasks_waiting,
        "het_id": job.heterogeneous_id, "het_offset": job.heterogeneous_offset, "state": str(job.state),
        "reason": job.state_reason, "user": job.user_name, "account": _text(job, "account"), "qos": job.qos,
        "partition": job.partition, "nodes": job.allocated_nodes, "req_nodes": job.required_nodes,
        "features": _joined(job.constraints), "gres": dict(job.gres_per_node or {}), "num_nodes": job.num_nodes,
        "max_nodes": job.max_nodes, "num_tasks": job.ntasks, "num_cpus": job.cpus, "time_limit": job.time_limit,
        "submit": job.submit_time, "eligible": job.eligible_time, "start": job.start_time, "end": job.end_time,
        "requeue": bool(job.is_requeueable), "restarts": job.requeue_count, "batch": bool(job.is_batch_job),
        "priority": job.priority, "dependency": _dependency(job.dependencies),
        "work_dir": _text(job, "working_directory"), "name": _text(job, "name"), "comment": _text(job, "comment"),
        "uid": job.user_id, "memory": _memory(job), "sharing": job.resource_sharing, "licenses": _joined(job.licenses),
        "reservation": job.reservation, "exc_nodes": _joined(job.excluded_nodes), "throttle": job.array_tasks_parallel,
        "deadline": getattr(job, "deadline", None), "sched_nodes": _joined(job.scheduled_nodes),
        "by_gpu": getattr(job, "cpus_per_task", 1) is None,  # and then how many for each GPU it may not be able to read
    }  # fmt: skip


def _memory(job: Any) -> int | None:
    """MiB over all nodes of the job, if it says how much."""
    return job.memory if isinstance(job.memory, int) else None


def _text(job: Any, field: str) -> Any:
    """What a user typed. Bytes that are no UTF-8 cost this field, not the reading of the whole queue."""
    try:
        return getattr(job, field)
    except UnicodeDecodeError:
        return "\ufffd"


def _joined(value: Any) -> str:
    return value if isinstance(value, str) else ",".join(str(v) for v in value or ())


def _dependency(value: Any) -> str:
    """Slurm's own text for it; pyslurm has {kind: [job, ...], "singleton": bool, "satisfy": "all" or "any"}."""
    if not isinstance(value, dict):
        return _joined(value)
    parts = [":".join([kind, *map(str, jobs)]) for kind, jobs in value.items() if isinstance(jobs, list) and jobs]
    parts += ["singleton"] if value.get("singleton") is True else []
    return ("?" if value.get("satisfy") == "any" else ",").join(parts)


if __name__ == "__main__":
    sys.exit(main())
