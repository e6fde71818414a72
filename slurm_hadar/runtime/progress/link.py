"""Rank 0's side of the page that it shares with its agent: progress out, wishes in."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import Any

from slurm_hadar.errors import reason_of
from slurm_hadar.joblog import say
from slurm_hadar.runtime.inject import _hadar_progress as shared
from slurm_hadar.runtime.progress.endings import at_once
from slurm_hadar.runtime.workers.gang import Gang

__all__ = ["Link", "stand_still"]

PAUSE_POLL_S = 0.1


class Signals:
    """SIGUSR2 where no agent takes it, and SIGUSR1, by which many let Slurm tell that the time is nearly over. The
    handler only counts; a handler of the user's own is kept."""

    count = 0

    @classmethod
    def listen(cls, number: int) -> None:
        """Count those of this number from now on, where nobody else handles them."""
        free = threading.current_thread() is threading.main_thread()
        if free and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, cls._on_signal)

    @classmethod
    def _on_signal(cls, _number: int, _frame: Any) -> None:
        cls.count += 1


class Link:
    """Rank 0's connection to its agent, if there is one, and to the signals that ask for a save, too."""

    def __init__(self, gang: Gang, resumable: bool) -> None:
        # the copy that counts an unmodified script's steps, if it is in this process: hadar-srun's, which may be of an
        # older version and not know all words; those that it knows are at the same places
        counting: Any = sys.modules.get("_hadar_progress", shared)
        self._page: Any = _page_of(counting, gang.world) if gang.leads else None
        self._resumable = resumable
        self._seen = self._go_on = 0
        self._signals = self._signals_seen = Signals.count
        if "HADAR_RUN_DIR" not in os.environ and resumable:
            Signals.listen(signal.SIGUSR2)

    def begin(self, step: int, total_steps: int, global_batch: int | None = None) -> None:
        """The loop begins; with ``global_batch`` it makes the same steps with any number of workers."""
        if self._resumable:  # not before: libraries leave a signal alone that somebody handles
            Signals.listen(signal.SIGUSR1)
        if self._page is None:
            return
        words = self._page.words
        words[shared.STEPS], words[shared.TOTAL] = step, total_steps
        words[shared.GLOBAL_BATCH] = global_batch or 0
        words[shared.RESUMABLE] = int(self._resumable)

    def count(self, step: int) -> None:
        """The training has made so many steps."""
        if self._page is not None:
            self._page.words[shared.STEPS] = step

    def asked(self) -> tuple[bool, float]:
        """Whether a save is wanted, and for how long to pause after it; to be answered by :meth:`answer`."""
        self._signals_seen = Signals.count
        signalled = self._signals_seen > self._signals
        if self._page is None:
            return signalled, 0.0
        self._seen = self._page.words[shared.ASKED]
        self._go_on = self._page.words[shared.GO_ON]
        wanted = self._seen > self._page.words[shared.ANSWERED]
        return wanted or signalled, self._page.seconds[shared.PAUSE_S] if wanted else 0.0

    def answer(self) -> None:
        """What :meth:`asked` told last is dealt with: the same is not told again."""
        self._signals = self._signals_seen
        if self._page is not None:
            self._page.words[shared.ANSWERED] = self._seen

    def told_to_go_on(self) -> bool:
        """Whether the job stays after all, so that the pause after a save is over."""
        return self._page is not None and self._page.words[shared.GO_ON] != self._go_on

    def saved(self, step: int, generation: int, save_s: float, stall_s: float | None = None) -> None:
        """A checkpoint is safe, ``save_s`` after it was begun, of which the training stood for ``stall_s``; None: for
        all of it."""
        if self._page is not None:
            self._page.seconds[shared.SAVE_S] = save_s
            self._page.seconds[shared.STALL_S] = save_s if stall_s is None else stall_s
            self._tell_checkpoint(step, generation)
            self._page.words[shared.SAVES] += 1

    def consolidated(self, number: int, steps: int, stall_s: float | None, closes: bool) -> None:
        """A copy of a forked job has the weights of consolidation ``number``, with ``steps`` of the whole job in it."""
        if self._page is None:
            return
        words = self._page.words
        if stall_s is not None:
            self._page.seconds[shared.CONSOLIDATE_S] = stall_s
        words[shared.CONSOLIDATED], words[shared.CLOSES] = steps, int(closes)
        words[shared.CONSOLIDATION] = number

    def loaded(self, step: int, generation: int, seconds: float) -> None:
        """The training goes on from this checkpoint, which took so many seconds to load."""
        if self._page is not None:
            self._page.seconds[shared.LOAD_S] = seconds
            self._tell_checkpoint(step, generation)

    def forgets(self, count: int) -> None:
        """So many things go on in the training that are in no checkpoint."""
        if self._page is not None:
            self._page.words[shared.FORGOTTEN] = count

    def failed(self) -> None:
        """A save has failed."""
        if self._page is not None:
            self._page.words[shared.FAILURES] += 1

    def _tell_checkpoint(self, step: int, generation: int) -> None:
        self._page.words[shared.SAVED_STEP] = step
        self._page.words[shared.GENERATION] = generation


def _page_of(counting: Any, world: int) -> Any:
    """None where there is no agent, and, which is said, where there is no room for the page."""
    try:
        return counting.take_over(0, world)
    except OSError as error:
        say(f"this training is not measured, and not asked to save before the job is moved: {reason_of(error)}")
        return None


def stand_still(link: Link, gang: Gang, seconds: float) -> None:
    """Answer that the save which was asked for is done, and make no step until the end, until told to go on, or until
    the time is over. The end may come as soon as that is answered: so all workers are ready for it before."""
    deadline = time.monotonic() + seconds
    with at_once():  # libraries note a SIGTERM for the next step, which does not come
        gang.gather(None)
        link.answer()
        while not gang.broadcast(time.monotonic() >= deadline or link.told_to_go_on()):
            if gang.leads:
                time.sleep(PAUSE_POLL_S)
