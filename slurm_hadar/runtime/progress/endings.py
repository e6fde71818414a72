"""SIGTERM in a training process: what Slurm sends before it ends a job, and so the last moment to save in."""

from __future__ import annotations

import contextlib
import gc
import io
import mmap
import multiprocessing
import os
import signal
import stat
import sys
import threading
import time
import traceback
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, ClassVar

from slurm_hadar.joblog import say

__all__ = ["Ending", "at_once", "die", "flush"]

_SET_HANDLERS = "_set_worker_signal_handlers"
_STAY_S = 60.0  # of a worker: beyond Slurm's KillWait (30 s by default), after which it ends them
_GOING_S = 1.0  # that a process whose main thread is gone may take to be gone itself, at most
_LATE_S = 20.0  # in good time before that
_HEAR_S = 10.0  # so long a training may take to hear of a signal, while it computes
_NO_TRAINING, _TRAINS, _ASKED = range(3)
_LATE = (
    f"told to end (SIGTERM) {_LATE_S:.0f} s ago, and the turn of the loop, or what the script does outside of it, is "
    "not over yet: what is not saved when Slurm kills it is done again. Processes of the script's own "
    "(multiprocessing.Pool) may have been ended by the same signal, and be waited for in vain"
)
_LATER = (
    "told to end (SIGTERM) outside of the loop: what no checkpoint has yet is saved if the script calls run.save(), or "
    "goes on with the loop, before it is killed; if not, the next run goes on from the last checkpoint"
)


