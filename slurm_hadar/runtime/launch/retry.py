"""``retry=2`` in a job's comment: a job whose command fails by itself goes back into the queue, so many times at most.

The job asks for it itself, with its owner's right, while it still runs: so it never shows as failed in between, and it
works without a controller. Each failure leaves a file in the job's own directory, which counts them. Not retried: what
was ended from outside (cancelled, out of time, moved, killed for want of memory), and what ended well.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

from slurm_hadar import messages
from slurm_hadar.errors import CheckpointError
from slurm_hadar.joblog import say
from slurm_hadar.runtime.launch import own
from slurm_hadar.runtime.launch.slurmctld import run_plainly

__all__ = ["claim", "failure_before", "put_back"]

CALL_S = 20.0
_HEAR_S = 1.0  # an end from outside may reach the command before it reaches the agent
_STOP_S = 60.0
_FROM_OUTSIDE = {128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)}


def claim(code: int, environ: Mapping[str, str] = os.environ) -> int:
    """Which retry comes now that the command has ended with ``code`` (as a shell shows it); 0 if none does.

    SIGTERM must be blocked. Of several tasks that fail in one run one gets a number.
    """
    most = environ.get("HADAR_RETRY", "")
    if not code or code in _FROM_OUTSIDE or not most.isdecimal():
        return 0
    if signal.sigtimedwait({signal.SIGTERM}, _HEAR_S) is not None:
        return 0
    fault, states = _slurm("squeue", "-h", "-t", "all", "-o", "%T", "-j", _job(environ))
    if fault or {*states.split()} != {"RUNNING"}:  # of a heterogeneous job one for each part
        return 0
    directory, run = Path(environ["HADAR_JOB_DIR"]), messages.restart_count(environ)
    try:
        own.make(directory)
        number = sum(1 for _ in directory.glob(f"failed-{_job(environ)}-*")) + 1
        _note(_failure_file(directory, environ, run), code)
    except FileExistsError:
        return 0
    except (OSError, CheckpointError) as error:
        say(f"not retried, since failures cannot be counted: {error}")
        return 0
    if number > int(most):
        say(f"the command failed (exit code {code}), and retry={most} in the job's comment is used up")
        return 0
    say(
        f"the command failed (exit code {code}); retry {number} of {most}: the job goes back into the queue, and on "
        "from its last checkpoint"
    )
    return number


def _note(file: Path, code: int) -> None:
    """Raises FileExistsError if another task has; any other OSError if it cannot be, and then nothing is left."""
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(descriptor, b"%d\n" % code)
    except OSError:
        file.unlink()
        raise
    finally:
        os.close(descriptor)


def put_back(environ: Mapping[str, str] = os.environ) -> None:
    """Ask Slurm, and wait to be ended; returns where it does not come to that."""
    code, said = _slurm("scontrol", "requeue", "incomplete", _job(environ))
    if code:
        say(f"not retried: Slurm does not put the job back: {said}")
    else:
        signal.sigtimedwait({signal.SIGTERM}, _STOP_S)


def failure_before(environ: Mapping[str, str]) -> int:
    """The exit code by which the run before failed; 0 if it did not, or was not retried."""
    file = _failure_file(Path(environ["HADAR_JOB_DIR"]), environ, messages.restart_count(environ) - 1)
    try:
        text = file.read_text()[:10].strip()
    except (OSError, ValueError):
        return 0
    return int(text) if text.isdecimal() else 0


def _failure_file(directory: Path, environ: Mapping[str, str], run: int) -> Path:
    return directory / f"failed-{_job(environ)}-{run}"


def _job(environ: Mapping[str, str]) -> str:
    return environ.get("HADAR_JOB_ID") or messages.canonical_job_id(environ) or ""


def _slurm(*command: str) -> tuple[int, str]:
    try:
        done = run_plainly(command, CALL_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return 1, str(error)
    return done.returncode, (done.stdout if not done.returncode else done.stderr).strip()
