"""When a training saves, and what comes after a save: decided by rank 0 between two steps, for all workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from slurm_hadar.joblog import say
from slurm_hadar.runtime.emulation import Pace
from slurm_hadar.runtime.progress.endings import Ending, die
from slurm_hadar.runtime.progress.link import Link, stand_still
from slurm_hadar.runtime.workers.gang import Gang

__all__ = ["SaveDecision", "SaveEvery", "Trigger"]

AGREE_EVERY_S = 0.25
_PATIENCE_S = 10.0  # so long after a SIGTERM a turn without gradients left is waited for: of Slurm's KillWait, 30 s


@dataclass(frozen=True, slots=True)
class SaveEvery:
    """Saves that nobody asks for: after so many seconds, after so many steps; None, or no steps: none of that sort."""

    seconds: float | None = 600.0
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class SaveDecision:
    """What is to be done at a step boundary.

    Parameters
    ----------
    save: whether a save is due. asked: the scheduler has asked for it. pause_s: for so long it wants no steps after it.
    ends: a SIGTERM has come, the process ends after the save. look_after: steps until the workers agree again.
    """

    save: bool = False
    asked: bool = False
    pause_s: float = 0.0
    ends: bool = False
    look_after: int = 1

    @property
    def awaited(self) -> bool:
        """Whether somebody may end the job as soon as the save is safe."""
        return self.asked or self.ends


class Trigger:
    """One worker's view of it. Methods are called by all workers at the same steps.

    Parameters
    ----------
    link: tells what the scheduler asks for, and is told when that is done. ending: notes a SIGTERM.
    pace: of the private cluster; what a save takes is no step's time.
    """

    def __init__(self, gang: Gang, link: Link, ending: Ending, pace: Pace | None, every: SaveEvery) -> None:
        self._gang, self._link, self._ending, self._pace, self._every = gang, link, ending, pace, every
        self._by_count = False
        self._ends_s: float | None = None  # since when it is known to end
        self.begin(0)

    def begin(self, step: int) -> None:
        """The loop begins, or goes on, at ``step``."""
        self._saved_at = self._looked_at = time.monotonic()
        self._looked_step, self._next_look = step, step + 1

    def due(
        self, step: int, wanted: bool = False, ripe: Callable[[], bool] = lambda: True, looks: bool = False
    ) -> SaveDecision | None:
        """What is decided after ``step`` if that is a save; most steps go by without a look, if it is not wished for.

        ``wanted``: the training itself asks for one. ``ripe``: rank 0 is asked by it whether this is a step to save at.
        """
        if self._every.steps and step % self._every.steps == 0 and not looks:
            self._by_count = True  # until it is saved
        if step < self._next_look and not self._by_count and not looks:
            return None
        decision = self._gang.agree(self._decide(step, wanted, ripe) if self._gang.leads else SaveDecision())
        self._looked_at, self._looked_step, self._next_look = time.monotonic(), step, step + decision.look_after
        if not decision.save:
            return None
        self._by_count = False
        return decision

    def _decide(self, step: int, wanted: bool, ripe: Callable[[], bool]) -> SaveDecision:
        now = time.monotonic()
        asked, pause_s = self._link.asked()
        overdue = self._every.seconds is not None and now - self._saved_at >= self._every.seconds
        save = asked or self._ending.asked or overdue or wanted or self._by_count
        if save and not ripe() and not self._runs_out(now):
            return SaveDecision()
        per_step_s = (now - self._looked_at) / max(1, step - self._looked_step)
        return SaveDecision(
            save, asked, pause_s, self._ending.asked, self._gang.steps_until_look(AGREE_EVERY_S, per_step_s)
        )

    def _runs_out(self, now: float) -> bool:
        """Whether Slurm would soon kill what waits on: then the gradients of some turns are lost, and not all."""
        if not self._ending.asked:
            return False
        self._ends_s = now if self._ends_s is None else self._ends_s
        if now - self._ends_s < _PATIENCE_S:
            return False
        say("WARNING: told to end (SIGTERM): gradients that no optimizer has used yet are left out of what is saved")
        return True

    def saved(self) -> None:
        """A save was made, or has failed."""
        self._saved_at = time.monotonic()

    def follow(self, decision: SaveDecision, step: int, safe: bool) -> None:
        """End, answer or pause, as was decided with the save of ``step``; ``safe``: it has not failed."""
        if decision.ends:
            if safe and self._gang.leads:
                say(f"told to end (SIGTERM); step {step} is saved")
            die()
        if decision.pause_s:
            stand_still(self._link, self._gang, decision.pause_s)
        elif decision.asked:
            self._link.answer()
        if self._pace is not None:
            self._pace.restart()
        self._looked_at = time.monotonic()
