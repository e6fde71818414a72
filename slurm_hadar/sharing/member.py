"""This process's turns at the broker that ``HADAR_SHARE`` names, taken and handed back as its training goes.

What is an iteration is seen from PyTorch's hooks: the turn is taken at the first module's forward pass (data is loaded
before it), and handed back after an optimizer's step. A forward pass without gradients, outside of such an iteration,
is an iteration by itself: inference and evaluation. What neither ends is ended by rest (:data:`QUIET_S` without a hook
that fires), and by length (:data:`LONGEST_S`, before the next forward pass). What a GPU has to do with it is in
:mod:`slurm_hadar.sharing.cuda`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slurm_hadar.errors import HadarError
from slurm_hadar.joblog import say
from slurm_hadar.sharing.broker.client import Session, Work
from slurm_hadar.sharing.cuda import Gpu, gpu_in_use
from slurm_hadar.sharing.declared import demand_of, seconds_of

__all__ = ["LONGEST_S", "QUIET_S", "Member", "iteration", "member"]

#: A backward pass fires no hook: a turn that rests for so long, and for thrice the longest rest before a step that has
#: been seen, is not one.
QUIET_S = 2.0
_QUIETEST_S = 60.0
#: Forward passes with gradients that no step follows (an evaluation without ``no_grad``) end their turn after this.
LONGEST_S = 5.0
_LEAVE_S = 1.0


class Member:
    """``where`` is the environment: ``HADAR_SHARE``, the broker's socket, and what the job tells of itself:
    ``HADAR_SHARE_PERSISTENT``, ``HADAR_SHARE_EPHEMERAL`` (sizes; ``HADAR_SHARE_LEARNED``: those that its like took),
    ``HADAR_SHARE_SECONDS``, ``HADAR_SHARE_CLASS``, ``HADAR_SHARE_LABEL``. Joins at its first turn. Ends the process,
    with one line, where the broker refuses it."""

    def __init__(self, where: dict[str, str]) -> None:
        self._where = where
        self._session: Session | None = None
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._held = False
        self._explicit = 0
        self._left = threading.Condition(self._lock)  # the last thread has left what it has marked
        self._depth = threading.local()
        self._outermost: Any = None  # the module whose forward pass is under way
        self._single = False  # that pass is the whole iteration
        self._since_s = self._last_s = self._rest_s = 0.0
        self._rested = False
        self._quiet_s = QUIET_S
        self._gpu: Gpu | None = None
        self._tells = "HADAR_SHARE_EPHEMERAL" in where

    def join(self) -> None:
        """Wait until the broker lets the job in."""
        with self._lock:
            if self._session is None:
                self._session = _joined(self._where)
                threading.Thread(target=self._watch, name="hadar-share", daemon=True).start()

    @contextlib.contextmanager
    def iteration(self) -> Iterator[None]:
        """One turn; one within another is a part of it, and so is one of another thread at the same time. But whoever
        comes when that has lasted for long waits a moment for the others to leave: threads that overlap without an end
        would keep the turn for ever."""
        depth = getattr(self._depth, "now", 0)
        with self._lock:
            if not depth and self._explicit and time.monotonic() - self._since_s > LONGEST_S:
                self._left.wait_for(lambda: not self._explicit, _LEAVE_S)  # not for ever: they may wait for this one
            if not self._explicit:
                self._end()
                self._begin()
            self._explicit += 1
        self._depth.now = depth + 1
        try:
            yield
        finally:
            self._depth.now = depth
            if os.getpid() == self._process:  # a forked child has no part in its parent's turn, nor its locks
                with self._lock:
                    self._explicit -= 1
                    if not self._explicit:
                        self._end()
                        self._left.notify_all()

    def before_forward(self, module: Any, gradients: bool) -> None:
        """A module is about to compute."""
        if self._outermost is not None:  # of a large model's hundreds of parts all but one: without the lock
            self._note()
            return
        with self._lock:
            if self._explicit:
                return
            self._note()
            if self._outermost is not None:
                return
            if self._held and self._last_s - self._since_s > LONGEST_S:
                self._end()
            if not self._held:
                self._begin()
                self._single = not gradients
            self._outermost = module

    def after_forward(self, module: Any) -> None:
        """It has, or has failed."""
        if module is not self._outermost and self._outermost is not None:
            self._note()
            return
        with self._lock:
            if self._explicit:
                return
            self._note()
            if module is self._outermost:
                self._outermost = None
                if self._single:
                    self._end()

    def before_step(self) -> None:
        """An optimizer is about to step."""
        with self._lock:
            if self._explicit:
                return
            if self._rested:  # the watch took a backward pass for rest
                self._learn(time.monotonic() - self._last_s)
            self._note()
            if not self._held:
                self._begin()

    def after_step(self) -> None:
        """It has: the end of an iteration."""
        with self._lock:
            if not self._explicit and self._held:
                self._note()
                self._end()
                self._learn(self._rest_s)

    def _note(self) -> None:
        now = time.monotonic()
        if self._held and now - self._last_s > self._rest_s:
            self._rest_s = now - self._last_s
        self._last_s, self._rested = now, False

    def _learn(self, rest_s: float) -> None:
        self._quiet_s = min(_QUIETEST_S, max(self._quiet_s, 3 * rest_s))

    def _begin(self) -> None:
        self.join()
        assert self._session is not None
        gpu = self._found_gpu()
        self._session.take()
        if gpu is not None:
            gpu.begin()
        self._held, self._rested, self._rest_s = True, False, 0.0
        self._since_s = self._last_s = time.monotonic()

    def _end(self) -> None:
        if not self._held:
            return
        gpu = self._found_gpu()
        if gpu is not None and gpu.capturing():  # the iteration is noted now, and done later
            return
        self._held, self._single, self._outermost = False, False, None
        assert self._session is not None
        if gpu is None:
            self._session.give_back()
            return
        settle, spent_ns = None, None
        try:
            if (taken := gpu.taken()) is not None:
                self._session.took(*taken)
            spent_ns = gpu.end(frees=self._tells and not self._session.may_keep)
            settle = None if gpu.idle else gpu.settle
        finally:  # of a GPU that has failed, too
            self._session.give_back(settle, spent_ns)

    def _found_gpu(self) -> Gpu | None:
        """As soon as the process uses one, which may be within its first turn."""
        if self._gpu is None and (cuda := gpu_in_use()) is not None:
            said = "HADAR_SHARE_PERSISTENT" in self._where and "HADAR_SHARE_LEARNED" not in self._where
            self._gpu = Gpu(cuda, demand_of(self._where) if said else None)
            assert self._session is not None
            self._session.free = self._gpu.free
        return self._gpu

    def _watch(self) -> None:
        assert self._session is not None
        while True:
            if self._gpu is not None:
                self._gpu.look()
                self._session.until_said(QUIET_S / 8)
            else:  # between two iterations the broker takes the turn by itself
                time.sleep(QUIET_S / 8)
            with self._lock:
                self._session.heed()
                if self._held and not self._explicit and time.monotonic() - self._last_s > self._quiet_s:
                    self._end()
                    self._rested = True


def _joined(where: dict[str, str]) -> Session:
    try:
        work = Work(
            demand_of(where),
            seconds_of(where, "HADAR_SHARE_SECONDS") or 0.0,
            where.get("HADAR_SHARE_CLASS", ""),
            where.get("HADAR_SHARE_LABEL") or Path(sys.argv[0] if sys.argv else "").name,
            can_keep=True,  # where nothing is told there is nothing to be kept
        )
        return Session(Path(where["HADAR_SHARE"]), work)
    except HadarError as error:
        raise SystemExit(f"hadar: {error}") from None


_members: list[Member | None] = []


def member() -> Member | None:
    """This process's; None where it takes no turns: no broker is named, it loads data for another process, or it is one
    of several that train together, which would wait for each other within their turns."""
    if not _members:
        _members.append(_found())
    return _members[0]


def _found() -> Member | None:
    where = {name: value for name, value in os.environ.items() if name.startswith("HADAR_SHARE")}
    if not where.get("HADAR_SHARE"):
        return None
    data = sys.modules.get("torch.utils.data")
    if data is not None and data.get_worker_info() is not None:
        return None
    distributed, said = sys.modules.get("torch.distributed"), os.environ.get("WORLD_SIZE", "")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        world = distributed.get_world_size()
    else:
        world = int(said) if said.isdecimal() else 1  # a script's own variable may have this name, or be empty
    if world > 1:
        say("this process is one of several that train together: it takes no turns on the shared GPU")
        return None
    return Member(where)


_alone_told: list[bool] = []


@contextlib.contextmanager
def iteration() -> Iterator[None]:
    """One iteration on a GPU that may be shared: waits for the turn and hands it back, once the GPU has done it.

    For loops without an optimizer and without PyTorch's modules; hooks mark those by themselves. To ``await``
    something within, while other tasks mark theirs, keeps the turn from all others. Where no broker is named
    (``HADAR_SHARE``) it does nothing, and says so once::

        from slurm_hadar import sharing

        for batch in batches:
            with sharing.iteration():
                answer(batch)
    """
    mine = member()
    if mine is None:
        if not _alone_told and not os.environ.get("HADAR_SHARE"):
            _alone_told.append(True)
            say("no broker is named (HADAR_SHARE): this job runs as if the GPU were its own")
        yield
        return
    with mine.iteration():
        yield


os.register_at_fork(after_in_child=_members.clear)
