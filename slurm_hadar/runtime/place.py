"""Where a job's checkpoints stand, and what its workload is, by the environment that it runs in."""

from __future__ import annotations

import os
from pathlib import Path

from slurm_hadar import messages
from slurm_hadar.runtime.checkpoint import Store

__all__ = ["store_here", "workload_here"]


def store_here(directory: str | Path | None, name: str | None, keep: int) -> Store | None:
    """The job's own checkpoints by restart count; those of a directory that was named by order of starting.

    None where nothing is there to save for: outside Slurm, with no ``directory``.
    """
    environ = os.environ
    below = name or ""
    if directory is not None:
        return Store(Path(directory) / below, job="any", generation=None, keep=keep)
    own = messages.job_dir(environ, Path.cwd())
    if own is None:
        return None
    job = messages.canonical_job_id(environ) or "none"
    generation = messages.restart_count(environ)
    return Store(own / messages.CHECKPOINTS_DIR / below, job=job, generation=generation, keep=keep)


def workload_here(model_name: str | None, batch: int | None) -> tuple[str | None, int | None]:
    """Name and batch as given, or else as the job's comment says."""
    text = os.environ.get("HADAR_BATCH", "")
    return model_name or os.environ.get("HADAR_MODEL"), batch or (int(text) if text.isdecimal() else None)
