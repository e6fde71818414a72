"""The process from which those of local trials are forked: it has imported once what they need.

A trial that is resized starts anew, and PyTorch's import is most of what that takes. So the tuner keeps one process
that has imported what the study's file imports from well-known libraries (never the file itself), and nothing else.

Requests come as JSON lines on stdin: ``{"spec": ..., "environ": {...}, "log": FILE}`` starts a process; what is
written back: ``{"pid": ...}`` in the order of the requests (``{"failed": WHY}`` where there is no room for one), and
``{"ended": pid, "code": ...}`` for each that ends (negative: its signal). It ends with its stdin, and trials are told
to end with it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import sys
import time
from typing import Any

from slurm_hadar.dependent import die_with_parent
from slurm_hadar.joblog import say
from slurm_hadar.tuning.trial import worker
from slurm_hadar.tuning.trial.wire import Spec
from slurm_hadar.wakeup import signals_wake

__all__ = ["main"]

_ROOM_S, _AGAIN_S = 10.0, 0.1


def main(modules: list[str]) -> None:
    """Serve until stdin ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for name in modules:
        with contextlib.suppress(Exception):  # the objective will meet it, and say so
            importlib.import_module(name)
    buffer = b""
    with signals_wake() as woken, selectors.DefaultSelector() as selector:
        selector.register(0, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                data = os.read(key.fd, 65536)
                if key.fd == woken:
                    _reap()
                    continue
                if not data:
                    return
                buffer += data
                while b"\n" in buffer:
                    line, buffer = buffer.split(b"\n", 1)
                    _tell(_started(json.loads(line)))


def _started(request: dict[str, Any]) -> dict[str, Any]:
    """What is told of a process that is asked for. Where there is no room for one (a limit on processes, of memory), it
    is tried again for a while: this process and its other trials go on in any case."""
    until = time.monotonic() + _ROOM_S
    while True:
        try:
            return {"pid": _fork(request)}
        except OSError as error:
            if time.monotonic() >= until:
                return {"failed": error.strerror}
        _reap()  # who has ended makes room
        time.sleep(_AGAIN_S)


def _fork(request: dict[str, Any]) -> int:
    zygote = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        die_with_parent(zygote, signal.SIGTERM)
        _redirect(request["log"])
        _seed_anew()
        os.environ.clear()
        os.environ.update(request["environ"])
        worker.run(Spec.read(request["spec"]))
        code = 0
    except BaseException as error:
        say(str(error))
    finally:
        _leave(code)
    return 0


def _seed_anew() -> None:
    """As in a process of its own: what was imported before the fork would give all trials the same random numbers."""
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    if (torch := sys.modules.get("torch")) is not None:
        torch.seed()


def _leave(code: int) -> None:
    """End as a Python does that was not forked: its threads, its functions for the end."""
    import atexit
    import threading

    with contextlib.suppress(BaseException):
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()  # noqa: SLF001 (there is no other way to have them run)
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _redirect(log: str) -> None:
    """The trial's output goes to its own file."""
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.closerange(3, 256)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _reap() -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        _tell({"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _tell(said: dict[str, Any]) -> None:
    """Nobody reads it where the tuner was killed; then stdin ends, too."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, (json.dumps(said) + "\n").encode())


if __name__ == "__main__":
    main(sys.argv[1:])
