"""``hadar run`` beside a private cluster, started as an administrator would start it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from slurm_hadar.errors import ClusterError

__all__ = ["controller_beside", "hold_new_jobs"]

_PATIENCE_S = 60.0


@contextmanager
def controller_beside(
    environ: Mapping[str, str], state: Path, *options: str, settings: tuple[str, ...] = ()
) -> Iterator[subprocess.Popen[bytes]]:
    """The controller's process, in mode act, for as long as the block lasts.

    Parameters
    ----------
    environ: that of a shell on the cluster (:attr:`PrivateCluster.env`).
    state: folder for its journal and its ``controller.log``.
    options: of ``hadar run``. settings: ``section.key=value``, one ``--set`` each.

    Raises ClusterError with the last lines of the log if it ended by itself or did not end well.
    """
    chosen = [word for s in (*settings, f"controller.state_dir={state}") for word in ("--set", s)]
    command = [sys.executable, "-P", "-m", "slurm_hadar.cli.main", "run", "--mode", "act", *options, *chosen]
    path = state / "controller.log"
    with path.open("wb") as log:
        process = subprocess.Popen(command, env=dict(environ), stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.terminate()
            process.wait(_PATIENCE_S)
    if process.returncode != 0:
        raise ClusterError(f"the controller ended with {process.returncode}: {_tail(path)}")


def hold_new_jobs(environ: Mapping[str, str], lease_s: int) -> None:
    """Let the controller see new jobs before Slurm starts them, for ``lease_s`` seconds, as an administrator would: by
    ``LEASE_S`` in job_submit.lua, which slurmctld reads anew."""
    script = Path(environ["SLURM_CONF"]).parent / "job_submit.lua"
    text = script.read_text()
    if "LEASE_S = 0\n" not in text:
        raise ClusterError(f"{script} has no line LEASE_S = 0 that could be changed")
    script.write_text(text.replace("LEASE_S = 0\n", f"LEASE_S = {lease_s}\n", 1))
    later = time.time() + 2  # slurmctld compares whole seconds, and may have read the script in this one
    os.utime(script, (later, later))


def _tail(log: Path) -> str:
    return " / ".join(log.read_text(errors="replace").splitlines()[-5:])
