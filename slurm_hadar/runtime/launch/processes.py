"""What the launcher and the agent both do about the process that they have started and stand in for."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

__all__ = ["die_with", "end_like", "slurm_signals_everyone"]

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with(parent: int) -> None:
    """To be called in a child: it is killed where its parent is killed outright, and could not end it."""
    import ctypes  # in the child alone

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before that
        os._exit(128 + signal.SIGKILL)


def end_like(status: int) -> int:
    """Exit as the child did; die of the same signal if it died of one, so that Slurm shows what it always shows."""
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)
    return 128 - code


def slurm_signals_everyone() -> bool:
    """Whether Slurm's signals reach the child without being passed on: true only of ``proctrack/linuxproc``.

    ``proctrack/cgroup``, the default, signals the process that Slurm has started; ``proctrack/pgid`` its process group.
    """
    try:
        conf = Path(os.environ.get("SLURM_CONF", "/etc/slurm/slurm.conf")).read_text(errors="replace")
    except OSError:
        return False
    lines = (line.split("#")[0].replace(" ", "").lower() for line in conf.splitlines())
    return "proctracktype=proctrack/linuxproc" in lines