class Ending:
    """While it is entered, SIGTERM does not end this process but is noted in ``asked``. A handler of the training's own
    is left alone, and so is a training that is not in the main thread; ``library`` tells handlers that are the
    library's, not the training's. ``leads``: it speaks for all workers. ``safe`` is for who enters it to say: whether
    all that was done is saved; and ``later``: that it may be entered again, as between two passes of a loop. Until
    then, or until another one is entered, a signal is noted as before. Only the first of several that are entered at
    once hears of a signal, and saves for itself: that is said.

    Slurm sends the signal to all processes of a job. Workers of a ``DataLoader`` that are forked from now on outlive
    it, since the step is finished with their batches, and PyTorch ends a training whose workers are killed."""

    _under_way: ClassVar[set[Ending]] = set()
    _told: ClassVar[set[str]] = set()
    _left: ClassVar[Ending | None] = None
    _mask: ClassVar[set[Any] | None] = None

    def __init__(self, leads: bool = True, library: Callable[[Any], bool] = lambda _handler: False) -> None:
        self.asked = self.safe = self.later = False
        self._asked_at = 0.0
        self._leads, self._library = leads, library
        self._before: dict[int, Any] = {}
        self._parent = os.getppid()
        _prepare_workers()

    def __enter__(self) -> Ending:
        left, Ending._left = Ending._left, None
        if left is not None and left is not self:
            left.let_go()
            self.asked = self.asked or left.asked
        self.later = False
        Ending._under_way.add(self)
        if len(Ending._under_way) > 1:
            self.tell_of_several()
        handler = signal.getsignal(signal.SIGTERM)
        if not _may_handle():
            self._tell(
                "WARNING: this training is not in the main thread, where signals come: told to end (SIGTERM) it is not "
                "saved, and goes on from its last save"
            )
        elif left is not self and (handler is signal.SIG_DFL or self._library(handler)):
            self._before = {signal.SIGTERM: signal.signal(signal.SIGTERM, self._on_sigterm)}
            if _is_child() and signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN):
                self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self._on_sigint)
            _prepare_workers()  # what was not imported before may be by now
            _Shared.ours()[0] = _TRAINS
        return self

    def tell_of_several(self) -> None:
        """That another training of this process is neither over nor heard when this one is told to end."""
        self._tell(
            "WARNING: two trainings are under way at once in this process. When it is stopped only one of them is "
            "saved as it is then, the other goes on from its last save. Make one of them: train() takes dicts of "
            "models and optimizers"
        )

    def _tell(self, what: str) -> None:
        if what not in Ending._told and self._leads:
            Ending._told.add(what)
            say(what)

    def let_go(self) -> None:
        """Give the signals back to whom they were taken from."""
        self._give_back()
        _Shared.ours()[0] = _NO_TRAINING

    def forget(self) -> None:
        """It is not entered again."""
        if Ending._left is self and _may_handle():
            self.let_go()

    def _give_back(self) -> None:
        for number, before in self._before.items() if _may_handle() else ():
            if signal.getsignal(number) in (self._on_sigterm, self._on_sigint):
                signal.signal(number, before)
        self._before = {}
        Ending._under_way.discard(self)
        if Ending._left is self:
            Ending._left = None

    @classmethod
    def before_fork(cls) -> None:
        """What comes for the new process before it has let go of the signal waits until then."""
        if (cls._under_way or cls._left) and _may_handle():
            cls._mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    @classmethod
    def after_fork(cls) -> None:
        """The parent takes signals again as before :meth:`before_fork`."""
        if cls._mask is not None:
            mask, cls._mask = cls._mask, None
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @classmethod
    def in_child(cls) -> None:
        """In a process that was forked from this one: it ends at a signal, as if no training had been there."""
        for one in filter(None, (*cls._under_way, cls._left)):
            one._give_back()  # noqa: SLF001 - it is one of ours
        cls.after_fork()

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        _trace: TracebackType | None = None,
    ) -> None:
        if self.later and self._before:
            Ending._under_way.discard(self)
            Ending._left = self
            if self.asked and not self.safe and self._leads:
                say(_LATER)
            return
        self.let_go()
        if self.asked:
            if kind is not None and not issubclass(kind, GeneratorExit):
                traceback.print_exception(error)
            if not self.safe and self._leads:
                say("told to end (SIGTERM) where nothing could be saved: goes on from the last checkpoint")
            die()

    def _on_sigterm(self, _number: int, _frame: Any) -> None:
        now = time.monotonic()
        if not self.asked:
            self._asked_at = now
            if self._leads:
                start_new_thread(_say_late, ())  # threading's own could wait for a lock that the main thread holds
            if self._leads and Ending._left is self:
                say(_LATER)
        elif Ending._left is self and now - self._asked_at > _STAY_S:  # by somebody who does not kill
            die()
        self.asked, _Shared.ours()[0] = True, _ASKED

    def _on_sigint(self, number: int, frame: Any) -> None:
        """Of a script's own worker (``mp.spawn``): PyTorch has it sent where the parent is gone, by a SIGTERM, say."""
        if self.asked or self._is_orphan():
            self._on_sigterm(number, frame)
        elif callable(before := self._before.get(number)):  # it is ignored behind a shell's &
            before(number, frame)

    def _is_orphan(self) -> bool:
        """Whether the parent is gone. It is sent as soon as the parent's main thread is, and others may be there for a
        moment longer."""
        deadline = time.monotonic() + _GOING_S
        while os.getppid() == self._parent:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Within it SIGTERM ends the process, whoever handles it otherwise: all that was made is saved. One that has come
    before, and was noted, does so too."""
    if not _may_handle():
        yield
        return
    flush()
    numbers = (signal.SIGTERM, signal.SIGINT) if _is_child() else (signal.SIGTERM,)  # SIGINT: the parent is gone
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    if _Shared.ours()[0] == _ASKED:
        die()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def die() -> None:
    """End as by an unhandled SIGTERM, but for what the training has written to files and not flushed."""
    flush()
    if _may_handle():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def flush(files: bool = True) -> None:
    """What was printed, and written to any file that is open: the steps that it tells of are saved and not repeated.
    To find the files takes tenths of a second."""
    for file in (sys.stdout, sys.stderr, *(filter(_writes_to_disk, gc.get_objects()) if files else ())):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, full, closed or detached
            file.flush()


def _writes_to_disk(one: Any) -> bool:
    """Not to a pipe, say, which may be full for ever."""
    if type(one) not in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
        return False
    with contextlib.suppress(OSError, ValueError):
        return stat.S_ISREG(os.fstat(one.fileno()).st_mode)
    return False


os.register_at_fork(before=Ending.before_fork, after_in_parent=Ending.after_fork, after_in_child=Ending.in_child)


class _Shared:
    """What the training is at, for the workers that are forked from it: a byte that they see change."""

    process, word = os.getpid(), mmap.mmap(-1, 1)

    @classmethod
    def ours(cls) -> mmap.mmap:
        """That of this process, which may itself be one of several that were forked."""
        if cls.process != os.getpid():
            cls.process, cls.word = os.getpid(), mmap.mmap(-1, 1)
        return cls.word


def _say_late() -> None:
    time.sleep(_LATE_S)
    say(_LATE)


def _is_child() -> bool:
    """Whether the script has started it as a worker of its own."""
    return multiprocessing.parent_process() is not None


def _may_handle() -> bool:
    return threading.current_thread() is threading.main_thread()


def _prepare_workers() -> None:
    """Let workers that are forked from now on outlive a signal to all of a job while a training runs.

    PyTorch gives workers a handler of its own when they begin; ours follows it. Without PyTorch, or without that
    place in it, or where workers are not forked, they are as they were."""
    _Shared.ours()
    handling: Any = sys.modules.get("torch.utils.data._utils.signal_handling")
    given = getattr(handling, _SET_HANDLERS, None)
    if given is None or getattr(given, "outlive", False):
        return

    def set_handlers(*args: Any) -> None:
        given(*args)
        signal.signal(signal.SIGTERM, _outlive)

    set_handlers.outlive = True  # type: ignore[attr-defined]
    setattr(handling, _SET_HANDLERS, set_handlers)


def _outlive(_number: int, _frame: Any) -> None:
    """In a worker: ends it, as ever, unless the training has heard of the signal, too, and ends by itself. Then the
    worker ends when it is gone, as workers look for that; one that hangs does not stay for ever."""
    deadline = time.monotonic() + _HEAR_S
    while _Shared.word[0] == _TRAINS and time.monotonic() < deadline:
        time.sleep(0.01)
    if _Shared.word[0] != _ASKED:
        os._exit(0)
    timer = threading.Timer(_STAY_S, os._exit, (1,))
    timer.daemon = True
    timer.start()
