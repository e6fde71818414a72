"""A task of a forked job's array is one of its copies, and has to know where they meet before it starts."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path

from slurm_hadar import comment
from slurm_hadar.errors import CommentError
from slurm_hadar.runtime.launch.directory import OWNER_FILE, first_submitted
from slurm_hadar.runtime.launch.slurmctld import JobFacts

__all__ = ["prepare"]


def prepare(environ: MutableMapping[str, str], facts: JobFacts | None) -> str | None:
    """Tell a task of a forked job's array where its copies meet; returns why it must not start, if it must not.

    Whether a controller is about does not matter: copies that did not know of each other would each train the whole
    job. So a comment that cannot be read, and an array whose comment speaks of fork= and is wrong, end the task.
    """
    if not environ.get("SLURM_ARRAY_JOB_ID"):
        return None
    if facts is None:
        job = environ["HADAR_JOB_ID"]
        return f"squeue does not tell the comment of job {job}, so it may be a copy of a forked job; submit it again"
    if not comment.is_ours(facts.comment):
        return None
    try:
        parsed = comment.parse(facts.comment)
    except CommentError as error:
        return f"{error}; a job that is to be forked is not started so" if "fork=" in facts.comment else None
    return _use_fork(parsed, environ) if parsed.fork is not None else None


def _use_fork(parsed: comment.JobComment, environ: MutableMapping[str, str]) -> str | None:
    """The directory's name holds the time of the first submission, since ids begin anew on a new cluster. Slurm forgets
    that time when it restarts a task, so it is taken from what the task's first run has noted."""
    directory = Path(environ["HADAR_JOB_DIR"])
    given = "HADAR_JOB_DIR" in os.environ  # then it is the user who keeps jobs apart
    try:
        submitted = "own" if given else first_submitted(directory)
    except (OSError, IndexError):
        return f"cannot read {directory / OWNER_FILE}, which tells the copies of this job from an earlier job's"
    parent = directory.with_name(environ["SLURM_ARRAY_JOB_ID"])
    environ["HADAR_FORK_DIR"] = str(parent / f"fork-{re.sub('[^0-9A-Za-z]', '', submitted)}")
    environ["HADAR_FORK_COPY"] = environ["SLURM_ARRAY_TASK_ID"]
    if parsed.period_steps is not None or parsed.period_s is not None:
        environ["HADAR_PERIOD"] = str(parsed.period_steps) if parsed.period_steps else f"{parsed.period_s:g}s"
    return None
