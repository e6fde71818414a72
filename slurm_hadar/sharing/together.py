"""Several commands at once that share GPUs by turns: their brokers, their environment, their signals and ends."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType

from slurm_hadar import scratch
from slurm_hadar.dependent import die_with_parent
from slurm_hadar.errors import ChannelError, ConfigError
from slurm_hadar.messages import COMMAND
from slurm_hadar.sharing.broker.messages import SessionView
from slurm_hadar.sharing.broker.queries import FOLDER, SOCKET, status_of
from slurm_hadar.sharing.broker.server import Broker
from slurm_hadar.sharing.broker.settings import Limits, Rules
from slurm_hadar.sharing.declared import demand_of, seconds_of
from slurm_hadar.sharing.gpus import VISIBLE, name_of, spread, visible
from slurm_hadar.wakeup import signals_wake

__all__ = ["Command", "End", "run_together"]

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP)
_SETTLED_S = 10.0


@dataclass(frozen=True)
class Command:
    """A command as it was typed: ``NAME=VALUE`` words in front of it are its environment, as in a shell, but no shell
    reads it. ``label`` is its name towards the broker, unlike all others'."""

    number: int
    text: str
    environ: dict[str, str] = field(compare=False)
    words: tuple[str, ...]

    @classmethod
    def read(cls, number: int, text: str) -> Command:
        """Raises ConfigError."""
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise ConfigError(f"job {number}, {text!r}, cannot be read: {error}") from None
        environ = {}
        while words and words[0].partition("=")[0].isidentifier() and "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            environ[name] = value
        if not words:
            raise ConfigError(f"job {number}, {text!r}, has no command")
        try:
            declared = {**os.environ, **environ}
            demand_of(declared)
            seconds_of(declared, "HADAR_SHARE_SECONDS")
        except ConfigError as error:
            raise ConfigError(f"job {number}, {text!r}: {error}") from None
        return cls(number, text, environ, tuple(words))

    @property
    def label(self) -> str:
        """As a broker keeps it."""
        return "".join(c for c in f"{self.number}: {self.text}"[:64] if c.isprintable())


@dataclass(frozen=True)
class End:
    """How a command has ended: its exit code as a shell counts it, and what it had of the GPU."""

    command: Command
    code: int
    ran_s: float
    turns: int
    used_s: float


class _Usage:
    """What sessions that have gone had, by label."""

    def __init__(self) -> None:
        self.turns: dict[str, int] = {}
        self.used_ns: dict[str, int] = {}

    def add(self, label: str, view: SessionView) -> None:
        self.turns[label] = self.turns.get(label, 0) + view.turns
        self.used_ns[label] = self.used_ns.get(label, 0) + view.used_ns


def run_together(
    commands: Sequence[Command], rules: Rules, inject: Path, say: Callable[[str], None], ended: Callable[[End], None]
) -> int:
    """Run them until all have ended, on one GPU or spread over those of ``CUDA_VISIBLE_DEVICES``, each with a broker
    by these rules; returns the exit code of the first that failed, or 0.

    ``inject`` goes in front of their PYTHONPATH. SIGTERM, SIGINT, SIGUSR1 and SIGHUP are passed on to each. What a
    command leaves running in its process group is killed with its end, and the commands are if this process dies.
    """
    usage = _Usage()
    places = _places(commands, os.environ, say)
    names = list(dict.fromkeys(place.socket for place in places.values()))
    with _folder(names) as folder, _serving([folder / name for name in names], rules, say, usage) as threads:
        running: dict[Command, tuple[subprocess.Popen[bytes], float]] = {}
        try:
            with _forwarding(running) as received:
                codes = _start(places, running, received, folder, inject, say)
                for thread in threads:  # after the forks: a child must not be born while a thread holds a lock
                    thread.start()
                paths = {command: folder / place.socket for command, place in places.items()}
                codes += _wait(running, paths, usage, ended)
            return next((code for code in codes if code), 0)
        finally:
            for process, _ in running.values():
                _end_group(process)


@dataclass(frozen=True)
class _Place:
    """The GPU that a command sees, None where there is but one or nothing says which, and the name of its socket."""

    gpu: str | None
    socket: str


