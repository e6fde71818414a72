"""A task of a forked job's array is one of its copies, and has to know where they meet before it starts."""

from __future__ import annotations

import os
import re
from collections.abc import MutableMapping
from pathlib import Path

from slurm_hadar import comment, messages
from slurm_hadar.errors import CheckpointError, CommentError, reason_of
from slurm_hadar.runtime.launch.directory import first_submitted, note_owner
from slurm_hadar.runtime.launch.slurmctld import Ask, JobFacts, array_submissions, ask_patiently

__all__ = ["prepare"]


def prepare(environ: MutableMapping[str, str], facts: JobFacts | None, ask: Ask = ask_patiently) -> str | None:
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
    if parsed.fork is None:
        return None
    try:
        _use_fork(parsed, environ, ask)
    except (OSError, CheckpointError) as error:
        return f"cannot tell the copies of this job from an earlier job's: {reason_of(error)}"
    return None


def _use_fork(parsed: comment.JobComment, environ: MutableMapping[str, str], ask: Ask) -> None:
    """The directory's name holds the time of the first submission, since ids begin anew on a new cluster."""
    directory = Path(environ["HADAR_JOB_DIR"])
    given = messages.given_dir(os.environ) is not None  # then it is the user who keeps jobs apart
    submitted = "own" if given else _submitted(directory, environ, ask)
    parent = directory.with_name(environ["SLURM_ARRAY_JOB_ID"])
    environ["HADAR_FORK_DIR"] = str(parent / f"fork-{re.sub('[^0-9A-Za-z]', '', submitted)}")
    environ["HADAR_FORK_COPY"] = environ["SLURM_ARRAY_TASK_ID"]
    if parsed.period_steps is not None or parsed.period_s is not None:
        environ["HADAR_PERIOD"] = str(parsed.period_steps) if parsed.period_steps else f"{parsed.period_s:g}s"


def _submitted(directory: Path, environ: MutableMapping[str, str], ask: Ask) -> str:
    """When the array was submitted first. Slurm forgets that when it restarts a task, so it is taken from what the
    task's first run has noted. One that was restarted before its script came so far goes by the others: by those that
    Slurm has not restarted, by what they have noted, and if nobody has, by the earliest that Slurm tells of any."""
    if noted := first_submitted(directory):
        return noted
    array = environ["SLURM_ARRAY_JOB_ID"]
    known = array_submissions(array, ask)
    first = [submitted for restarts, submitted in known if restarts == 0]
    copies = (other for other in directory.parent.glob(f"{array}_*") if other.name[len(array) + 1 :].isdecimal())
    others = [noted for other in copies if (noted := first_submitted(other))]
    if first:
        submitted = min(first)
    elif others:
        submitted = max(others)  # older ones are an earlier job's
    elif known:
        submitted = min(submitted for _, submitted in known)
    else:
        raise CheckpointError(f"squeue tells nothing of job array {array}")
    note_owner(environ, submitted)
    return submitted
