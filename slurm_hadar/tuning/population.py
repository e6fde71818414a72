"""Population based training (Jaderberg et al., 2017): the worst of a population go on from the best.

Optuna has none. A member that is replaced ends as PRUNED, and a new trial of the study takes its place: it begins with
a copy of the better one's newest checkpoint and with its parameters, perturbed, which must not change the model's
shape. Asynchronous: a member is compared with what the others have reported by the time that it is due. One that is
not replaced saves and goes on in its process, unless others wait for its GPUs. Who has not come to a comparison yet
has saved nothing, and is nobody's to go on from.
"""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_hadar.errors import StoreError
from slurm_hadar.messages import CHECKPOINTS_DIR, TOKEN_FILE
from slurm_hadar.runtime.checkpoint.listing import copy_checkpoints, replaces_one
from slurm_hadar.tuning.executor.executor import Executor
from slurm_hadar.tuning.executor.group import Leg
from slurm_hadar.tuning.search import Search
from slurm_hadar.tuning.study.book import End
from slurm_hadar.tuning.study.record import RUNS, saved_step

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["Place", "model_for", "perturbed"]

SLOT, PARENT, ANEW = "hadar:slot", "hadar:parent", "hadar:anew"
_QUANTILE = 0.25
_RESAMPLED = 0.25
_FACTORS = (0.8, 1.2)
_SAVE_S = 30.0  # a save may take; then the checkpoint before it is copied
_COPIES, _BETWEEN_COPIES_S = 3, 0.1


