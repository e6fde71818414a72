"""What makes a job movable, as options of sbatch, and the call itself: for ``hadar submit`` and the Python API."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm_hadar import comment
from slurm_hadar.errors import CommentError, SlurmError

__all__ = ["as_options", "given", "sbatch", "said"]


def sbatch(options: Sequence[str], command: Sequence[str], name: str) -> str:
    """Submit ``command``, run by hadar-srun, and return the job's id; "" where the options say not to submit it.

    ``options`` are sbatch's own; what a movable job needs is added where they say nothing about it, and ``name`` where
    they give none. Raises SlurmError with sbatch's own words; what else it says is passed on to stderr.
    """
    program = shutil.which("sbatch")
    if program is None:
        raise SlurmError("sbatch is not on PATH: jobs are submitted where Slurm's commands are installed")
    words = [program, "--parsable", *options, *_missing(options, name), f"--wrap={_wrapped(command)}"]
    done = subprocess.run(words, capture_output=True, text=True, errors="replace")
    job = done.stdout.strip().partition(";")[0]
    if done.returncode and job:
        raise SlurmError(f"job {job} was submitted, waited for (--wait), and ended with exit code {done.returncode}")
    if done.returncode:
        lines = (line.removeprefix("sbatch: ").removeprefix("error: ") for line in done.stderr.splitlines() if line)
        why = [line.removeprefix("hadar: ") for line in lines]  # the plug-in's own words
        raise SlurmError("; ".join(why) or f"sbatch ended with {done.returncode} and gave no reason")
    sys.stderr.write(done.stderr)
    return job


def said(options: Sequence[str]) -> comment.JobComment:
    """What the comment among the options says. Raises CommentError if it cannot be read, or is not for the
    scheduler."""
    found = comment.JobComment()
    for number, word in enumerate(options):
        name, equals, text = word.partition("=")
        if name != "--comment":
            continue
        text = text if equals else next(iter(options[number + 1 : number + 2]), "")
        if not comment.is_ours(text):
            raise CommentError(
                f"--comment={text} is not for the scheduler; begin it with {comment.PREFIX}, or use sbatch"
            )
        found = comment.parse(text)
    return found


def as_options(settings: Mapping[str, Any]) -> list[str]:
    """``{"cpus_per_task": 4, "exclusive": True}`` as sbatch's long options; None and False are left out."""
    return [
        f"--{name.replace('_', '-')}" + ("" if value is True else f"={value}")
        for name, value in settings.items()
        if value is not None and value is not False
    ]


def given(options: Sequence[str], name: str) -> bool:
    """Whether a long option is among them."""
    return any(word == f"--{name}" or word.startswith(f"--{name}=") for word in options)


def _missing(options: Sequence[str], name: str) -> list[str]:
    """What a movable job needs and its owner has not said anything about."""
    added = []
    if not given(options, "requeue") and not given(options, "no-requeue"):
        added.append("--requeue")
    if not given(options, "open-mode"):
        added.append("--open-mode=append")
    if not given(options, "comment"):
        added.append(f"--comment={comment.PREFIX}")
    if not given(options, "job-name") and not any(word.startswith("-J") for word in options):
        added.append(f"--job-name={name}")  # sbatch would call it wrap
    return added


def _wrapped(command: Sequence[str]) -> str:
    """The batch script's only line. The wrapper that lies beside this Python, or this command, belongs to it."""
    places = (Path(sys.executable).parent, Path(sys.argv[0]).resolve().parent)
    beside = (str(place / "hadar-srun") for place in places if os.access(place / "hadar-srun", os.X_OK))
    return f"{shlex.quote(next(beside, 'hadar-srun'))} -- {shlex.join(command)}"
