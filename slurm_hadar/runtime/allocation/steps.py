"""Job steps of ours: processes on a node of the job, that see all GPUs that the job has there and choose among them."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

from slurm_hadar.dependent import die_with_parent
from slurm_hadar.runtime.tasks.shape import clean

__all__ = ["end_step", "environment", "start_step"]

_ROOT = str(Path(__file__).resolve().parents[3])


def environment(threads: int) -> dict[str, str]:
    """This process's, without what would bind a step to the step that this may be, and with ours on Python's path."""
    environ = dict(os.environ)
    clean(environ)
    environ.setdefault("OMP_NUM_THREADS", str(max(1, threads)))
    paths = [_ROOT, *environ.get("PYTHONPATH", "").split(os.pathsep)]
    environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    return environ


def start_step(
    node: str, gpus: int, command: Sequence[str], environ: Mapping[str, str], output: IO[Any] | None = None,
    name: str = "hadar", tasks: int = 1,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """The srun of a step: ``tasks`` of the command on a node of which the job has ``gpus`` GPUs, beside whatever else
    of the job runs there. It ends with this process. ``output``: for what they print; None: as this process's."""
    dependent = partial(die_with_parent, os.getpid(), signal.SIGTERM)
    words = [
        "srun", "--overlap", "--nodes=1", f"--ntasks={tasks}", f"--nodelist={node}",
        *([f"--gres=gpu:{gpus}"] if gpus else []), "--gpu-bind=none", "--overcommit", "--mem=0",
        "--kill-on-bad-exit=1", f"--job-name={name}", "--input=none", *command,
    ]  # fmt: skip
    return subprocess.Popen(
        words, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output, process_group=0,
        preexec_fn=dependent,
    )  # fmt: skip


def end_step(step: str | None, process: subprocess.Popen[bytes]) -> None:
    """At once; ``step``: its id (JOB.STEP), None: it has not begun."""
    try:
        if step is not None:
            subprocess.Popen(["scancel", "--signal=KILL", step], stdin=subprocess.DEVNULL)
            return
    except OSError:  # no room for a process: with its srun the step ends, too
        pass
    process.kill()
