"""SIGTERM in a training process: what Slurm sends before it ends a job, and so the last moment to save in."""

from __future__ import annotations

import contextlib
import gc
import io
import mmap
import os
import signal
import stat
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, ClassVar

from slurm_hadar.joblog import say

__all__ = ["Ending", "at_once", "die"]

_SET_HANDLERS = "_set_worker_signal_handlers"
_STAY_S = 60.0  # of a worker: beyond Slurm's KillWait (30 s by default), after which it ends them
_HEAR_S = 10.0  # so long a training may take to hear of a signal, while it computes
_NO_TRAINING, _TRAINS, _ASKED = range(3)


class Ending:
    """While it is entered, SIGTERM does not end this process but is noted in ``asked``. A handler of the training's own
    is left alone, and so is a training that is not in the main thread; ``library`` tells handlers that are the
    library's, not the training's. ``safe`` is for who enters it to say: whether all that was done is saved; and
    ``later``: that it will end the process itself. Only the first of several that are entered at once hears of a
    signal, and saves for itself: that is said.

    Slurm sends the signal to all processes of a job. Workers of a ``DataLoader`` that are forked from now on outlive
    it, since the step is finished with their batches, and PyTorch ends a training whose workers are killed."""

    _under_way: ClassVar[set[Ending]] = set()
    _told: ClassVar[set[str]] = set()
    _mask: ClassVar[set[Any] | None] = None

    def __init__(self, library: Callable[[Any], bool] = lambda _handler: False) -> None:
        self.asked = self.safe = self.later = False
        self._library = library
        self._before: Any = None
        _prepare_workers()

    def __enter__(self) -> Ending:
        Ending._under_way.add(self)
        if len(Ending._under_way) > 1:
            self.tell_of_several()
        handler = signal.getsignal(signal.SIGTERM)
        if not _may_handle():
            self._tell(
                "WARNING: this training is not in the main thread, where signals come: told to end (SIGTERM) it is not "
                "saved, and goes on from its last save"
            )
        elif handler is signal.SIG_DFL or self._library(handler):
            self._before = signal.signal(signal.SIGTERM, self._on_sigterm)
            _prepare_workers()  # what was not imported before may be by now
            _Shared.ours()[0] = _TRAINS
        return self

    @classmethod
    def tell_of_several(cls) -> None:
        """That another training of this process is neither over nor heard when this one is told to end."""
        cls._tell(
            "WARNING: two trainings are under way at once in this process. When it is stopped only one of them is "
            "saved as it is then, the other goes on from its last save. Make one of them: train() takes dicts of "
            "models and optimizers"
        )

    @classmethod
    def _tell(cls, what: str) -> None:
        if what not in cls._told and _leads():
            cls._told.add(what)
            say(what)

    def let_go(self) -> None:
        """Give the signal back to whom it was taken from."""
        if self._before is not None and _may_handle() and signal.getsignal(signal.SIGTERM) == self._on_sigterm:
            signal.signal(signal.SIGTERM, self._before)
        self._before = None

    @classmethod
    def before_fork(cls) -> None:
        """What comes for the new process before it has let go of the signal waits until then."""
        if cls._under_way and _may_handle():
            cls._mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])

    @classmethod
    def after_fork(cls) -> None:
        if cls._mask is not None:
            mask, cls._mask = cls._mask, None
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    @classmethod
    def in_child(cls) -> None:
        """In a process that was forked from this one: it ends at a signal, as if no training had been there."""
        for one in cls._under_way:
            one.let_go()
        cls._under_way.clear()
        cls.after_fork()

    def __exit__(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        _trace: TracebackType | None = None,
    ) -> None:
        self.let_go()
        _Shared.ours()[0] = _NO_TRAINING
        Ending._under_way.discard(self)
        if self.asked and not self.later:
            if kind is not None and not issubclass(kind, GeneratorExit):
                traceback.print_exception(error)
            if not self.safe and _leads():
                say("told to end (SIGTERM) where nothing could be saved: goes on from the last checkpoint")
            die()

    def _on_sigterm(self, _number: int, _frame: Any) -> None:
        self.asked, _Shared.ours()[0] = True, _ASKED


@contextlib.contextmanager
def at_once() -> Iterator[None]:
    """Within it SIGTERM ends the process, whoever handles it otherwise: all that was made is saved. One that has come
    before, and was noted, does so too."""
    if not _may_handle():
        yield
        return
    _flush()
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if _Shared.ours()[0] == _ASKED:
        die()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def die() -> None:
    """End as by an unhandled SIGTERM, but for what the training has written to files and not flushed."""
    _flush()
    if _may_handle():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _flush() -> None:
    """What was printed, and written to any file that is open: the steps that it tells of are saved and not repeated."""
    for file in (sys.stdout, sys.stderr, *filter(_writes_to_disk, gc.get_objects())):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # none, full, closed or detached
            file.flush()


def _writes_to_disk(one: Any) -> bool:
    """Not to a pipe, say, which may be full for ever."""
    if type(one) not in (io.TextIOWrapper, io.BufferedWriter):
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


def _leads() -> bool:
    return os.environ.get("RANK", "0") == "0"


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
