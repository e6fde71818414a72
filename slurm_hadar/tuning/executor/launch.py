"""Starts and ends the processes of trials: forked on this machine, as job steps in an allocation."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from slurm_hadar.runtime.allocation.steps import end_step, environment, start_step
from slurm_hadar.tuning.executor.site import Site
from slurm_hadar.tuning.study.source import tree_of
from slurm_hadar.tuning.trial.wire import VARIABLE, Spec

__all__ = ["Ended", "Launcher", "LocalLauncher", "SlurmLauncher", "imports_of"]

#: A run of a trial: its number, and how often it was started before.
Run = tuple[int, int]
#: What takes long to import, and does nothing else; by the package that a study names. PyTorch loads its compiler with
#: the first optimizer.
_PRELOADED = {
    name: (name,) for name in ("numpy", "optuna", "torchvision", "lightning", "transformers", "sklearn", "pandas")
} | {
    "torch": ("torch", "torch._dynamo", "torch.distributed.checkpoint"),
    "slurm_hadar": ("slurm_hadar.runtime.training",),
}
_MODULE = ("-P", "-m")  # a file of the working directory, such as json.py, is none of Python's modules
_STEPS_END_S = 60.0  # beyond Slurm's KillWait (30 s by default)
_ROOT = str(Path(__file__).resolve().parents[3])


@dataclass(frozen=True, slots=True)
class Ended:
    """All processes of a run are over; ``code``: of the first that failed, or 0 (negative: its signal). ``whose``: what
    has ended by that code."""

    run: Run
    code: int
    whose: str = "its process"


class Launcher(Protocol):
    """What starts the processes of trials, and tells of their ends."""

    def start(self, run: Run, site: Site, specs: Sequence[Spec], log: Path) -> None:
        """Start a process for each rank on the GPUs of the site; what they print is appended to ``log``."""

    def files(self) -> Sequence[int]:
        """Descriptors that become readable when :meth:`ended` has something to tell."""

    def ended(self) -> list[Ended]:
        """What has ended since the last call."""

    def kill(self, run: Run, step: str | None) -> None:
        """End it at once; ``step``: its job step, as far as its processes have told."""

    def close(self) -> None:
        """End all."""


def imports_of(file: Path) -> set[str]:
    """The packages that a Python file imports anywhere. Raises ConfigError where it cannot be read as Python."""
    found = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@dataclass
class _Ranks:
    pids: dict[int, int | None] = field(default_factory=dict)  # code, None while it runs
    expected: int = 0
    killed: bool = False
    failed: str = ""  # why there was no process for one of them


class LocalLauncher:
    """By a zygote (:mod:`slurm_hadar.tuning.trial.zygote`); one that has died is followed by another, and with it have
    ended the trials that it had."""

    def __init__(self, imports: set[str], threads: int) -> None:
        self._modules = [module for name, modules in _PRELOADED.items() if name in imports for module in modules]
        self._environ = dict(os.environ)
        self._environ.setdefault("OMP_NUM_THREADS", str(max(1, threads)))
        paths = [_ROOT, *self._environ.get("PYTHONPATH", "").split(os.pathsep)]
        self._environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
        self._buffer = b""
        self._asked: list[Run] = []  # whose pid is not known yet
        self._runs: dict[Run, _Ranks] = {}
        self._zygote: subprocess.Popen[bytes] | None = None
        self._living()  # it imports while the study is opened

    def start(self, run: Run, site: Site, specs: Sequence[Spec], log: Path) -> None:
        """Fork a process for each rank. The output goes to ``log``."""
        assert site.node is None
        zygote = self._living()
        assert zygote.stdin is not None
        self._runs[run] = _Ranks(expected=len(specs))
        for spec in specs:
            request = {"spec": spec.text(), "environ": self._environ, "log": str(log)}
            self._asked.append(run)
            with contextlib.suppress(BrokenPipeError):  # seen at its stdout, too
                zygote.stdin.write(json.dumps(request).encode() + b"\n")
                zygote.stdin.flush()

    def _living(self) -> subprocess.Popen[bytes]:
        if self._zygote is None:
            command = [sys.executable, *_MODULE, "slurm_hadar.tuning.trial.zygote", *self._modules]
            self._zygote = subprocess.Popen(
                command, env=self._environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0
            )
            assert self._zygote.stdout is not None
            os.set_blocking(self._zygote.stdout.fileno(), False)
        return self._zygote

    def files(self) -> Sequence[int]:
        return [] if self._zygote is None or self._zygote.stdout is None else [self._zygote.stdout.fileno()]

    def ended(self) -> list[Ended]:
        """What has ended since the last call."""
        if self._zygote is None or self._zygote.stdout is None:
            return []
        try:
            data = os.read(self._zygote.stdout.fileno(), 65536)
        except BlockingIOError:
            return []
        if not data:
            return self._all_gone()
        self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            said = json.loads(line)
            if "ended" in said:
                self._note(said["ended"], said["code"])
            elif (ranks := self._runs.get(self._asked.pop(0))) is not None:
                _begun(ranks, said)
        return self._complete()

    def _note(self, pid: int, code: int) -> None:
        for ranks in self._runs.values():
            if ranks.pids.get(pid, 0) is None:
                ranks.pids[pid] = code
                _kill_group(pid)  # what it has left behind
                if code:
                    _kill_others(ranks)

    def _complete(self) -> list[Ended]:
        found = []
        for run, ranks in list(self._runs.items()):
            codes = list(ranks.pids.values())
            if len(codes) == ranks.expected and None not in codes:
                del self._runs[run]
                if ranks.failed:
                    found.append(Ended(run, 1, f"the start of its process ({ranks.failed})"))
                else:
                    found.append(Ended(run, next((code for code in codes if code), 0)))
        return found

    def _all_gone(self) -> list[Ended]:
        assert self._zygote is not None
        for ranks in self._runs.values():
            _kill_others(ranks)
        code = self._zygote.wait()
        found = [Ended(run, code, "the process that forks trials") for run in self._runs]
        self._zygote, self._buffer = None, b""
        self._runs.clear()
        self._asked.clear()
        return found

    def kill(self, run: Run, step: str | None) -> None:  # noqa: ARG002 (Slurm's)
        """End its processes at once."""
        if (ranks := self._runs.get(run)) is not None:
            ranks.killed = True
            _kill_others(ranks)

    def close(self) -> None:
        for ranks in self._runs.values():
            _kill_others(ranks)
        if self._zygote is not None:
            assert self._zygote.stdin is not None and self._zygote.stdout is not None
            self._zygote.kill()
            with contextlib.suppress(BrokenPipeError):
                self._zygote.stdin.close()
            self._zygote.stdout.close()
            self._zygote.wait()


def _begun(ranks: _Ranks, said: Mapping[str, Any]) -> None:
    """One of them has, or there is no room for it: then the others are of no use."""
    if "failed" in said:
        ranks.expected -= 1
        ranks.failed, ranks.killed = said["failed"], True
        _kill_others(ranks)
        return
    ranks.pids[said["pid"]] = None
    if ranks.killed:
        _kill_group(said["pid"])


def _kill_others(ranks: _Ranks) -> None:
    for pid, code in ranks.pids.items():
        if code is None:
            _kill_group(pid)


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


class SlurmLauncher:
    """Each run is a job step on the node of its GPUs; the GPUs of a node are shared out by us among its steps."""

    def __init__(self, threads: int) -> None:
        self._environ = environment(threads)
        self._steps: dict[Run, tuple[subprocess.Popen[bytes], int]] = {}

    def start(self, run: Run, site: Site, specs: Sequence[Spec], log: Path) -> None:
        """srun, with a task for each rank."""
        assert site.node is not None
        environ = {**self._environ, VARIABLE: specs[0].text()}
        command = [sys.executable, *_MODULE, "slurm_hadar.tuning.trial.worker"]
        with log.open("ab") as output:
            process = start_step(site.node, site.on_node, command, environ, output, f"trial-{run[0]}", len(specs))
        self._steps[run] = process, os.pidfd_open(process.pid)

    def files(self) -> Sequence[int]:
        return [pidfd for _, pidfd in self._steps.values()]

    def ended(self) -> list[Ended]:
        """What has ended since the last call."""
        found = []
        for run, (process, pidfd) in list(self._steps.items()):
            if process.poll() is not None:
                os.close(pidfd)
                del self._steps[run]
                code = process.returncode
                found.append(Ended(run, 128 - code if code > 128 else code))
        return found

    def kill(self, run: Run, step: str | None) -> None:
        """End the step at once."""
        if run in self._steps:
            end_step(step, self._steps[run][0])

    def close(self) -> None:
        for process, _ in self._steps.values():
            process.terminate()  # srun ends its step
        until_s = time.monotonic() + _STEPS_END_S
        for process, pidfd in self._steps.values():
            try:
                process.wait(max(0.0, until_s - time.monotonic()))
            except subprocess.TimeoutExpired:  # as where its node is lost
                process.kill()
                process.wait()
            os.close(pidfd)
