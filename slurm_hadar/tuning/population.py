"""Population based training (Jaderberg et al., 2017): the worst of a population go on from the best.

Optuna has none. A member that is replaced ends as PRUNED, and a new trial of the study takes its place: it begins with
a copy of the better one's newest checkpoint and with its parameters, perturbed, which must not change the model's
shape. Asynchronous: a member is compared with what the others have reported by the time that it is due.
"""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slurm_hadar.tuning.executor.executor import Executor
from slurm_hadar.tuning.executor.group import Leg
from slurm_hadar.tuning.search import Search
from slurm_hadar.tuning.study.book import End

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["breed", "perturbed"]

SLOT, PARENT = "hadar:slot", "hadar:parent"
_QUANTILE = 0.25
_RESAMPLED = 0.25
_FACTORS = (0.8, 1.2)


def breed(executor: Executor, what: Search, slot: int) -> Iterator[Leg]:
    """One place of the population, from its first trial to the end of its last one."""
    book = executor.book
    own = [t.number for t in book.trials() if t.user_attrs.get(SLOT) == slot]
    number = own[-1] if own else book.ask({SLOT: slot})
    while True:
        trial = book.trials()[number]
        if trial.state.is_finished():
            return
        due = (max(trial.intermediate_values, default=0) // what.first_rung + 1) * what.first_rung
        yield Leg((number,), due)
        trials = book.trials()
        trial = trials[number]
        if trial.state.is_finished():
            return
        if not trial.intermediate_values or executor.closing:
            executor.finish(number, End.PRUNED if trial.intermediate_values else End.FAIL)
            return
        better = _better(trial, trials, book.maximize, random.Random(f"{what.seed} {number} {due}"))
        if better is None or len(trials) >= what.trials:
            continue
        dice = random.Random(f"{what.seed} {len(trials)}")
        child = book.ask({SLOT: slot, PARENT: better.number}, perturbed(better, dice))
        _inherit(executor.record.trial_folder(better.number), executor.record.trial_folder(child))
        executor.finish(number, End.PRUNED)
        number = child


def _better(trial: FrozenTrial, trials: list[FrozenTrial], maximize: bool, dice: random.Random) -> FrozenTrial | None:
    """One of the best quarter of the living, for one of the worst quarter; None for any other."""
    newest: dict[int, FrozenTrial] = {}
    for other in trials:
        if SLOT in other.user_attrs and other.intermediate_values and other.state.name != "FAIL":
            newest[other.user_attrs[SLOT]] = other
    ranked = sorted(newest.values(), key=lambda t: -_last(t) if maximize else _last(t))
    count = round(len(ranked) * _QUANTILE)
    if count < 1 or trial.number not in {t.number for t in ranked[-count:]}:
        return None
    return dice.choice(ranked[:count])


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


def _inherit(parent: Path, child: Path) -> None:
    """The checkpoints, with the secret that seals them; the child's runs count on from its parent's."""
    child.mkdir(parents=True, exist_ok=True)
    for name in ("checkpoints", "token", "runs"):
        with contextlib.suppress(FileNotFoundError):
            if (parent / name).is_dir():
                shutil.copytree(parent / name, child / name, ignore=_unfinished, dirs_exist_ok=True)
            else:
                shutil.copy2(parent / name, child / name)


def _unfinished(_folder: str, names: list[str]) -> list[str]:
    return [name for name in names if name == "claim" or name.startswith(".")]
