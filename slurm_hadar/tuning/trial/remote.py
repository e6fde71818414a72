"""The trial that an objective is given: Optuna's, as far as an objective needs it, answered by the tuner."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm_hadar.joblog import say
from slurm_hadar.runtime.inject import _hadar_progress
from slurm_hadar.tuning.trial.wire import Line, TunerGone

__all__ = ["Paused", "RemoteTrial"]


class Paused(BaseException):
    """The trial has come to its rung, or shall end: nothing is left to do in this process."""


class RemoteTrial:
    """What ``optuna.trial.Trial`` has for an objective: ``suggest_*``, ``report``, ``should_prune``, ``params``,
    ``number`` and user attributes, with Optuna's meanings. All ranks of a trial have one; they get the same values,
    rank 0 alone reports, and ``should_prune`` is asked by all of them together. ``untold``: where reports are kept that
    nobody was there to hear.
    """

    def __init__(self, line: Line, number: int, rank: int, gang: Any, untold: Path) -> None:
        self.number = number
        self._line, self._rank, self._gang, self._untold = line, rank, gang, untold
        self.params: dict[str, Any] = {}

    def _suggest(self, kind: str, name: str, **arguments: Any) -> Any:
        value = self._line.ask("suggest", kind=kind, name=str(name), arguments=arguments)
        self.params[name] = value
        return value

    def suggest_float(self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False) -> Any:
        """As Optuna's."""
        return self._suggest("float", name, low=float(low), high=float(high), step=step, log=log)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> Any:
        """As Optuna's."""
        return self._suggest("int", name, low=int(low), high=int(high), step=int(step), log=log)

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """One of ``choices``: None, truth values, numbers and texts, as Optuna asks for."""
        if any(c is not None and not isinstance(c, bool | int | float | str) for c in choices):
            raise ValueError(f"choices of {name!r} must be None, bool, int, float or str")
        return self._suggest("categorical", name, choices=list(choices))

    def report(self, value: float, step: int) -> None:
        """As Optuna's. A step that was reported before the trial was moved counts once."""
        if self._rank != 0:
            return
        said, step = float(value), int(step)
        told = said if math.isfinite(said) else str(said)
        try:
            self.catch_up(step)
            answer = self._line.ask("report", value=told, step=step)
        except TunerGone:
            self._note(told, step)
            answer = "pause"
        self._follow(answer)

    def catch_up(self, step: int | None = None) -> None:
        """Tell what could not be told before, since the tuner was gone: of the steps before this one, or all. A run
        that has begun before them tells them itself. Raises TunerGone."""
        if self._rank != 0 or not self._untold.exists():
            return
        untold = dict(filter(None, map(_noted, self._untold.read_text(encoding="utf-8").splitlines())))
        for at in sorted(untold):
            if step is None or at < step:
                self._follow(self._line.ask("report", value=untold[at], step=at))
        self._untold.unlink()
        for at in untold:
            if step is not None and at > step:
                self._note(untold[at], at)

    def _note(self, value: float | str, step: int) -> None:
        try:
            with self._untold.open("a", encoding="utf-8") as file:
                file.write(f"\n{json.dumps([step, value])}\n")  # behind half a line, it may be
        except OSError as error:
            say(f"the report of step {step} is lost: {self._untold}: {error.strerror}")

    def should_prune(self) -> bool:
        """As Optuna's."""
        answer = self._asked("should_prune") if self._rank == 0 else None
        if self._gang is not None:
            answer = self._gang.broadcast(answer)
        if self._rank == 0:
            self._follow(answer)
        return bool(answer == "prune")

    def set_user_attr(self, key: str, value: Any) -> None:
        """As Optuna's; ``value`` is what JSON can hold."""
        if self._rank == 0:
            self._line.ask("attribute", key=str(key), value=value)

    def _asked(self, op: str, **said: Any) -> Any:
        """Where the tuner is gone the trial is to save and end, as at a rung."""
        try:
            return self._line.ask(op, **said)
        except TunerGone:
            return "pause"

    def _follow(self, answer: Any) -> None:
        """At its rung a loop of ``slurm_hadar.train`` saves when this step is over, and ends or goes on; any other
        objective ends here, or goes on."""
        if answer == "save":
            sys.modules.get("_hadar_progress", _hadar_progress).ask_for_a_save()
        if answer != "pause":
            return
        if signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None):
            raise Paused
        os.kill(os.getpid(), signal.SIGTERM)


def _noted(line: str) -> tuple[int, float | str] | None:
    """Step and value of a line of what could not be told; None of one that a full disk has cut."""
    try:
        step, value = json.loads(line)
    except (ValueError, TypeError):
        return None
    return int(step), value