def _places(
    commands: Sequence[Command], environ: Mapping[str, str], say: Callable[[str], None]
) -> dict[Command, _Place]:
    """Of several GPUs each has a broker, and each command one GPU."""
    gpus = visible(environ)
    if len(gpus) < 2:
        return dict.fromkeys(commands, _Place(None, SOCKET))
    declared = {name: value for name, value in environ.items() if name != VISIBLE}
    given = spread(gpus, [{**declared, **command.environ} for command in commands])
    for gpu in gpus:
        numbers = [str(command.number) for command, its in zip(commands, given, strict=True) if its == gpu]
        say(f"GPU {gpu}: job{'s' * (len(numbers) > 1)} {', '.join(numbers)}" if numbers else f"GPU {gpu} is left idle: "
            f"there are {len(gpus)} GPUs, and {len(commands)} command{'s' * (len(commands) > 1)}")  # fmt: skip
    return {command: _Place(gpu, f"{SOCKET}{name_of(gpu)}") for command, gpu in zip(commands, given, strict=True)}


@contextlib.contextmanager
def _serving(
    paths: Sequence[Path], rules: Rules, say: Callable[[str], None], usage: _Usage
) -> Iterator[list[threading.Thread]]:
    """The brokers, each in a thread that is to be started."""
    with contextlib.ExitStack() as stack:
        stop, stopped = os.pipe()
        stack.callback(os.close, stop)
        threads = []
        for path in paths:
            broker = Broker(path, rules, Limits(linger_s=None), say, usage.add)
            stack.callback(broker.close)
            threads.append(threading.Thread(target=broker.serve, args=(stop,), name="broker"))
        try:
            yield threads
        finally:
            os.close(stopped)
            for thread in threads:
                if thread.ident is not None:
                    thread.join()


@contextlib.contextmanager
def _folder(names: Sequence[str]) -> Iterator[Path]:
    scratch.remove_abandoned(FOLDER)
    folder = scratch.make_for_sockets(FOLDER, names)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _forwarding(running: dict[Command, tuple[subprocess.Popen[bytes], float]]) -> Iterator[list[int]]:
    """Yields what has been received, for those that are started later."""
    received: list[int] = []

    def forward(signum: int, _frame: FrameType | None) -> None:
        received.append(signum)
        for process, _ in list(running.values()):
            process.send_signal(signum)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(
    places: Mapping[Command, _Place],
    running: dict[Command, tuple[subprocess.Popen[bytes], float]],
    received: list[int],
    folder: Path,
    inject: Path,
    say: Callable[[str], None],
) -> list[int]:
    """Exit codes of those that cannot be started."""
    codes = []
    dependent = partial(die_with_parent, os.getpid())
    for command, place in places.items():
        environ = {**os.environ, **command.environ}
        python_path = os.pathsep.join(p for p in (str(inject), environ.get("PYTHONPATH", "")) if p)
        environ |= {"PYTHONPATH": python_path, "HADAR_SHARE": str(folder / place.socket)}
        environ |= {"HADAR_SHARE_LABEL": command.label} | ({} if place.gpu is None else {VISIBLE: place.gpu})
        environ[COMMAND] = str(command.number)
        try:
            process = subprocess.Popen(
                command.words, env=environ, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=dependent
            )
        except OSError as error:
            say(f"job {command.number}: cannot run {command.words[0]}: {error.strerror}")
            codes.append(127 if isinstance(error, FileNotFoundError) else 126)
            continue
        running[command] = process, time.monotonic()
        for signum in received:
            process.send_signal(signum)
    return codes


def _wait(
    running: dict[Command, tuple[subprocess.Popen[bytes], float]],
    paths: Mapping[Command, Path],
    usage: _Usage,
    ended: Callable[[End], None],
) -> list[int]:
    codes = []
    with signals_wake() as woken, selectors.DefaultSelector() as selector:
        selector.register(woken, selectors.EVENT_READ)
        for command, (process, _) in running.items():
            selector.register(os.pidfd_open(process.pid), selectors.EVENT_READ, command)
        while running:
            for key, _ in selector.select():
                if key.fd == woken:  # and the handler has been called by now, or is after this
                    os.read(woken, 4096)
                    continue
                selector.unregister(key.fd)
                os.close(key.fd)
                command = key.data
                process, since_s = running[command]
                ran_s = time.monotonic() - since_s
                _end_group(process)
                del running[command]
                code = process.returncode if process.returncode >= 0 else 128 - process.returncode
                codes.append(code)
                _settle(paths[command], command.label)
                used_s = usage.used_ns.get(command.label, 0) / 1e9
                ended(End(command, code, ran_s, usage.turns.get(command.label, 0), used_s))
    return codes


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Before the command's id is free for others: what it has left behind goes with it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _settle(path: Path, label: str) -> None:
    """Until the broker has noticed the end; it learns of it by itself."""
    until = time.monotonic() + _SETTLED_S
    while time.monotonic() < until:
        try:
            if all(session["label"] != label for session in status_of(path)["sessions"]):
                return
        except ChannelError:
            return
        time.sleep(0.005)
