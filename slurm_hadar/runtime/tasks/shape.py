"""How many tasks a step has: as many as plain srun would start in the job as it is now. Standard library only.

sbatch freezes the numbers of the submission into the environment. They are wrong once a waiting job was given another
shape, so they are dropped, and srun is told the numbers of the allocation that the job has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, MutableMapping

from slurm_hadar.joblog import say
from slurm_hadar.runtime.launch.srun_options import values

__all__ = ["clean", "of_workers", "settle"]

# frozen at submission, and wrong once the job was given another shape
STALE = (
    "SLURM_GPUS",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_SOCKET",
    "SLURM_GPUS_PER_TASK",
    "SLURM_NTASKS",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NPROCS",
    "SLURM_TRES_PER_TASK",
)
# which of its GPUs a task sees; true of as many tasks as the job has
_BINDS = ("SLURM_GPUS_PER_TASK", "SLURM_NTASKS_PER_GPU")
_TASKS = ("ntasks", "ntasks-per-node", "ntasks-per-gpu", "het-group", "pack-group")
# what starts a worker for each GPU of its node
_LAUNCHERS = re.compile(r"\btorchrun\b|\btorch\.distributed\.(?:run|launch)\b|\baccelerate launch\b|\bdeepspeed\b")
_GROUP = re.compile(r"([1-9][0-9]{0,6})(?:\(x([1-9][0-9]{0,6})\))?")


def settle(options: list[str], environ: MutableMapping[str, str], shown: int | None) -> list[str]:
    """The options about nodes and tasks that srun is to get beside the user's; what is stale leaves ``environ``.

    Parameters
    ----------
    options: srun's, as the user gave them; whatever they say of tasks stands.
    environ: of the batch script. ``SLURM_JOB_NUM_NODES``, ``SLURM_TASKS_PER_NODE``, the node list and the GPUs on the
        node are Slurm's own words about this run, and right.
    shown: the job's tasks as Slurm shows them now; None if it does not tell.
    """
    given = dict(values(options))
    nodes = _number(environ.get("SLURM_JOB_NUM_NODES") or environ.get("SLURM_NNODES"))
    tasks = None if nodes is None else _tasks(environ, nodes, shown)
    kept: dict[str, str] = {}
    found: list[str] = []
    if nodes is not None and not any(name in given for name in _TASKS):
        if "nodes" not in given:
            found = ["-N", str(nodes), "-n", str(tasks or nodes)]
            kept = _binds(environ, nodes, tasks) if tasks is not None else {}
        elif tasks is not None and (chosen := _number(given["nodes"])) is not None and tasks * chosen % nodes == 0:
            found = ["-n", str(tasks * chosen // nodes)]
    clean(environ)
    environ.update(kept)
    return found


def clean(environ: MutableMapping[str, str]) -> None:
    """Drop what is stale; ``SLURM_JOB_NUM_NODES``, node list and the GPUs on the node are Slurm's own and right."""
    for name in STALE:
        environ.pop(name, None)


def of_workers(options: list[str], command: list[str]) -> str | None:
    """What to say where each of several tasks on a node would start the workers of all its GPUs; None if that is not
    so. ``options``: srun's, with those of :func:`settle`."""
    given = dict(values(options))
    nodes, tasks = _number(given.get("nodes")), _number(given.get("ntasks"))
    launcher = _LAUNCHERS.search(" ".join(command))
    if launcher is None or nodes is None or tasks is None or tasks <= nodes:
        return None
    return (
        f"starts {tasks} times {launcher[0]}, as srun does, since the job asks for {tasks} tasks on {nodes} "
        f"node{'s'[: nodes > 1]}; for one on each node: hadar-srun --ntasks-per-node=1 -- ..."
    )


def _tasks(environ: Mapping[str, str], nodes: int, shown: int | None) -> int | None:
    """The tasks of the job as it is now; None where nobody asked for any: srun then starts one on each node.

    That somebody did is known by ``SLURM_NTASKS``. ``SLURM_TASKS_PER_NODE`` counts CPUs in a job that has only
    inherited it from the one that has submitted it, and what Slurm shows counts the whole job where this is called in
    a step of it: the smaller number is right.
    """
    asked = _number(environ.get("SLURM_NTASKS") or environ.get("SLURM_NPROCS"))
    if asked is None:
        return None
    counts = [count for count in (_sum(environ.get("SLURM_TASKS_PER_NODE", "")), shown) if count]
    now = min(counts, default=asked)
    each = _number(environ.get("SLURM_NTASKS_PER_NODE")) or 1
    unmoved = now == each * nodes and now - each < asked < now  # of 5 tasks, 2 on each node, Slurm counts 6
    return asked if unmoved else now


def _sum(text: str) -> int | None:
    """The tasks in ``2(x3),1``; None for anything else."""
    groups = [_GROUP.fullmatch(group) for group in text.split(",")]
    known = [int(group[1]) * int(group[2] or 1) for group in groups if group is not None]
    return sum(known) if len(known) == len(groups) else None


def _binds(environ: Mapping[str, str], nodes: int, tasks: int) -> dict[str, str]:
    """What says which GPUs each task sees, as long as it is true. A job with one GPU on each node that asked for one
    task per GPU looks like one with a task per node, and has that when it is given more GPUs; with the variable srun
    would refuse."""
    kept = {name: environ[name] for name in _BINDS if environ.get(name)}
    gpus = _number(environ.get("SLURM_GPUS_ON_NODE"))
    if "SLURM_NTASKS_PER_GPU" in kept and tasks == nodes and gpus is not None and gpus > 1:
        say(
            f"one task on each node, though --ntasks-per-gpu was asked for and there are {gpus} GPUs on the first: "
            "Slurm's queue does not show that option, so a job with one GPU on each node is taken for one with one "
            "task there; say --ntasks-per-node=1 and start a worker per GPU by torchrun"
        )
        del kept["SLURM_NTASKS_PER_GPU"]
    return kept


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) <= 7 and int(text) else None
