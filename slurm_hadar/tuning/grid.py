"""Every combination of parameters once (our definition), of a space that is known as far as trials have shown it.

Optuna's ``BruteForceSampler`` draws while a trial asks. Of trials that begin together, and of a study that has all
combinations already, it gives some out twice. So a trial is told here which combination is its own, as far down as
others have shown the parameters; what is below that, the sampler draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

__all__ = ["combination", "contradiction"]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A parameter that a trial has asked for, or that it will: then its distribution is not known from it."""

    name: str
    value: Any
    distribution: Any = None


_Path = Sequence[_Asked]


@dataclass(frozen=True, slots=True)
class _Node:
    """Where trials that are alike so far choose: ``taken``, by the place of a value among all, who has it."""

    name: str
    distribution: Any
    taken: dict[int, list[_Path]]

    @property
    def untaken(self) -> int:
        return max(0, _size(self.distribution) - len(self.taken))


def combination(trials: Sequence[FrozenTrial], dice: Random) -> dict[str, Any] | None:
    """The parameters of the next trial, as far as they are known: none of the first one's. None: there is none for now,
    and none at all if no trial is unfinished. Each is as likely as any other that is known to be there."""
    paths = [_path(trial) for trial in trials]
    if any(not path and not trial.state.is_finished() for path, trial in zip(paths, trials, strict=True)):
        return None  # it is still to show what it asks for
    if not any(paths):
        return {} if all(trial.state.name == "FAIL" for trial in trials) else None  # there is nothing to choose
    return _chosen(paths, 0, dice) if _free(paths, 0) else None


def contradiction(trials: Sequence[FrozenTrial], asking: int, name: str, distribution: Any) -> str:
    """Why trial ``asking`` cannot have what it asks for next: another one with the same values so far has asked for
    something else there, and then what all combinations are is not known. Empty if it can."""
    paths = {trial.number: _path(trial) for trial in trials}
    mine = [(asked.name, asked.value) for asked in paths[asking] if asked.distribution is not None]
    for number, path in paths.items():
        if number == asking or len(path) <= len(mine) or (there := path[len(mine)]).distribution is None:
            continue
        alike = mine == [(asked.name, asked.value) for asked in path[: len(mine)]]
        if alike and (there.name, there.distribution) != (name, distribution):
            return (
                "a grid needs the same choices in every trial: this one asks for "
                f"{name} of {_range(distribution)} where trial {number} has asked for "
                f"{there.name} of {_range(there.distribution)}. For other choices begin another study"
            )
    return ""


def _range(distribution: Any) -> str:
    if hasattr(distribution, "choices"):
        return ", ".join(map(str, distribution.choices))
    return f"{distribution.low} to {distribution.high} by {distribution.step}"


def _path(trial: FrozenTrial) -> _Path:
    path = [_Asked(name, trial.params[name], distribution) for name, distribution in trial.distributions.items()]
    given = trial.system_attrs.get("fixed_params", {})
    return path + [_Asked(name, value) for name, value in given.items() if name not in trial.params]


def _node(paths: Sequence[_Path], depth: int) -> _Node | None:
    """None: below it nothing is known to be asked."""
    further = [path for path in paths if len(path) > depth]
    shown = next((path[depth] for path in further if path[depth].distribution is not None), None)
    if shown is None:
        return None
    taken: dict[int, list[_Path]] = {}
    for path in further:
        place = _place(shown.distribution, path[depth].value) if path[depth].name == shown.name else None
        if place is not None:
            taken.setdefault(place, []).append(path)
    return _Node(shown.name, shown.distribution, taken)


def _free(paths: Sequence[_Path], depth: int) -> int:
    """How many combinations that are known to be there are nobody's, of trials alike in ``depth`` parameters."""
    node = _node(paths, depth)
    return 0 if node is None else node.untaken + sum(_free(alike, depth + 1) for alike in node.taken.values())


def _chosen(paths: Sequence[_Path], depth: int, dice: Random) -> dict[str, Any]:
    node = _node(paths, depth)
    assert node is not None
    below = {place: _free(alike, depth + 1) for place, alike in node.taken.items()}
    number = dice.randrange(node.untaken + sum(below.values()))
    for place, free in below.items():
        if number < free:
            return {node.name: _value(node.distribution, place)} | _chosen(node.taken[place], depth + 1, dice)
        number -= free
    for place in sorted(node.taken):  # the number-th of those that nobody has
        number += number >= place
    return {node.name: _value(node.distribution, number)}


def _size(distribution: Any) -> int:
    """Of how many values a parameter is drawn; 0 of one without a step, which the sampler refuses."""
    if hasattr(distribution, "choices"):
        return len(_unlike(distribution))
    if distribution.single():
        return 1
    return _steps(distribution, distribution.high) + 1 if distribution.step else 0


def _unlike(distribution: Any) -> list[int]:
    """Where the choices are that are not equal to an earlier one: as 1, 1.0 and true are to each other."""
    return sorted({int(distribution.to_internal_repr(choice)) for choice in distribution.choices})


def _place(distribution: Any, value: Any) -> int | None:
    """Of a value among them; None of one that is not, as whoever enqueues a trial may want it."""
    try:
        internal = float(distribution.to_internal_repr(value))
    except ValueError:
        return None
    if not distribution._contains(internal):  # noqa: SLF001 (Optuna has no other name)
        return None
    return (
        _unlike(distribution).index(int(internal)) if hasattr(distribution, "choices") else _steps(distribution, value)
    )


def _steps(distribution: Any, value: float) -> int:
    return round((value - distribution.low) / distribution.step) if distribution.step else 0


def _value(distribution: Any, place: int) -> Any:
    if hasattr(distribution, "choices"):
        return distribution.choices[_unlike(distribution)[place]]
    if distribution.single():
        return distribution.low
    value = Decimal(str(distribution.low)) + place * Decimal(
        str(distribution.step)
    )  # 0.3, where floats make 0.30000004
    return int(value) if isinstance(distribution.low, int) else float(value)
