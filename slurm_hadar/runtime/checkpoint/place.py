"""Where a job's checkpoints stand, and what its workload is, by the environment that it runs in."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from slurm_hadar import messages
from slurm_hadar.joblog import say
from slurm_hadar.runtime.checkpoint.store import Store
from slurm_hadar.runtime.launch import own

__all__ = ["store_here", "workload_here"]


def store_here(directory: str | Path | None, name: str | None, keep: int) -> Store | None:
    """The job's own checkpoints by restart count; those of a directory that was named by order of starting. A trial of
    ``hadar tune`` has its own in any case: trials with one directory would go on from each other.

    None where nothing is there to save for: outside Slurm, with no ``directory``. Raises CheckpointError where the
    job's directory is not its own.
    """
    environ = os.environ
    below = name or ""
    if directory is not None and messages.TRIAL not in environ:
        return Store(Path(directory) / below, job="any", generation=None, keep=keep)
    home = _home(environ)
    if home is None:
        return None
    if directory is not None and environ.get("RANK", "0") == "0":
        say(f"directory={directory} would be all trials'; this one has its checkpoints in {home}")
    job = messages.canonical_job_id(environ) or "none"
    generation = messages.restart_count(environ)
    checkpoints = home / messages.CHECKPOINTS_DIR
    if (number := environ.get(messages.COMMAND, "1")) != "1":
        checkpoints /= f"command-{number}"
    return Store(checkpoints / below, job=job, generation=generation, keep=keep, token=own.token(home), home=home)


def _home(environ: Mapping[str, str]) -> Path | None:
    """The job's directory: as ``hadar-srun`` or the user says, else as ``hadar-srun`` would choose it."""
    directory, job = messages.job_dir(environ), messages.canonical_job_id(environ)
    if directory is None or job is None or messages.given_dir(environ) is not None:
        return directory
    found, why = own.place(directory.parent.parent, job, environ.get("SLURM_CLUSTER_NAME", ""))
    if why is not None and environ.get("SLURM_PROCID", "0") == "0":
        say(why)
    return found


def workload_here(model_name: str | None, batch: int | None) -> tuple[str | None, int | None]:
    """Name and batch as given, or else as the job's comment says."""
    text = os.environ.get("HADAR_BATCH", "")
    return model_name or os.environ.get("HADAR_MODEL"), batch or (int(text) if text.isdecimal() else None)
