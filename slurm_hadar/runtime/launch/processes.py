"""What the launcher and the agent both do about the process that they start and stand in for."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

__all__ = ["end_like", "slurm_signals_everyone", "start"]


def start(become: Callable[[], int]) -> int:
    """Start a child in a session of its own, that is killed where this process is killed outright, and could not end
    it; returns its pid. ``become`` makes it another program, and returns the child's exit code where that cannot be."""
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 126
    try:
        from slurm_hadar.dependent import die_with_parent  # ctypes: in the child alone

        die_with_parent(parent)
        os.setsid()
        code = become()
    finally:
        os._exit(code)


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