class Place:
    """One place of the population, from its first trial to the end of its last one. ``replaced``, of all places: by
    which trial the present one is to be replaced, by slot."""

    def __init__(self, executor: Executor, what: Search, slot: int, replaced: dict[int, int]) -> None:
        self._executor, self._what, self._slot, self._replaced = executor, what, slot, replaced

    def legs(self) -> Iterator[Leg | None]:
        """Its course: from comparison to comparison, as long as trials end there."""
        executor, book = self._executor, self._executor.book
        number = self._taken_up()
        while True:
            trial = book.trials()[number]
            if trial.state.is_finished():
                return
            yield Leg((number,), self._due(max(trial.intermediate_values, default=0)), self._onward)
            trials = book.trials()
            trial = trials[number]
            if trial.state.is_finished():
                self._replaced.pop(self._slot, None)
                return
            if not trial.intermediate_values or executor.closing:
                executor.finish(number, End.PRUNED if trial.intermediate_values else End.FAIL)
                return
            if self._slot not in self._replaced:  # else it was found to be worse when it was due
                self._compare(trial, trials)
            if self._slot in self._replaced:
                yield from self._saved(self._replaced[self._slot])
                number = self._replace(number, trials[self._replaced.pop(self._slot)])

    def _taken_up(self) -> int:
        """The trial that it begins or goes on with; a tuner that was killed may just have been replacing one."""
        executor, book = self._executor, self._executor.book
        trials = book.trials()
        own = [t for t in trials if t.user_attrs.get(SLOT) == self._slot]
        if not own:
            waiting = [t for t in trials if SLOT not in t.user_attrs and not t.state.is_finished()]
            if not waiting:
                return book.ask({SLOT: self._slot})
            book.attribute(waiting[0].number, SLOT, self._slot)
            return waiting[0].number
        *replaced, newest = own
        for trial in replaced:
            if not trial.state.is_finished():
                executor.finish(trial.number, End.PRUNED)
        copied = (executor.record.trial_folder(newest.number) / RUNS).exists()  # the last that is copied
        if PARENT in newest.user_attrs and not newest.state.is_finished() and not copied:
            self._copy(newest.number, newest.user_attrs[PARENT])
        return newest.number

    def _due(self, step: int) -> int:
        """The report of the next comparison."""
        return (step // self._what.first_rung + 1) * self._what.first_rung

    def _onward(self, number: int, step: int) -> int | None:
        """It has reported what it is compared by: the next comparison, if it is not to be replaced."""
        trials = self._executor.book.trials()
        self._compare(trials[number], trials)
        return None if self._slot in self._replaced else self._due(step)

    def _compare(self, trial: FrozenTrial, trials: list[FrozenTrial]) -> None:
        """Whether a trial that is due is to be replaced, and by whom, as far as trials are left for that."""
        if committed(self._what, trials) + len(self._replaced) >= self._what.trials:
            return
        step = max(trial.intermediate_values)
        dice = random.Random(f"{self._what.seed} {trial.number} {self._due(step - 1)}")
        better = model_for(trial, trials, self._executor.book.maximize, self._what.first_rung, dice)
        if better is not None:
            self._replaced[self._slot] = better.number

    def _saved(self, number: int) -> Iterator[None]:
        """Until what the better one was told to save is there."""
        until = time.monotonic() + _SAVE_S
        live = self._executor.state.lives.get(number)  # not there: an earlier tuner's
        while live is not None and live.saving and time.monotonic() < until:
            yield None

    def _replace(self, number: int, better: FrozenTrial) -> int:
        """The new trial in a member's place."""
        executor, what = self._executor, self._what
        dice = random.Random(f"{what.seed} {len(executor.book.trials())}")
        child = executor.book.ask({SLOT: self._slot, PARENT: better.number}, perturbed(better, dice))
        self._copy(child, better.number)
        executor.finish(number, End.PRUNED)
        return child

    def _copy(self, child: int, better: int) -> None:
        """The child begins where the better one has saved. That it cannot is said of each whose better one should have
        saved; of a study whose trials cannot save, once."""
        executor = self._executor
        if _inherit(executor.record.trial_folder(better), executor.record.trial_folder(child)):
            return
        live = executor.state.lives.get(better)
        unable = live is not None and not live.meter.resumable
        told = unable and any(ANEW in trial.user_attrs for trial in executor.book.trials())
        executor.book.attribute(child, ANEW, True)
        if not told:
            nothing = "has saved nothing, as any trial whose loop is not that of slurm_hadar.train"
            why = nothing if unable else "has no checkpoint"
            executor.state.say(
                f"trial {child} begins at its first step: trial {better}, from which it takes over, {why}"
            )


def committed(what: Search, trials: list[FrozenTrial]) -> int:
    """The trials that there are, and those with which places of the population are still to begin."""
    begun = {t.user_attrs[SLOT] for t in trials if SLOT in t.user_attrs}
    waiting = sum(SLOT not in t.user_attrs and not t.state.is_finished() for t in trials)
    return len(trials) + max(0, min(what.trials, what.population) - len(begun) - waiting)


def model_for(
    trial: FrozenTrial, trials: list[FrozenTrial], maximize: bool, first_rung: int, dice: random.Random
) -> FrozenTrial | None:
    """One of the best quarter, for one of the worst quarter; None for any other, and where none of the best has come to
    a comparison, so that there is nothing to go on from, or all have ended, so that there is nothing to go on with."""
    newest: dict[int, FrozenTrial] = {}
    for other in trials:
        if SLOT in other.user_attrs and other.intermediate_values and other.state.name != "FAIL":
            newest[other.user_attrs[SLOT]] = other
    ranked = sorted(newest.values(), key=lambda t: (not math.isfinite(_last(t)), -_last(t) if maximize else _last(t)))
    fit = [t for t in ranked if math.isfinite(_last(t))]
    count = round(len(ranked) * _QUANTILE)
    if count < 1 or trial.number not in {t.number for t in ranked[-count:]}:
        return None
    saved = [t for t in fit[:count] if PARENT in t.user_attrs or max(t.intermediate_values) >= first_rung]
    going = [t for t in saved if not t.state.is_finished()]
    return dice.choice(going) if going else None


def _last(trial: FrozenTrial) -> float:
    value = trial.intermediate_values[max(trial.intermediate_values)]
    return float(value)


def perturbed(trial: FrozenTrial, dice: random.Random) -> dict[str, Any]:
    """The parameters of a trial, each drawn anew with probability 0.25, else multiplied by 0.8 or 1.2 within its
    bounds; one of a list is drawn anew or kept."""
    return {name: _perturbed(trial.params[name], trial.distributions[name], dice) for name in trial.params}


def _perturbed(value: Any, distribution: Any, dice: random.Random) -> Any:
    anew = dice.random() < _RESAMPLED
    if hasattr(distribution, "choices"):
        return dice.choice(distribution.choices) if anew else value
    low, high, step = distribution.low, distribution.high, distribution.step
    if anew:
        found = low * (high / low) ** dice.random() if distribution.log else dice.uniform(low, high)
    else:
        found = value * dice.choice(_FACTORS)
    found = min(max(found, low), high)
    if step is not None:
        found = min(low + round((found - low) / step) * step, high)
    return type(value)(round(found) if isinstance(value, int) else found)


def _inherit(parent: Path, child: Path) -> bool:
    """The checkpoints, with the secret that seals them; the child's runs count on from its parent's, which may run, and
    drop an old checkpoint, or replace its only one, while it is copied. Returns whether the child has one now. Raises
    StoreError."""
    kept, copied = parent / CHECKPOINTS_DIR, child / CHECKPOINTS_DIR
    for tries_left in reversed(range(_COPIES)):
        try:
            shutil.rmtree(copied, ignore_errors=True)
            child.mkdir(parents=True, exist_ok=True)
            if kept.is_dir():
                copy_checkpoints(kept, copied)
            for name in (TOKEN_FILE, RUNS):
                with contextlib.suppress(FileNotFoundError):
                    shutil.copy2(parent / name, child / f".{name}")
                    (child / f".{name}").replace(child / name)  # as a whole: that it is there says that all is
            if saved_step(child) is not None:
                return True
            if saved_step(parent) is None and not replaces_one(kept):
                return False
            time.sleep(_BETWEEN_COPIES_S)
        except OSError as error:
            if not tries_left:
                why = error.args[0][0][2] if isinstance(error, shutil.Error) else error.strerror
                raise StoreError(f"trial {parent.name} cannot be copied to {child}: {why}") from error
    return False
