"""A step within a step: srun (or hadar-srun) started by what hadar-srun has started, or the other way round.

Slurm lets the inner one wait until the outer one has ended, which waits for it, and says "Requested nodes are busy".
Only where one of them says ``--overlap`` do both run. So its owner is told in one line what it is, and what to do.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_hadar.procstat import stat_of

__all__ = ["around", "twice", "watched_path"]

_SRUN = ("srun", "hadar-srun")
_LEAST_SPECIAL = 1 << 31  # numbers of steps that Slurm makes itself: batch, interactive, extern
_INSIDE = (
    "hadar: this srun is started inside hadar-srun: a step within a step waits for ever for the one around it. Start "
    "it from the batch script itself, or let both share the GPUs: hadar-srun --overlap -- ..."
)


def twice(options: Sequence[str], command: Sequence[str]) -> str | None:
    """Why ``hadar-srun srun ...`` is not started; None if the command is something else, or may share."""
    if Path(command[0]).name not in _SRUN or "--overlap" in (*options, *command):
        return None
    rest = shlex.join(command[1:]) or "command"
    return (
        f"hadar-srun is srun already, and {Path(command[0]).name} inside it would wait for ever for the step around "
        f"it; leave it out: hadar-srun -- {rest}"
    )


def around(options: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """What to know where hadar-srun itself runs in a step of srun; None where it does not, or may share."""
    step = environ.get("SLURM_STEP_ID", "")
    if not step.isdecimal() or int(step) >= _LEAST_SPECIAL or "--overlap" in options or environ.get("SLURM_OVERLAP"):
        return None
    if _in_batch_script():  # which was submitted from a step, as from a shell of srun --pty, and has its variables
        return None
    return (
        f"hadar-srun is started inside step {environ.get('SLURM_JOB_ID', '?')}.{step} of an srun: unless that one says "
        "--overlap, the step that hadar-srun starts waits for it for ever. Leave the srun before hadar-srun out"
    )


def _in_batch_script() -> bool:
    """Whether slurmstepd has started this as part of a batch script, as the nearest one above says; False where that
    cannot be seen."""
    pid = os.getpid()
    with contextlib.suppress(OSError):
        while pid > 1:
            title = Path(f"/proc/{pid}/cmdline").read_bytes()
            if title.startswith(b"slurmstepd: ["):
                return title.partition(b"]")[0].endswith(b".batch")
            pid = stat_of(pid).parent
    return False


def watched_path(directory: Path, environ: Mapping[str, str]) -> str | None:
    """A PATH on which srun says a line before it does what it does anyway; made in ``directory``, which is this task's.
    None where that cannot be, or need not: without one (``--export=NONE``) programs look in places of their own."""
    srun = shutil.which("srun", path=environ.get("PATH"))
    if srun is None or environ.get("HADAR_STEP_SHARED") or "PATH" not in environ:
        return None
    shim, job = directory / "bin" / "srun", shlex.quote(environ.get("SLURM_JOB_ID", ""))
    try:
        shim.parent.mkdir()
        shim.write_text(
            '#!/bin/sh\ncase " $* ${SLURM_OVERLAP:+--overlap} " in *" --overlap "*) ;; '
            # a job that is submitted from here inherits the path
            f'*) [ "$SLURM_JOB_ID" != {job} ] || echo {shlex.quote(_INSIDE)} >&2 ;; esac\n'
            f'exec {shlex.quote(srun)} "$@"\n'
        )
        shim.chmod(0o700)
    except OSError:
        return None
    return f"{shim.parent}{os.pathsep}{environ['PATH']}" if os.access(shim, os.X_OK) else None
