"""srun as a child: who is told to end lets the step save first.

At a SIGTERM (``timeout``, ``kill``), a SIGHUP or a second Ctrl-C srun kills its tasks at once. Slurm itself tells them
by a SIGTERM, and so does this; other signals are srun's, and so is one of these that comes again. srun has a session of
its own, since ``timeout`` and terminals signal whole process groups.
"""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import time
from collections.abc import Mapping

from slurm_hadar.joblog import say
from slurm_hadar.procstat import stat_of
from slurm_hadar.runtime.launch.processes import end_like, slurm_signals_everyone, start
from slurm_hadar.runtime.launch.slurmctld import ask

__all__ = ["become", "run"]

_ENDS = (signal.SIGTERM, signal.SIGHUP)
_OTHERS = (signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
_SOON_S = 1.0  # so long srun waits for a second interrupt; and timeout signals its command, then its whole group
_STEP = re.compile(r"StepId=(\S+) .*SrunHost:Pid=([^.\s]+)\S*:(\d+)")


def become(srun: str, arguments: list[str], environ: Mapping[str, str]) -> int:
    """Returns only if srun cannot be run."""
    try:
        os.execve(srun, [srun, *arguments], dict(environ))
    except OSError as error:
        say(f"cannot run {srun}: {error.strerror}")
    return 126


def run(srun: str, arguments: list[str], environ: Mapping[str, str], job: str) -> int:
    """Run srun in this job; returns its exit code, or dies of the signal that srun has died of."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    heeded = (number for number in (*_ENDS, *_OTHERS) if signal.getsignal(number) is not signal.SIG_IGN)
    watched = {signal.SIGCHLD, *heeded}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, watched)

    def become_srun() -> int:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return become(srun, arguments, environ)

    return end_like(_Srun(start(become_srun), job).wait(watched))


class _Srun:
    """srun as it runs, and what it is told."""

    def __init__(self, pid: int, job: str) -> None:
        self._pid, self._job = pid, job
        self._told_s = self._interrupted_s = -math.inf
        self._everyone_is_signalled = slurm_signals_everyone()

    def wait(self, watched: set[signal.Signals]) -> int:
        """Until it has ended, with this wait status."""
        while True:
            got = signal.sigwaitinfo(watched)
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                return status
            if got.si_signo == signal.SIGCHLD or (self._everyone_is_signalled and _is_slurms(got.si_pid)):
                continue
            if not (self._is_end(got.si_signo) and self._lets_save(signal.Signals(got.si_signo).name)):
                os.kill(self._pid, got.si_signo)

    def _is_end(self, number: int) -> bool:
        """Whether srun would kill its tasks; at an interrupt it does so if there was one just before."""
        if number != signal.SIGINT:
            return number in _ENDS
        before, self._interrupted_s = self._interrupted_s, time.monotonic()
        return self._interrupted_s - before < _SOON_S

    def _lets_save(self, name: str) -> bool:
        """Whether the step is told to end instead; once."""
        if self._told_s > -math.inf:
            return time.monotonic() - self._told_s < _SOON_S
        step = _step_of(self._pid, self._job)
        if step is None or ask(["scancel", "--signal=TERM", step]) is None:
            return False
        say(f"told to end ({name}): step {step} may save and end; told again, it is ended at once")
        self._told_s = time.monotonic()
        return True


def _step_of(pid: int, job: str) -> str | None:
    here = socket.gethostname().partition(".")[0]
    for step, host, number in _STEP.findall(ask(["scontrol", "--oneliner", "show", "step", job]) or ""):
        if (host, int(number)) == (here, pid):
            return str(step)
    return None


def _is_slurms(sender: int) -> bool:
    """Whether Slurm has sent a signal, to this process and to srun."""
    try:
        return stat_of(sender).name.startswith("slurmstepd")
    except OSError:
        return False
