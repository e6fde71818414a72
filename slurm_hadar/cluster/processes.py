"""Finding and ending the processes of one private cluster, whatever became of whoever started them.

Nothing is trusted to have been written down: a starter may have been killed between starting a daemon and noting it.
So a process belongs to a cluster by what the kernel says of it:

* daemons that were started by us carry our mark in their environment;
* those that somebody has started again by hand have the cluster's slurm.conf in theirs, or are told it;
* slurmstepd and the tasks below it carry the cluster's SLURM_CONF (slurmstepd sets it for every task, even under
  ``--export=NONE``) and are slurmstepd itself or have SLURMD_NODENAME, which no shell outside a job has: the user's own
  shell, which merely exported SLURM_CONF, is left alone;
* and so do all descendants of these.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_hadar.errors import ClusterError
from slurm_hadar.procstat import Stat, stat_of

__all__ = ["MARK", "Process", "alive", "of_cluster", "send", "stop_all", "wait_gone"]

MARK = "HADAR_DAEMON_OF"
_PROC = Path("/proc")
_GRACE_S, _KILL_S = 3.0, 20.0  # after SIGTERM, and after SIGKILL
# started by the daemons with an environment of their own, without our mark; and the daemons, by somebody else
_SLURM = ("slurmstepd", "slurmscriptd", "slurmctld", "slurmd", "slurmdbd")


@dataclass(frozen=True, slots=True)
class Process:
    """A process and its start time (clock ticks since boot), which together name it for good."""

    pid: int
    start_ticks: int
    parent: int
    name: str
    argv: tuple[str, ...]
    daemon: bool = False


def _stat(pid: int) -> Stat | None:
    """None where there is no such process, or a zombie."""
    try:
        stat = stat_of(pid)
    except OSError:
        return None
    return None if stat.state in "ZX" else stat


def _strings(pid: int, file: str) -> tuple[str, ...]:
    try:
        raw = (_PROC / str(pid) / file).read_bytes()
    except OSError:
        return ()  # gone meanwhile, or another user's
    return tuple(part.decode(errors="replace") for part in raw.split(b"\0") if part)


def alive(process: Process) -> bool:
    """Whether this very process still runs; a zombie does not."""
    stat = _stat(process.pid)
    return stat is not None and stat.began == process.start_ticks


def _running() -> Iterator[tuple[int, Stat]]:
    for entry in _PROC.iterdir():
        if entry.name.isdigit() and (stat := _stat(int(entry.name))):
            yield int(entry.name), stat


def of_cluster(directory: Path) -> list[Process]:
    """All processes of the cluster in ``directory``, never this process or one of its ancestors."""
    mark, conf = f"{MARK}={directory}", f"{directory}/etc/slurm.conf"
    table: dict[int, Process] = {}
    ours: set[int] = set()
    for pid, stat in _running():
        environ, argv = set(_strings(pid, "environ")), _strings(pid, "cmdline")
        daemon = mark in environ
        is_slurm = stat.name in _SLURM or any(v.startswith("SLURMD_NODENAME=") for v in environ)
        table[pid] = Process(pid, stat.began, stat.parent, stat.name, argv, daemon)
        if daemon or (is_slurm and (f"SLURM_CONF={conf}" in environ or conf in argv)):
            ours.add(pid)
    ours |= _descendants(ours, table)
    return [table[pid] for pid in sorted(ours - _self_and_ancestors(table))]


def _descendants(roots: set[int], table: dict[int, Process]) -> set[int]:
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    front = list(roots)
    while front:
        for child in children.get(front.pop(), ()):
            if child not in found:
                found.add(child)
                front.append(child)
    return found


def _self_and_ancestors(table: dict[int, Process]) -> set[int]:
    line: set[int] = set()
    pid = os.getpid()
    while pid in table and pid not in line:
        line.add(pid)
        pid = table[pid].parent
    return line


def send(process: Process, signum: signal.Signals) -> None:
    """Signal exactly this process: a descriptor is taken first, so that a reused pid is never hit."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except OSError:
        return  # gone
    try:
        if alive(process):
            signal.pidfd_send_signal(descriptor, signum)
    except (ProcessLookupError, PermissionError):
        pass  # gone between the two calls, or another user's: the caller looks at who is left
    finally:
        os.close(descriptor)


def wait_gone(processes: list[Process], deadline_s: float) -> list[Process]:
    """Wait until all are gone; returns those that are not when the time is up."""
    end = time.monotonic() + deadline_s
    while left := [p for p in processes if alive(p)]:
        if time.monotonic() >= end:
            return left
        time.sleep(0.02)
    return []


def stop_all(directory: Path) -> int:
    """End every process of the cluster: SIGTERM, and SIGKILL for what is left a little later.

    Returns how many there were. Raises ClusterError naming those that not even SIGKILL has ended in time.
    """
    seen: set[tuple[int, int]] = set()
    end = time.monotonic() + _GRACE_S
    while here := of_cluster(directory):
        # slurmstepd waits for a controller that is already gone; nothing is won by giving it time
        if time.monotonic() >= end or all(p.name == "slurmstepd" for p in here):
            break
        for process in here:
            if (process.pid, process.start_ticks) not in seen and process.name != "slurmstepd":
                send(process, signal.SIGTERM)
            seen.add((process.pid, process.start_ticks))
        time.sleep(0.03)
    end = time.monotonic() + _KILL_S
    while here := of_cluster(directory):
        if time.monotonic() >= end:
            names = ", ".join(f"{p.name} ({p.pid})" for p in here[:5])
            raise ClusterError(f"processes of the cluster in {directory} do not end: {names}; end them by hand")
        for process in here:
            seen.add((process.pid, process.start_ticks))
            send(process, signal.SIGKILL)
        wait_gone(here, 1.0)
    return len(seen)
